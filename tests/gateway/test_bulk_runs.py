"""Bulk on an engine without lanes gives way to people: cancelled there, first in its queue again, and in the end answered."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.bulk_runs import BulkRuns
from policies.lane import Lane
from tests.gateway.kit import chat
from tests.scripted_engine import answer

BULK = [("x-warmlane-lane", "bulk")]


@pytest.fixture
async def gateway(launch):
    """One llama-server with two seats, one of which is kept for people."""
    return await launch(kind="llama-server", seats=2, lanes={"interactive": {"reserved_seats": 1}})


def held(text):
    """An answer that never comes."""
    return answer(text, gates={0: asyncio.Event()})


async def start_bulk(gateway, text, upstream):
    """(client, the upstream request) of a bulk request that is the `upstream`-th at the engine."""
    client = await gateway.start(chat(text), headers=BULK)
    return client, await gateway.received(upstream)


def asked(gateway):
    """What the engine was asked, in order."""
    return [request.json["messages"][0]["content"] for _, request in gateway.engines.requests]


async def test_bulk_gives_way_to_an_arrival_and_is_answered_later(gateway):
    """Its client notices nothing but the time: no error, no half an answer."""
    gateway.script(held("bulk"), answer("person"), answer("bulk"))
    client, first = await start_bulk(gateway, "document", 1)
    assert (await gateway.post(chat("hello"))).text == "person"
    await first.until_aborted()
    got = await client.answer()
    assert (got.status, got.text) == (200, "bulk")
    assert asked(gateway) == ["document", "hello", "document"]
    record = next(one for one in await gateway.until_recorded(2) if one.lane == "bulk")
    assert (record.attempts, record.outcome) == (2, "finished")


async def test_who_gave_way_goes_before_those_who_came_later(gateway):
    """Behind a long queue it would never come to its end, and others would be begun and lost in its stead."""
    gateway.script(held("a"), answer("person"))
    clients = [(await start_bulk(gateway, "a", 1))[0]]
    for text in "bc":
        clients.append(await gateway.start(chat(text), headers=BULK))
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    await gateway.post(chat("hello"))
    assert [(await client.answer()).status for client in clients] == [200] * 3
    assert asked(gateway) == ["a", "hello", "a", "b", "c"]


async def test_a_request_gives_way_twice_at_most(gateway):
    """Then it stays beside whoever comes, so that it comes to its end."""
    gate = asyncio.Event()
    gateway.script(held("a"), answer("1"), held("a"), answer("2"), answer("a", gates={0: gate}), answer("3"))
    client, first = await start_bulk(gateway, "a", 1)
    await gateway.post(chat("1"))
    await first.until_aborted()
    second = await gateway.received(3)
    await gateway.post(chat("2"))
    await second.until_aborted()
    await gateway.received(5)
    assert (await gateway.post(chat("3"))).text == "3"
    gate.set()
    assert (await client.answer()).text == "a"
    assert asked(gateway) == ["a", "1", "a", "2", "a", "3"]


async def test_work_above_the_bound_is_not_thrown_away(gateway):
    """A long prompt that is being read is worth more than may be lost: people read beside it."""
    gate = asyncio.Event()
    gateway.script(answer("bulk", gates={0: gate}), answer("person"))
    client, _ = await start_bulk(gateway, "long document " * 1000, 1)
    assert (await gateway.post(chat("hello"))).text == "person"
    assert gateway.parts.seats.budget.wasted_tokens == 0
    gate.set()
    assert (await client.answer()).text == "bulk"


async def test_bulk_that_has_shown_text_stays(gateway):
    """An answer cannot begin twice."""
    gate = asyncio.Event()
    gateway.script(answer("bu", "lk", gates={2: gate}), answer("person"))
    client = await gateway.start(chat("a", stream=True), headers=BULK)
    await gateway.received()
    await gateway.until(lambda: any(run.answer.has_content for run in gateway.parts.bulk_runs._runs["r1"].values()))
    assert (await gateway.post(chat("hello"))).text == "person"
    gate.set()
    assert (await client.answer()).text == "bulk"
    assert len(gateway.parts.bulk_runs) == 0


async def test_a_client_that_leaves_after_giving_way_leaves_nothing(gateway):
    """It waits in the queue like every other; the fixture looks for what is still held."""
    gateway.script(held("a"), answer("person", gates={0: (gate := asyncio.Event())}))
    client, first = await start_bulk(gateway, "a", 1)
    person = await gateway.start(chat("hello"))
    await first.until_aborted()
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    client.close()
    await gateway.until(lambda: gateway.in_flight["queued"] == 0)
    gate.set()
    assert (await person.answer()).text == "person"
    assert len(gateway.parts.bulk_runs) == 0


class Seats:
    """A seat control that guesses far too high and remembers whom it was offered."""

    def __init__(self):
        self.offered = []

    def excess(self, _replica):
        """One has to go."""
        return 1

    def computed_tokens(self, _lease, _num_answer_tokens, _now):
        """Long after the answer must have ended."""
        return 9999

    def preempt(self, _replica, runs):
        """Nobody goes."""
        self.offered += runs
        return ()


@pytest.mark.parametrize(("most", "tokens"), [(20, 120), (None, 9999)])
def test_a_guess_of_computed_tokens_ends_where_the_answer_must(most, tokens):
    """A slow engine would else make any request look too dear to be given up."""
    runs = BulkRuns(seats := Seats(), lambda: 5.0)
    turn = SimpleNamespace(
        decision=SimpleNamespace(chosen="r1", lane=Lane.BULK), lease=SimpleNamespace(begun_at=0.0, uncached_tokens=100)
    )
    relay = SimpleNamespace(relayed=SimpleNamespace(num_chunks=0))
    asked = SimpleNamespace(max_output_tokens=most)
    story = SimpleNamespace(request_id="a", request=asked, preemptions=1)
    with runs.watched(turn, relay, SimpleNamespace(has_content=False), story):
        runs.refresh()
    runs.refresh()
    assert [(run.computed_tokens, run.times_preempted) for run in seats.offered] == [(tokens, 1)]
    assert len(runs) == 0
