"""A deleted project: its keys are refused at once, what is in flight ends as it would have, what was remembered goes."""

import asyncio

from tests.gateway.kit import chat
from tests.scripted_engine import PATIENCE_S, answer


async def test_requests_in_flight_finish_and_later_ones_are_401(launch):
    """Who was let in is served to the end; nobody is let in any more; the record of before is gone."""
    gateway = await launch()
    assert (await gateway.post(chat())).status == 200
    [before] = await gateway.until_recorded(1)
    gate = asyncio.Event()
    gateway.script(answer("late", gates={0: gate}))
    client = await gateway.start(chat(stream=True))
    await gateway.received(2)
    deleted = await gateway.store.delete_project(gateway.project, cascade=True)
    assert len(deleted.keys) == 1
    await gateway.parts.directory.refresh()
    assert gateway.parts.recorder.find(before.request_id) is None
    assert (await gateway.post(chat())).status == 401
    gate.set()
    finished = await client.answer()
    assert (finished.status, finished.text, finished.is_done) == (200, "late", True)


async def test_another_projects_keys_and_records_stay(launch):
    """Deletion is of one project."""
    gateway = await launch()
    other = await gateway.store.create_project("other", gateway.organization)
    assert (await gateway.post(chat())).status == 200
    [record] = await gateway.until_recorded(1)
    await gateway.parts.directory.refresh()
    await gateway.store.delete_project(other.id, cascade=False)
    await gateway.parts.directory.refresh()
    assert gateway.parts.recorder.find(record.request_id) is not None
    assert (await gateway.post(chat())).status == 200


async def test_a_keys_last_use_is_in_the_store_after_the_batch(launch):
    """Told off the request's path, and shown by the admin plane."""
    gateway = await launch()
    assert (await gateway.post(chat())).status == 200
    [record] = await gateway.until_recorded(1)
    gateway.parts.recorder.flush()
    assert await gateway.gateway._key_uses.tell() == 1
    used_at = (await gateway.store.key(record.key)).last_used_at
    assert int(record.started_at) <= used_at <= record.started_at + PATIENCE_S
