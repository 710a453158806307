"""Stopping a real gateway process with streams open, work queued and connections kept alive (case P45)."""

import asyncio
import signal
import sys

import pytest

from tests.gateway.client import CHAT
from tests.gateway.gateway_process import gateway_process
from tests.gateway.kit import chat, now
from tests.scripted_engine import ScriptedEngine, answer, within_patience

pytestmark = pytest.mark.e2e


def held(gate):
    """A stream that stops after its first token until the gate opens."""
    return answer("a", "b", gates={2: gate})


async def open_streams(process, count, *, path=CHAT):
    """Clients that have seen their first token."""
    clients = [await process.start(chat(f"{number}", stream=True), path=path) for number in range(count)]
    for client in clients:
        await client.until('"a"')
    return clients


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_open_streams_end_well_while_everything_else_is_turned_away(number):
    """P45: readiness first, then the listener; queued work is refused; streams go on to their end; exit 0."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=30, seats=5) as process:
        gate = asyncio.Event()
        engine.default = held(gate)
        idle = await process.connect()
        idle.send(None, path="/health/live", method="GET")
        await idle.answer()
        streams = await open_streams(process, 5)
        queued = await process.start(chat("queued"))
        await process.until_read()
        process.stop(number)
        seen = [await process.readiness()]
        while seen[-1] is not None:
            seen.append(await process.readiness())
        assert 503 in seen  # red while it still listened
        refused = await queued.answer()
        assert (refused.status, refused.code, refused.header("retry-after")) == (503, "stopping", "1")
        assert await idle.until_closed() == b""
        assert engine.num_running == 5
        gate.set()
        for client in streams:
            got = await client.answer()
            assert (got.text, got.is_done, got.is_complete) == ("ab", True, True)
            assert await client.until_closed() == b""
        assert await process.exit_code() == 0
        outcomes = [record["outcome"] for record in process.records]
        assert sorted(outcomes) == ["finished"] * 5 + ["stopped"]


async def test_a_request_on_a_kept_alive_connection_is_refused_and_the_connection_closed():
    """P45: between the red readiness and the end new work gets 503, and a kept-alive connection ends with its answer."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=30) as process:
        gate = asyncio.Event()
        engine.default = held(gate)
        [stream] = await open_streams(process, 1)
        engine.script(answer("a", "b", gates={0: gate}))
        kept = await process.start(chat("unstreamed"))
        await engine.received(2)
        process.stop()
        while await process.readiness() is not None:
            pass
        gate.set()
        got = await kept.answer()
        assert (got.text, got.header("connection")) == ("ab", "close")
        assert await kept.until_closed() == b""
        assert (await stream.answer()).is_done
        assert await process.exit_code() == 0


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?way=asgi"], ids=["hot", "asgi"])
async def test_at_the_end_of_grace_every_stream_gets_an_error_event(path):
    """P45: the rest are told 503 in the stream, the engine is told to abort, every record is written, exit 0."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=0.2) as process:
        engine.default = held(asyncio.Event())
        streams = await open_streams(process, 5, path=path)
        began = now()
        process.stop()
        for client in streams:
            got = await client.answer()
            assert (got.text, got.error["code"], got.code) == ("a", "503", "shutting_down")
            assert (got.is_done, got.is_complete) == (False, True)
        await engine.until_idle()
        assert all(request.aborted.is_set() for request in engine.requests)
        assert await process.exit_code() == 0
        assert now() - began < 10
        assert [(record["outcome"], record["num_chunks"]) for record in process.records] == [("stopped", 1)] * 5


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?way=asgi"], ids=["hot", "asgi"])
async def test_a_second_signal_ends_the_grace_at_once(path):
    """P45: streams that would have had half a minute get their error event now; records are written; exit 0."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=30) as process:
        engine.default = held(asyncio.Event())
        streams = await open_streams(process, 3, path=path)
        began = now()
        process.stop()
        while await process.readiness() is not None:
            pass
        process.stop()
        for client in streams:
            got = await client.answer()
            assert (got.error["code"], got.is_done, got.is_complete) == ("503", False, True)
        assert await process.exit_code() == 0
        assert now() - began < 8
        assert [record["outcome"] for record in process.records] == ["stopped"] * 3


async def test_without_work_it_stops_at_once_and_logs_nothing_but_that():
    """P45: no stream, no wait."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=30) as process:
        began = now()
        process.stop()
        assert await process.exit_code() == 0
        assert now() - began < 10
        assert {line["event"] for line in process.lines} <= {"replica.moved", "gateway.draining"}


async def test_a_gateway_that_comes_back_to_a_lost_store_makes_no_new_one(tmp_path):
    """D27: an empty store in its place would answer 401 to everybody and hide that the old one is gone."""
    command = ["-m", "gateway.process", "--home", str(tmp_path), "--control", str(tmp_path / "c.sock"), "--port", "0"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    _, said = await within_patience(process.communicate())
    path = tmp_path / "warmlane.sqlite3"
    assert said.decode().splitlines()[-1] == f"store lost: {path} is not there, restore it or restart"
    assert process.returncode == 1
    assert not path.exists()


async def test_a_client_that_never_reads_does_not_outlast_the_grace():
    """P45: the end of grace is the end, whoever holds a socket."""
    async with ScriptedEngine() as engine, gateway_process(engine, drain_s=0.2) as process:
        engine.default = answer(*["x" * 60_000] * 300)
        client = await process.start(chat(stream=True))
        client.reader._limit = 1
        client.writer.transport.pause_reading()
        await engine.received()
        process.stop()
        assert await process.exit_code() == 0
        assert [record["outcome"] for record in process.records] in (["stopped"], ["finished"])
        client.close()
