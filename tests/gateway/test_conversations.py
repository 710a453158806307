"""What is kept of responses: found at once, written behind, bounded, and lost rather than waited for."""

import asyncio
import contextlib
import json
import sys
from dataclasses import replace

import msgspec
import pytest
from msgspec import Raw

from gateway import conversations as module
from gateway.conversations import Conversations
from gateway.errors import ClientError, Refused
from gateway.responses_api.state import Answered
from gateway.settings import ResponsesSection
from policies.store import StoreError

NOW = 1_000_000.0
ITEM = Raw(b'{"role":"user","content":"Hello"}')


def answered(number=0, size=0):
    """A response that was told, of about so many bytes."""
    told = {"id": f"resp_{number:02x}", "output": [{"type": "message", "id": f"msg_{number:02x}_0", "pad": "x" * size}]}
    return Answered(told["id"], [ITEM], 1, json.dumps(told).encode())


class ScriptedStore:
    """Keeps in memory. `failures`: how many calls fail first; `gate`: what a write waits for."""

    def __init__(self):
        self.kept = {}
        self.bounds = []
        self.failures = 0
        self.gate = None
        self.num_looks = 0
        self.num_expired = 0

    async def keep_responses(self, responses, bound):
        self.bounds.append(bound)
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreError("away")
        self.kept |= {(one.project_id, one.id): one for one in responses}

    async def kept_response(self, project_id, response_id):
        self.num_looks += 1
        found = self.kept.get((project_id, response_id))
        return None if found is None else found.content

    async def drop_response(self, project_id, response_id):
        return self.kept.pop((project_id, response_id), None) is not None

    async def expire_responses(self):
        self.num_expired += 1


@pytest.fixture
async def store():
    return ScriptedStore()


@contextlib.asynccontextmanager
async def following(store, **options):
    """Conversations that are written down until the end of the block."""
    settings = ResponsesSection(keep_hours=1, max_per_project=7, max_mb_per_project=2)
    made = Conversations(store, lambda: settings, lambda: NOW, **{"pauses_s": (0.001,)} | options)
    task = asyncio.create_task(made.follow())
    await asyncio.sleep(0)  # it has begun
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition):
    """Wait until it holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_what_was_told_is_found_before_and_after_it_is_written(store):
    """With its end and its project's bound."""
    store.gate = asyncio.Event()
    async with following(store) as made:
        made.keep("p", answered(1))
        before = await made.find("p", "resp_01")
        assert before.conversation()[1:] == before.output
        assert store.num_looks == 0
        store.gate.set()
        await until(lambda: made.num_pending == 0)
        assert (await made.find("p", "resp_01")).response == before.response
        assert await made.find("q", "resp_01") is None
    (kept,) = store.kept.values()
    assert kept.expires_at == NOW + 3600
    assert (store.bounds[0].number, store.bounds[0].total_bytes) == (7, 2 << 20)


async def test_a_store_that_comes_back_in_time_loses_nothing(store):
    """One more try."""
    store.failures = 1
    async with following(store) as made:
        made.keep("p", answered(1))
        await until(lambda: store.kept)
        assert made.num_lost == 0


async def test_what_cannot_be_written_is_lost_and_counted(store):
    """Nobody waits for it; what comes later is written."""
    store.failures = 2
    async with following(store) as made:
        made.keep("p", answered(1))
        await until(lambda: made.num_lost == 1)
        made.keep("p", answered(2))
        await until(lambda: store.kept)
    assert set(store.kept) == {("p", "resp_02")}


@pytest.mark.parametrize(("bound", "most"), [("MAX_PENDING", 3), ("MAX_PENDING_BYTES", 400)])
async def test_what_waits_is_bounded(store, monkeypatch, bound, most):
    """By number and by bytes: above that it is not kept, whoever asks."""
    monkeypatch.setattr(module, bound, most)
    store.gate = asyncio.Event()
    async with following(store) as made:
        for number in range(20):
            made.keep("p", answered(number))
        assert 1 <= made.num_pending <= 3
        assert made.num_lost == 20 - made.num_pending
        store.gate.set()


async def test_one_that_is_dropped_while_it_is_written_is_gone(store):
    """Whichever comes first."""
    store.gate = asyncio.Event()
    async with following(store) as made:
        made.keep("p", answered(1))
        await until(lambda: store.bounds)
        dropping = asyncio.create_task(made.drop("p", "resp_01"))
        await asyncio.sleep(0)
        store.gate.set()
        assert await dropping
        await until(lambda: made.num_pending == 0)
        assert await made.find("p", "resp_01") is None


async def test_the_end_of_the_process_writes_what_waits(store):
    """Once more, without pauses."""
    async with following(store) as made:
        made.keep("p", answered(1))
    assert set(store.kept) == {("p", "resp_01")}


async def test_another_gateways_response_is_looked_for_again(store, monkeypatch):
    """It may have been told a moment ago; alone nobody else writes, so one look is enough."""
    monkeypatch.setattr(module, "LOOKS_AGAIN_S", (0.0, 0.0))
    async with following(store, is_shared=True) as made:
        assert await made.find("p", "resp_01") is None
        assert store.num_looks == 3
    async with following(store) as made:
        assert await made.find("p", "resp_01") is None
        assert store.num_looks == 4


async def test_a_store_that_is_away_is_said(store, monkeypatch):
    """503, not 404: it may be there."""

    async def fails(*_):
        raise StoreError("away")

    monkeypatch.setattr(store, "kept_response", fails)
    async with following(store) as made:
        with pytest.raises(Refused):
            await made.find("p", "resp_01")


