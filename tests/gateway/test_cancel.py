"""Clients that leave: the engine is told to stop, everything held is given back, one record says so (P08, P09, P37)."""

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from gateway.settings import TimeoutSection
from tests.gateway.client import CHAT, COMPLETIONS
from tests.gateway.kit import chat, completion
from tests.gateway.stream_replies import ROLE, streamed, token
from tests.scripted_engine import Cut, Reply, answer, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
LEAVINGS = {
    "close": lambda client: client.close(),
    "half close": lambda client: client.half_close(),
    "reset": lambda client: client.reset(),
}
leaving = pytest.mark.parametrize("leave", LEAVINGS.values(), ids=LEAVINGS)
surfaces = pytest.mark.parametrize(
    ("path", "body"), [(CHAT, chat), (COMPLETIONS, completion)], ids=["chat", "completions"]
)


def never():
    """Something that does not happen."""
    return asyncio.Event()


@both_ways
@leaving
@surfaces
async def test_leaving_an_unstreamed_call_aborts_the_engine(launch, leave, path, body):
    """P08: however the client goes, the engine stops, the seat is free and the record says that the client left."""
    gateway = await launch()
    gateway.script(answer("x", gates={0: never()}))
    client = await gateway.start(body(), path=path)
    request = await gateway.received()
    leave(client)
    await request.until_aborted()
    await gateway.until_quiet()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status, record.replica) == ("client_gone", 499, "r1")
    assert gateway.parts.router.pool.get("r1").breaker._num_faults == 0


@both_ways
@leaving
async def test_leaving_the_queue_removes_the_request(launch, leave):
    """P08: a request that waits for a seat is gone at once, was never sent, and those behind it move up."""
    gateway = await launch(seats=1)
    gate = asyncio.Event()
    gateway.script(answer("first", gates={0: gate}), answer("last"))
    first = await gateway.start(chat())
    await gateway.received()
    queued = await gateway.start(chat())
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    last = await gateway.start(chat())
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    leave(queued)
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    gate.set()
    assert (await first.answer()).text == "first"
    assert (await last.answer()).text == "last"
    assert len(gateway.engines.requests) == 2
    outcomes = [(record.outcome, record.attempts) for record in await gateway.until_recorded(3)]
    assert ("client_gone", 0) in outcomes


