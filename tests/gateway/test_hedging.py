"""A second attempt beside a slow one: one answer, one charge, and nothing held afterwards, whoever wins."""

import asyncio
import gc

import httpx
import pytest

from gateway.conversations import Conversations
from gateway.hedging import Hedges
from gateway.parts import Call
from gateway.race import Race, Racer
from gateway.relay import Relay
from gateway.story import Story
from gateway.turn import Turn
from routing import hedge
from tests.gateway.kit import chat, message, respond
from tests.scripted_engine import Cut, Reply, answer, dropped, status

ON = {"hedging": {"max_share": 0.5}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What is unusually slow is known from the first request on; the wait is some 90 ms."""
    monkeypatch.setattr(hedge, "MIN_SEEN", 0)


def never(*tokens):
    """An answer of which nothing ever comes."""
    return answer(*(tokens or ("slow",)), gates={0: asyncio.Event()})


async def hedge_of(gateway):
    """(outcome, replica) of the second attempt in the one record, and the record."""
    [record] = await gateway.until_recorded(1)
    await gateway.until_quiet()
    return record.hedge, record.hedge_replica, record


async def test_the_second_answers_where_the_first_says_nothing(launch):
    """The first is cancelled at its engine, its seat is free while the other still writes; one charge, one outcome."""
    gateway = await launch(engines=2, **ON)
    await gateway.limit(gateway.project, '{"tpm": 100000}')
    gate = asyncio.Event()
    gateway.script(never(), answer("Hel", "lo", prompt_tokens=7, gates={2: gate}))
    client = await gateway.start(chat(stream=True))
    await client.until("Hel")
    await (await gateway.received()).until_aborted()
    await gateway.until(lambda: gateway.in_flight["leases"] == 1)
    assert (gateway.in_flight["turns"], gateway.in_flight["relaying"]) == (1, 1)
    gate.set()
    got = await client.answer()
    assert (got.text, got.roles, got.is_done) == ("Hello", 1, True)
    outcome, replica, record = await hedge_of(gateway)
    (first, _), (second, _) = gateway.engines.requests
    assert first != second
    assert (outcome, replica, record.replica) == ("won", f"r{second + 1}", f"r{second + 1}")
    assert (record.attempts, record.prompt_tokens, record.completion_tokens) == (2, 7, 2)
    assert (record.outcome, record.lost_attempts, record.charged_tokens) == ("finished", 1, 9)
    assert record.lost_tokens > 0
    assert not gateway.parts.router.pool.get(f"r{first + 1}").breaker.tally.num_attempts  # being slow is no fault


async def test_the_first_answers_before_the_second(launch):
    """Then the second is the one that is cancelled, and the operator's cost."""
    gateway = await launch(engines=2, **ON)
    gate = asyncio.Event()
    gateway.script(answer("Hel", "lo", gates={0: gate}, prompt_tokens=7), never())
    client = await gateway.start(chat(stream=True))
    second = await gateway.received(2)
    gate.set()
    got = await client.answer()
    assert (got.text, got.roles, got.is_done) == ("Hello", 1, True)
    await second.until_aborted()
    outcome, replica, record = await hedge_of(gateway)
    assert (outcome, record.attempts, record.lost_attempts) == ("lost", 2, 1)
    assert record.replica != replica
    assert (record.prompt_tokens, record.completion_tokens) == (7, 2)


@pytest.mark.parametrize(("path", "num_kept"), [("/v1/messages", 0), ("/v1/responses", 1)])
async def test_other_languages_are_told_by_the_winner_alone(launch, monkeypatch, path, num_kept):
    """One beginning, one end, one kept response."""
    kept = []
    monkeypatch.setattr(Conversations, "keep", lambda _, project, answered: kept.append(answered))
    gateway = await launch(engines=2, **ON)
    gateway.script(never(), answer("Hel", "lo"))
    body = message(stream=True) if path.endswith("messages") else respond(stream=True)
    client = await gateway.start(body, path=path)
    stream = await client.until("message_stop" if path.endswith("messages") else "response.completed")
    assert stream.count(b"event: message_start") + stream.count(b"event: response.created") == 1
    client.close()
    assert (await hedge_of(gateway))[0] == "won"
    assert len(kept) == num_kept


async def test_a_client_that_leaves_leaves_nothing_behind(launch):
    """Both engines are told to stop; what the first read is charged, the second's work is the operator's."""
    gateway = await launch(engines=2, **ON)
    gateway.script(never(), never())
    client = await gateway.start(chat(stream=True))
    first, second = await gateway.received(1), await gateway.received(2)
    client.close()
    await first.until_aborted()
    await second.until_aborted()
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.outcome, record.lost_attempts) == ("failed", "client_gone", 1)
    assert record.charged_tokens


