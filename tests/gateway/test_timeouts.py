"""Three waits with three limits, and a total (case P07)."""

import asyncio
import socket

import pytest

from tests.gateway.kit import chat, now
from tests.scripted_engine import answer

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


async def test_a_slow_first_token_is_not_judged_by_the_idle_timeout(launch, quick_commit):
    """P07 B: reading a prompt may take longer than the gap between two tokens may."""
    gateway = await launch(timeouts={"first_token_s": 60, "idle_s": 0.1, "keepalive_s": 0.04})
    gate = asyncio.Event()
    gateway.script(answer("slow", gates={1: gate}))
    client = await gateway.start(chat(stream=True))
    while (await client.until(": keep-alive")).count(b": keep-alive") < 5:
        await client.piece()
    gate.set()
    assert (await client.answer()).is_done


@both_ways
async def test_a_stall_between_tokens_ends_the_stream_and_aborts_the_engine(launch):
    """P07 C: after the idle timeout the client gets an error event, and the engine is told to stop."""
    gateway = await launch(timeouts={"first_token_s": 60, "idle_s": 0.3})
    gateway.script(answer("a", "b", "c", gates={3: asyncio.Event()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"b"')
    got = await client.answer()
    assert (got.error["code"], got.code, got.is_done) == ("504", "replica_timeout", False)
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status, record.num_chunks) == ("timed_out", 504, 2)


@both_ways
async def test_no_first_token_in_time_is_504(launch):
    """P07: before anything was sent the timeout is a status, and it is not tried again elsewhere."""
    gateway = await launch(engines=2, timeouts={"first_token_s": 0.1})
    gateway.script(answer("late", gates={1: asyncio.Event()}))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.code) == (504, "replica_timeout")
    await (await gateway.received()).until_aborted()
    assert len(gateway.engines.requests) == 1


async def test_an_unstreamed_answer_has_only_the_total_to_keep(launch):
    """P07: neither first token nor idle timeout can be seen in an answer that comes whole."""
    gateway = await launch(timeouts={"first_token_s": 0.02, "idle_s": 0.02, "total_s": 0.2})
    gateway.script(answer("x", gates={0: asyncio.Event()}))
    began = now()
    got = await gateway.post(chat())
    assert now() - began >= 0.2
    assert (got.status, got.code) == (504, "replica_timeout")


async def test_the_total_ends_a_stream_that_never_stops(launch):
    """P07: tokens come in time for ever, and still there is an end."""
    gateway = await launch(timeouts={"total_s": 0.2})
    gateway.script(answer("a", gates={2: asyncio.Event()}))
    got = await gateway.post(chat(stream=True))
    assert (got.text, got.error["code"]) == ("a", "504")


async def test_a_replica_that_does_not_accept_is_left_after_the_connect_timeout(launch):
    """P07 D: the request fails over and the client sees one answer."""
    gateway = await launch(engines=2, timeouts={"connect_s": 0.1, "first_token_s": 60})
    text = gateway.prompt_for("r1")
    await gateway.engine.kill()
    with socket.create_server(("127.0.0.1", gateway.engine.port), backlog=0) as deaf:
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        began = now()
        got = await gateway.post(chat(text, stream=True))
        for filler in fillers:
            filler.close()
    assert now() - began >= 0.1
    assert got.is_done
    [record] = await gateway.until_recorded(1)
    assert (record.attempts, record.replica) == (2, "r2")