@both_ways
@leaving
async def test_a_slot_is_free_at_once_when_its_client_left(launch, leave):
    """P08: with a cap of one the tenant's next request is admitted, not refused."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"concurrency": {"interactive": 1}}')
    gateway.script(answer("x", gates={0: never()}), answer("next"))
    client = await gateway.start(chat())
    await gateway.received()
    assert (await gateway.post(chat())).code == "concurrency"
    leave(client)
    await gateway.until_quiet()
    assert (await gateway.post(chat())).text == "next"


@both_ways
@leaving
async def test_an_abandoned_stream_is_recorded_with_what_it_had(launch, leave):
    """P37, thin: the record says who left, how many chunks there were, and comes exactly once."""
    gateway = await launch()
    gateway.script(answer("a", "b", "c", gates={3: never()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"b"')
    leave(client)
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.num_chunks, record.attempts) == ("client_gone", 2, 1)
    assert record.ttft_s is not None
    assert record.project == gateway.project
    decision = gateway.parts.recorder.find(record.request_id)[1]
    told = (record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.is_estimated)
    assert told == (decision.prompt_tokens, decision.hit_tokens, 2, True)


async def test_usage_so_far_is_better_than_an_estimate(launch):
    """An engine that counts on every chunk has told the prompt; the output is at least the chunks that came."""
    gateway = await launch()
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    gateway.script(streamed(ROLE, token("a", usage=usage), token("b"), never()))
    client = await gateway.start(chat(stream=True))
    await client.until('"b"')
    client.close()
    [record] = await gateway.until_recorded(1)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (9, 4, 2)
    assert record.is_estimated
    gateway.parts.recorder.flush()
    assert 'source="reported"' not in gateway.gateway.metrics.text().decode()


async def test_leaving_during_prefill_is_recorded_with_the_prompt_alone(launch):
    """P37: nothing came yet, and still there is a record, and the prompt is charged."""
    gateway = await launch()
    gateway.script(answer("a", gates={1: never()}))
    client = await gateway.start(chat(stream=True))
    await gateway.received()
    client.close()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.num_chunks, record.ttft_s) == ("client_gone", 0, None)
    decision = gateway.parts.recorder.find(record.request_id)[1]
    assert (record.prompt_tokens, record.completion_tokens, record.is_estimated) == (decision.prompt_tokens, 0, True)
    assert record.charged_tokens == decision.prompt_tokens


@both_ways
async def test_a_client_that_left_before_its_body_was_whole_made_no_request(launch):
    """Half a body is no request: no record, nothing held, nothing sent."""
    gateway = await launch()
    client = await gateway.connect()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: 500\r\n\r\n"
    client.write(head.encode() + b'{"model": ')
    await gateway.until(lambda: len(gateway.server.server_state.connections) == 1)
    client.close()
    await gateway.until(lambda: not gateway.server.server_state.connections)
    await gateway.until(lambda: not gateway.server.server_state.tasks)
    assert gateway.records == []
    assert gateway.engines.requests == []


def _endings():
    return {
        "success": lambda: [answer("ok")],
        "engine's 400": lambda: [status(400)],
        "engine's 500": lambda: [status(500)] * 2,
        "engine's 429": lambda: [status(429, headers={"retry-after": "0"})] * 2,
        "timeout": lambda: [Reply([never()])],
        "cut": lambda: [Reply([Cut.RESET])] * 2,
        "not an answer": lambda: [Reply([b"data: {]\n\n"])] * 2,
    }


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("ending", _endings())
@surfaces
async def test_every_ending_gives_its_slot_back(launch, ending, stream, path, body):
    """P09: twenty rounds of an ending under a cap of two, then two requests at once pass."""
    hasty = {"first_token_s": 0.02, "total_s": 0.02} if ending == "timeout" else {}
    gateway = await launch(timeouts=hasty, retries={"budget_ratio": 1.0})
    replica = gateway.parts.router.pool.get("r1")
    await gateway.limit(gateway.project, '{"concurrency": {"interactive": 2}}')
    for _ in range(20):
        gateway.script(*_endings()[ending]()[:1])
        got = await gateway.post(body(stream=stream), path=path)
        assert got.status != 429 or got.code == "replica_busy"
        await gateway.until_quiet()
        replica.breaker.__init__()  # its health is not the matter here
    calm = gateway.parts.settings.model_copy(update={"timeouts": TimeoutSection()})
    object.__setattr__(gateway.parts, "settings", calm)  # the last two take their time
    gates = [asyncio.Event(), asyncio.Event()]
    gateway.script(*(answer("ok", hold_head=gate) for gate in gates))
    before = len(gateway.engines.requests)
    clients = [await gateway.start(body(), path=path) for _ in gates]
    await gateway.received(before + 2)
    assert gateway.in_flight["reservations"] == 2
    for gate in gates:
        gate.set()
    for client in clients:
        await client.answer()


@surfaces
@pytest.mark.parametrize("moment", ["before", "within", "queued"])
async def test_every_abort_gives_its_slot_back(launch, moment, path, body):
    """P09: twenty clients leave before the stream, in it or in the queue; then two requests at once pass."""
    gateway = await launch(seats=2)
    await gateway.limit(gateway.project, '{"concurrency": {"interactive": 3}}')
    holders = []
    if moment == "queued":
        gateway.script(answer("held", hold_head=(gate := asyncio.Event())), answer("held", hold_head=gate))
        holders = [await gateway.start(body(), path=path) for _ in range(2)]
        await gateway.received(2)
    for _ in range(20):
        sent = len(gateway.engines.requests)
        gateway.script(*([] if holders else [answer("a", "b", gates={0 if moment == "before" else 2: never()})]))
        client = await gateway.start(body(stream=True), path=path)
        if moment == "within":
            await client.until('"a"')
        elif moment == "before":
            await gateway.received(sent + 1)
        else:
            await gateway.until(lambda: gateway.in_flight["queued"] == 1)
        client.close()
        await gateway.until(lambda: gateway.in_flight["reservations"] == len(holders))
    if holders:
        gate.set()
        assert [(await holder.answer()).text for holder in holders] == ["held", "held"]
    both = await asyncio.gather(*(gateway.post(body(), path=path) for _ in range(2)))
    assert [got.status for got in both] == [200, 200]


async def test_a_bug_of_ours_gives_the_slot_back_and_is_told_as_one(launch, monkeypatch):
    """P09: an exception nobody expected is a 500 without its words, and nothing stays held."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"concurrency": {"interactive": 1}}')

    def broken(*_, **__):
        raise KeyError("secret detail")

    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(gateway.parts.router.pool, "lease", broken)
        for _ in range(20):
            got = await gateway.post(chat())
            assert (got.status, got.code) == (500, "internal_error")
            assert b"secret" not in got.body
    assert [line["event"] for line in logged] == ["request.failed"] * 20
    assert (await gateway.post(chat())).status == 200
    assert [record.outcome for record in gateway.records[:20]] == ["bug"] * 20