async def test_a_client_that_leaves_while_the_winner_writes(launch):
    """The winner's work so far is charged, once."""
    gateway = await launch(engines=2, **ON)
    gateway.script(never(), answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    client.close()
    await (await gateway.received(2)).until_aborted()
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.outcome, record.num_chunks) == ("won", "client_gone", 1)


async def test_both_fail_and_a_third_replica_answers(launch):
    """As a request that failed twice: neither of the two is asked again."""
    gateway = await launch(engines=3, **ON)
    gates = [asyncio.Event(), asyncio.Event()]
    gateway.script(*(Reply([Cut.RESET], hold_head=gate) for gate in gates), answer("Hello"))
    client = await gateway.start(chat(stream=True))
    await gateway.received(2)
    for gate in gates:
        gate.set()
    assert (await client.answer()).text == "Hello"
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.attempts, record.lost_attempts) == ("failed", 3, 2)
    assert len({index for index, _ in gateway.engines.requests}) == 3


async def test_both_fail_and_the_first_failure_is_told(launch):
    """There is nobody else, so the client gets one status."""
    gateway = await launch(engines=2, **ON)
    gate = asyncio.Event()
    gateway.script(Reply([], status=500, hold_head=gate), dropped())
    client = await gateway.start(chat(stream=True))
    await (await gateway.received(2)).until_finished()
    gate.set()
    got = await client.answer()
    assert (got.status, got.code) == (502, "replica_error")
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.attempts, record.outcome) == ("failed", 2, "replica_error")


async def test_the_first_fails_while_the_second_works(launch):
    """The second is its retry, and no other is made."""
    gateway = await launch(engines=3, **ON)
    gates = [asyncio.Event(), asyncio.Event()]
    gateway.script(Reply([Cut.RESET], hold_head=gates[0]), answer("Hello", gates={0: gates[1]}))
    client = await gateway.start(chat(stream=True))
    await gateway.received(2)
    gates[0].set()
    await gateway.until(lambda: gateway.in_flight["leases"] == 1)
    gates[1].set()
    assert (await client.answer()).text == "Hello"
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.attempts, record.lost_attempts) == ("won", 2, 1)
    assert len(gateway.engines.requests) == 2


async def test_a_busy_second_changes_nothing_for_the_first(launch):
    """P28: its replica is set aside as ever, and the first goes on."""
    gateway = await launch(engines=2, **ON)
    gate = asyncio.Event()
    gateway.script(answer("Hello", gates={0: gate}), status(429, headers={"retry-after": "3"}))
    client = await gateway.start(chat(stream=True))
    await (await gateway.received(2)).until_finished()
    gate.set()
    assert (await client.answer()).text == "Hello"
    outcome, replica, record = await hedge_of(gateway)
    assert (outcome, record.outcome, record.attempts) == ("failed", "finished", 2)
    assert gateway.parts.router.pool.get(replica).breaker.retry_after_s(gateway.parts.clock()) > 1.0


async def test_a_stream_that_breaks_after_content_is_not_rescued(launch):
    """P27: whoever has the client has it to the end."""
    gateway = await launch(engines=3, **ON)
    gateway.script(never(), answer("a", "b", cut_before=2))
    got = await gateway.post(chat(stream=True))
    assert (got.text, got.is_done) == ("a", False)
    outcome, _, record = await hedge_of(gateway)
    assert (outcome, record.outcome, len(gateway.engines.requests)) == ("won", "replica_error", 2)


@pytest.mark.parametrize(
    ("options", "body", "headers"),
    [
        ({}, chat(stream=True), []),
        (ON, chat(), []),
        (ON, chat(stream=True), [("x-warmlane-lane", "standard")]),
        (ON, chat(stream=True), [("x-warmlane-lane", "bulk")]),
        (ON, chat(stream=True, store=True), []),
        ({**ON, "kind": "openai", "replica": {"shared_cache": "accept"}}, chat(stream=True), []),
    ],
    ids=["switched off", "unstreamed", "standard", "bulk", "stored elsewhere", "paid by the piece"],
)
async def test_others_are_never_made_twice(launch, monkeypatch, options, body, headers):
    """Only what costs nothing but time; the others do not even take that way."""
    hedged = []
    monkeypatch.setattr(Hedges, "run", lambda *parts: hedged.append(parts))
    gateway = await launch(**{"engines": 2, **options})
    gateway.script(answer("Hello"))
    assert (await gateway.post(body, headers=headers)).text == "Hello"
    assert not hedged
    assert (await hedge_of(gateway))[:2] == ("", "")


async def started(gateway):
    """A client whose request has come to an engine, and the gate that lets it answer."""
    gate = asyncio.Event()
    gateway.script(answer("Hello", gates={0: gate}))
    client = await gateway.start(chat(stream=True))
    await gateway.received(len(gateway.engines.requests) + 1)
    return client, gate