async def test_one_that_cannot_be_written_costs_no_other(store):
    """Whatever stands in it: the writer goes on, and who asks for it is told that it is not there."""
    store.gate = asyncio.Event()
    async with following(store) as made:
        broken = answered(1)
        made.keep("p", broken._replace(items=[Raw(b'{"role":"user","content":"x","status":5}')]))
        made.keep("q", answered(2))
        assert await made.find("p", "resp_01") is None
        store.gate.set()
        await until(lambda: made.num_pending == 0)
        made.keep("q", answered(3))
        await until(lambda: made.num_pending == 0)
    assert set(store.kept) == {("q", "resp_02"), ("q", "resp_03")}
    assert made.num_lost == 1


async def test_what_nobody_can_read_is_not_there(store):
    """404, not 500."""
    async with following(store) as made:
        made.keep("p", answered(1))
        await until(lambda: store.kept)
        store.kept["p", "resp_01"] = replace(store.kept["p", "resp_01"], content=b"{")
        assert await made.find("p", "resp_01") is None


async def test_what_is_nested_as_deeply_as_a_body_may_be_is_read_again(store):
    """A thread has room for it where the loop has not."""
    item = b'{"role":"user","content":"x","z":%b%b}'
    async with following(store) as made:
        made.keep("p", answered(1)._replace(items=[Raw(item % (b"[" * 900, b"]" * 900))]))
        await until(lambda: made.num_pending == 0)
        deep = b'{"response":%b%b,"items":[],"output":[]}' % (b"[" * 900, b"]" * 900)
        store.kept["p", "resp_01"] = replace(store.kept["p", "resp_01"], content=deep)

        async def find(depth):
            return await (find(depth - 1) if depth else made.find("p", "resp_01"))

        assert await find(90) is not None


@pytest.mark.parametrize(("bound", "most"), [("MAX_PENDING", 8), ("MAX_PENDING_BYTES", 2000)])
async def test_one_project_cannot_take_the_places_of_others(store, monkeypatch, bound, most):
    """While the store is slow, what one tells in a flood is lost before what another tells."""
    monkeypatch.setattr(module, bound, most)
    store.gate = asyncio.Event()
    async with following(store) as made:
        for number in range(20):
            made.keep("flood", answered(number))
        held = made.num_pending
        assert 2 <= held <= 4
        made.keep("other", answered(30))
        assert made.num_pending == held + 1
        store.gate.set()
        await until(lambda: made.num_pending == 0)
        for number in range(40, 42):
            made.keep("flood", answered(number))
        assert made.num_pending == 2


async def test_one_that_is_too_large_is_not_kept(store, monkeypatch):
    """An answer may be far longer than what it was asked with."""
    monkeypatch.setattr(module, "MAX_TOLD_BYTES", 500)
    async with following(store) as made:
        made.keep("p", answered(1, size=500))
        assert (made.num_pending, made.num_lost) == (0, 1)


async def test_one_that_is_told_twice_waits_once(store, monkeypatch):
    """As by two attempts that race: what waits is not counted twice, or nothing would be kept in the end."""
    monkeypatch.setattr(module, "MAX_PENDING_BYTES", 1500)
    store.gate = asyncio.Event()
    async with following(store) as made:
        for _ in range(20):
            made.keep("p", answered(1))
        assert (made.num_pending, made.num_lost) == (1, 0)
        store.gate.set()


async def test_what_waits_holds_no_whole_body(store):
    """An item is a view of the body it came in, which may be a thousand times as large."""
    body = b'{"pad":"%b","input":[%b]}' % (b"x" * 100_000, bytes(ITEM))
    view = msgspec.json.decode(body, type=dict[str, Raw])["input"]
    (item,) = msgspec.json.decode(view, type=list[Raw])
    store.gate = asyncio.Event()
    async with following(store) as made:
        before = sys.getrefcount(body)
        made.keep("p", answered(1)._replace(items=[item]))
        del view, item
        assert sys.getrefcount(body) < before
        store.gate.set()


async def test_of_a_response_only_what_is_referred_to_is_held(store, monkeypatch):
    """And no more than may be referred to at all."""
    async with following(store) as made:
        for number in range(3):
            made.keep("p", answered(number, size=1000))
        items = [{"type": "item_reference", "id": f"msg_{number:02x}_0"} for number in range(3)]
        found = await made.earlier(json.dumps({"input": items[:2]}).encode(), "p")
        assert found.referenced.keys() == {"msg_00_0", "msg_01_0"}
        assert found.num_bytes < 2500
        monkeypatch.setattr(module, "MAX_REFERENCED_BYTES", 2500)
        with pytest.raises(ClientError, match="MiB together"):
            await made.earlier(json.dumps({"input": items}).encode(), "p")


async def test_references_are_bounded(store):
    """Each is a look into the store."""
    items = [{"type": "item_reference", "id": f"msg_{number:02x}_0"} for number in range(65)]
    async with following(store) as made:
        with pytest.raises(ClientError, match="at most 64"):
            await made.earlier(json.dumps({"input": items}).encode(), "p")
        made.keep("p", answered(0))
        found = await made.earlier(json.dumps({"input": items[:3] + items[:3]}).encode(), "p")
        # The first that is not there is enough to refuse the request.
        assert (found.referenced.keys(), store.num_looks) == ({"msg_00_0"}, 1)