async def test_a_project_without_its_key_gives_its_slots_back(launch):
    """P09: the key is revoked while its stream is open; the stream ends as it would, and the slot comes back."""
    gateway = await launch()
    [key] = (await gateway.store.keys()).items
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    await gateway.store.revoke_key(key.id)
    await gateway.parts.directory.refresh()
    assert (await gateway.post(chat())).status == 401
    gate.set()
    assert (await client.answer()).is_done
    await gateway.until_quiet()


@both_ways
@pytest.mark.parametrize("seed", [1, 2])
async def test_two_hundred_clients_that_leave_whenever_they_like(launch, seed):
    """Whenever each leaves, nothing is held in the end, and each request that came whole has exactly one record."""
    choose = random.Random(seed)
    gateway = await launch(engines=2, seats=6)
    moments = ["half body", "at once", "when sent", "in queue", "first token", "at the end"]
    gate = asyncio.Event()
    for engine in gateway.engines.all:
        engine.fallback = answer("a", "b", "c", gates={2: gate})

    async def come_and_go(number):
        nonlocal num_whole
        moment = choose.choice(moments)
        client = await gateway.connect()
        if moment == "half body":
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: 99\r\n\r\n"
            )
            client.write(head.encode() + b"{")
            await client.writer.drain()
            client.close()
            return False
        num_whole += 1
        client.send(chat(f"{number}", stream=choose.random() < 0.7), key=gateway.key)
        await client.writer.drain()
        if moment == "when sent":
            await gateway.until(lambda: gateway.in_flight["requests"] > 0)
        elif moment == "in queue":
            await gateway.until(lambda: gateway.in_flight["queued"] > 0 or gate.is_set())
        elif moment == "first token":
            piece = asyncio.ensure_future(client.piece())
            await asyncio.wait([piece, asyncio.ensure_future(gate.wait())], return_when=asyncio.FIRST_COMPLETED)
            piece.cancel()
            await asyncio.gather(piece, return_exceptions=True)
        elif moment == "at the end":
            assert (await client.answer()).is_complete
        choose.choice([client.close, client.reset, client.half_close])()
        return moment == "at the end"

    num_whole = 0
    comers = [asyncio.ensure_future(come_and_go(number)) for number in range(200)]
    await gateway.until(lambda: gateway.in_flight["queued"] > 20)
    gate.set()
    num_answered = sum(await asyncio.gather(*comers))
    await gateway.until_quiet()
    await gateway.until(lambda: not gateway.server.server_state.tasks)
    for engine in gateway.engines.all:
        await engine.until_idle()
    assert num_answered <= len(gateway.records) <= num_whole  # a reset may overtake its request
    assert len({record.request_id for record in gateway.records}) == len(gateway.records)
    assert {record.outcome for record in gateway.records} == {"finished", "client_gone"}