async def test_a_used_up_budget_full_or_no_other_replicas_and_a_stop_allow_none(launch, monkeypatch):
    """P29: there is no hedge storm, and none in a gateway that drains."""
    gateway = await launch(engines=2, seats=4, **ON)
    asked = []
    granted = Hedges._granted

    def noted(self, call, turn):
        found = granted(self, call, turn)
        asked.append(found)
        return found

    monkeypatch.setattr(Hedges, "_granted", noted)
    hedges = gateway.gateway.lifecycle._attempts._hedges
    hedges._budget._saved = -10.0
    clients = [await started(gateway)]
    await gateway.until(lambda: len(asked) == 1)
    hedges._budget._saved = 5.0
    gateway.parts.fleet.drain("r2" if gateway.engines.requests[0][0] == 0 else "r1")
    clients.append(await started(gateway))
    await gateway.until(lambda: len(asked) == 2)
    gateway.parts.fleet.resume("r1")
    gateway.parts.fleet.resume("r2")
    for replica in gateway.parts.router.pool:
        replica.num_in_flight += 2
    clients.append(await started(gateway))
    await gateway.until(lambda: len(asked) == 3)
    for replica in gateway.parts.router.pool:
        replica.num_in_flight -= 2
    client = await started(gateway)
    clients.append(client)
    gateway.gateway.drain()
    await gateway.until(lambda: len(asked) == 4)
    assert asked == [None, None, None, None]
    for client, gate in clients:
        gate.set()
        assert (await client.answer()).text == "Hello"
    assert {record.hedge for record in await gateway.until_recorded(4)} == {""}


async def test_a_lost_replica_ends_its_attempt_and_the_other_answers(launch):
    """Health and hedging do not get in each other's way."""
    gateway = await launch(engines=2, **ON)
    gate = asyncio.Event()
    gateway.script(never(), answer("Hello", gates={0: gate}))
    client = await gateway.start(chat(stream=True))
    await gateway.received(2)
    first, _ = gateway.engines.requests[0]
    for relay in tuple(gateway.parts.fleet.connection(f"r{first + 1}").relays):
        relay.lose()
    gate.set()
    assert (await client.answer()).text == "Hello"
    assert (await hedge_of(gateway))[0] == "won"


async def test_the_receipt_and_the_numbers_say_it(launch):
    """An operator sees who was asked too, who answered, and what it cost."""
    gateway = await launch(engines=2, **ON)
    gateway.script(never(), answer("Hello"))
    await gateway.post(chat(stream=True))
    _, replica, record = await hedge_of(gateway)
    transport = httpx.ASGITransport(gateway.gateway.control)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        receipt = (await client.get(f"/requests/{record.request_id}/receipt")).json()
        text = (await client.get("/metrics")).text
    assert (receipt["chosen"], receipt["hedge"]) == (replica, {"replica": replica, "outcome": "won"})
    [passed] = [one for one in receipt["candidates"] if one["replica"] != replica]
    assert passed["filtered"] == "already tried"
    assert 'warmlane_hedges_total{model="small-a",outcome="won"} 1.0' in text
    assert 'warmlane_attempts_lost_total{model="small-a"} 1.0' in text


async def test_a_bug_in_the_race_leaves_nothing_running(launch, monkeypatch):
    """What cannot be is told as such, once, and both attempts are over."""

    def broken(self, *_):
        raise ValueError("a bug")

    monkeypatch.setattr(Hedges, "_granted", broken)
    gateway = await launch(engines=2, **ON)
    gateway.script(never())
    got = await gateway.post(chat(stream=True))
    assert got.status == 500
    await (await gateway.received()).until_aborted()
    await gateway.until_quiet()


@pytest.mark.parametrize("wins", ["alone", "first", "second"])
async def test_no_race_leaves_a_ring(launch, wins):
    """As `test_rings.py`: what a request was made of is freed as it ends."""
    gateway = await launch(engines=2, **ON)
    gates = [asyncio.Event(), asyncio.Event()]
    replies = {
        "alone": [answer("Hello")],
        "first": [answer("Hello", gates={0: gates[0]}), never()],
        "second": [never(), answer("Hello", gates={0: gates[1]})],
    }[wins]
    gc.collect()
    gc.disable()
    try:
        gateway.script(*replies)
        client = await gateway.start(chat(stream=True))
        await gateway.received(len(replies))
        for gate in gates:
            gate.set()
        await client.answer()
        await hedge_of(gateway)
        client.close()
        assert [one for one in gc.get_objects() if isinstance(one, (Call, Relay, Story, Turn, Race, Racer))] == []
    finally:
        gc.enable()
