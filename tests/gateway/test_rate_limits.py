"""Request limits through HTTP: atomic refusals, headers that tell the truth (cases P14, P20)."""

import asyncio
import re

import pytest

from policies.store import Level
from tests.gateway.kit import chat
from tests.scripted_engine import answer, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


@both_ways
async def test_a_refusal_by_the_parallel_cap_costs_nothing_of_the_minute(launch):
    """P14: A runs, B is refused five times, then C and D in the same minute pass and E does not."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 3, "concurrency": {"interactive": 1}}')
    gate = asyncio.Event()
    gateway.script(answer("A", gates={0: gate}))
    first = await gateway.start(chat())
    await gateway.received()
    for _ in range(5):
        got = await gateway.post(chat())
        assert (got.status, got.code, got.header("retry-after")) == (429, "concurrency", "1")
        assert got.header("x-ratelimit-remaining-requests") == "2"
    gate.set()
    assert (await first.answer()).text == "A"
    assert [(await gateway.post(chat())).status for _ in "CDE"] == [200, 200, 429]


async def test_a_refusal_one_level_up_costs_nothing_below(launch):
    """P14: organisation 1, project 10: one of five passes; with 20 above, nine more pass."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"rpm": 1}', Level.ORGANIZATION)
    await gateway.limit(gateway.project, '{"rpm": 10}')
    assert [(await gateway.post(chat())).status for _ in range(5)] == [200, 429, 429, 429, 429]
    await gateway.limit(gateway.organization, '{"rpm": 20}', Level.ORGANIZATION)
    assert [(await gateway.post(chat())).status for _ in range(10)] == [200] * 9 + [429]


async def test_an_organisations_limit_holds_for_the_sum_of_its_projects(launch):
    """The second project is refused by what the first has used."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"rpm": 3}', Level.ORGANIZATION)
    other = await gateway.new_key(await gateway.new_project())
    keys = [gateway.key, other, gateway.key, other]
    assert [(await gateway.post(chat(), key=key)).status for key in keys] == [200, 200, 200, 429]


@pytest.mark.parametrize("cause", ["no replica", "queue full", "busy replica", "deadline"])
async def test_a_refusal_for_want_of_a_seat_costs_nothing_of_the_minute(launch, cause):
    """P14: what a later step refuses is undone, and the headers of the refusal already say so."""
    lanes = {"interactive": {"queue": 0 if cause == "queue full" else 10}}
    gateway = await launch(seats=1, lanes=lanes)
    await gateway.limit(gateway.project, '{"rpm": 3}')
    gate = asyncio.Event()
    gateway.script(answer("held", gates={0: gate}))
    holder = await gateway.start(chat(), key=await gateway.new_key(await gateway.new_project()))
    await gateway.received()
    if cause == "no replica":
        gateway.parts.fleet.drain("r1")
    elif cause == "busy replica":
        gateway.parts.router.pool.get("r1").breaker.aside_until = float("inf")
    headers = [("x-warmlane-deadline-ms", "20")] if cause == "deadline" else []
    for _ in range(5):
        got = await gateway.post(chat(), headers=headers)
        assert got.status in (429, 503, 504)
        assert got.code != "rpm"
        assert got.header("x-ratelimit-remaining-requests") == "3"
    gate.set()
    await holder.answer()
    gateway.parts.fleet.resume("r1")
    gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0
    assert [(await gateway.post(chat())).status for _ in range(4)] == [200, 200, 200, 429]


@both_ways
async def test_the_headers_count_down_to_the_first_refusal(launch):
    """P20: streamed, whole, failed and aborted requests all count; the refusal comes exactly when they said so."""
    gateway = await launch(retries={"max_attempts": 1})
    await gateway.limit(gateway.project, '{"rpm": 5}')
    gateway.script(answer("a"), answer("b"), status(400), status(500))
    seen = []
    for stream in (True, False, True, False):
        got = await gateway.post(chat(stream=stream))
        assert got.header("x-ratelimit-limit-requests") == "5"
        assert re.fullmatch(r"[1-9]\d?s", got.header("x-ratelimit-reset-requests"))
        seen.append(got.header("x-ratelimit-remaining-requests"))
    gateway.script(answer("c", gates={2: asyncio.Event()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"c"')
    seen.append(dict((await client.head())[1])["x-ratelimit-remaining-requests"])
    client.close()
    assert seen == ["4", "3", "2", "1", "0"]
    got = await gateway.post(chat())
    assert (got.status, got.code, got.error["type"]) == (429, "rpm", "rate_limit_error")
    assert 1 <= int(got.header("retry-after")) <= 61  # the minute is counted in whole seconds
    assert got.header("x-ratelimit-remaining-requests") == "0"


async def test_without_a_limit_there_are_no_limit_headers(launch):
    """P20: absent, not -1."""
    gateway = await launch()
    got = await gateway.post(chat())
    assert not [name for name, _ in got.headers if name.startswith("x-ratelimit")]


async def test_the_strictest_limit_is_shown(launch):
    """P20: of organisation and project the one with less left."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"rpm": 50}', Level.ORGANIZATION)
    await gateway.limit(gateway.project, '{"rpm": 100}')
    got = await gateway.post(chat())
    assert (got.header("x-ratelimit-limit-requests"), got.header("x-ratelimit-remaining-requests")) == ("50", "49")


async def test_a_limit_of_zero_allows_nothing_and_promises_nothing(launch):
    """No Retry-After where waiting is no use."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 0}')
    got = await gateway.post(chat())
    assert (got.status, got.header("retry-after")) == (429, None)


async def test_limits_come_before_the_body_and_a_malformed_body_costs_nothing_of_the_minute(launch):
    """D9: a 400 or 404 is undone; whoever is over the limit is told so whatever the body is."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 1}')
    bad = [chat(messages=[]), chat(model="nothing"), chat(model="x" * 100_000), chat(messages=[{}] * 100_000)]
    assert [(await gateway.post(body)).status for body in bad] == [400, 404, 400, 400]
    assert (await gateway.post(chat("x" * 600_000))).status == 200
    assert [(await gateway.post(body)).status for body in bad] == [429] * 4
    assert max(len(record.requested_model) for record in gateway.records) <= 128
