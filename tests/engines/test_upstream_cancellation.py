"""A client that leaves: the exchange aborted at every phase, and twice."""

import asyncio

import pytest

from engines.upstream import Upstream, UpstreamLimits
from tests.engines.upstream_kit import BODY, CHAT, STREAM, RecordingSink, raw_server
from tests.scripted_engine import Framing, Reply, ScriptedEngine, answer, within_patience

EMPTY = (0, 0, 0, 0, 0)


@pytest.fixture
async def engine():
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def pool(engine):
    upstream = Upstream.from_url(engine.url, limits=UpstreamLimits(max_connections=1, connect_s=30))
    yield upstream
    upstream.close()
    assert upstream.statistics() == EMPTY


def send(pool, body=STREAM):
    sink = RecordingSink()
    sink.exchange = pool.send(CHAT, [], body, sink)
    return sink


async def assert_usable(pool):
    """The pool still answers, in its only place."""
    sink = send(pool, BODY)
    await sink.over()
    assert sink.error is None
    assert pool.statistics() == (1, 1, 0, 0, 0)


async def test_at_once_while_connecting(engine, pool):
    """Nothing was sent; nothing is told."""
    sink = send(pool)
    sink.exchange.abort()
    assert pool.statistics() == EMPTY
    await assert_usable(pool)
    assert sink.calls == []
    assert len(engine.requests) == 1


@pytest.mark.parametrize("num_turns", range(8))
async def test_at_any_turn_of_the_loop_while_connecting(engine, pool, num_turns):
    """Also between the connection being made and its task hearing of it."""
    sink = send(pool)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    sink.exchange.abort()
    calls = list(sink.calls)
    await assert_usable(pool)
    assert sink.calls == calls
    assert engine.num_open_connections == 1


async def test_while_waiting_for_a_connection(engine, pool):
    """Its place in the queue is free, and it never reaches the engine."""
    gate = asyncio.Event()
    engine.script(answer("a", hold_head=gate))
    first, waiting, last = send(pool), send(pool), send(pool)
    await engine.received(1)
    waiting.exchange.abort()
    assert pool.statistics().waiting == 1
    gate.set()
    await first.over()
    await last.over()
    assert waiting.calls == []
    assert len(engine.requests) == 2


async def test_before_the_first_byte_of_the_answer(engine, pool):
    """The engine is told by the close: prefill is not worth finishing (P08)."""
    engine.script(answer("a", hold_head=asyncio.Event()))
    sink = send(pool)
    request = await engine.received(1)
    sink.exchange.abort()
    await request.until_aborted()
    assert sink.calls == []
    await assert_usable(pool)


async def test_before_the_first_byte_on_a_reused_connection(engine, pool):
    """What looks stale is not retried when its caller has left."""
    await assert_usable(pool)
    engine.script(answer("a", hold_head=asyncio.Event()))
    sink = send(pool)
    request = await engine.received(2)
    sink.exchange.abort()
    await request.until_aborted()
    assert len(engine.requests) == 2
    await assert_usable(pool)


async def test_in_mid_stream(engine, pool):
    """Everything the client will not read stays ungenerated."""
    engine.script(answer("a", "b", gates={2: asyncio.Event()}))
    sink = send(pool)
    await sink.has(b'"a"')
    calls = list(sink.calls)
    sink.exchange.abort()
    await (await engine.received(1)).until_aborted()
    await assert_usable(pool)
    assert sink.calls == calls


@pytest.mark.parametrize("name", ["head", "data", "flush"])
async def test_from_inside_a_callback(engine, pool, name):
    """Not even the rest of the same read is delivered."""
    engine.script(Reply([b"a", b"b", asyncio.Event()]))
    sink = RecordingSink()
    sink.on_call = lambda called: sink.exchange.abort() if called == name else None
    sink.exchange = pool.send(CHAT, [], BODY, sink)
    await (await engine.received(1)).until_aborted()
    assert sink.calls[-1] == name
    assert sink.calls.count(name) == 1
    await assert_usable(pool)


async def test_from_inside_the_last_data_of_an_answer(engine, pool):
    """The answer was complete in that very read; the abort came first."""
    engine.script(Reply([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"], framing=Framing.RAW))
    sink = RecordingSink()
    sink.on_call = lambda called: sink.exchange.abort() if called == "data" else None
    sink.exchange = pool.send(CHAT, [], BODY, sink)
    await engine.received(1)
    await engine.until_connections(0)
    assert sink.calls == ["head", "data"]
    await assert_usable(pool)


async def test_while_paused(engine, pool):
    """A slow client may also leave."""
    engine.script(Reply([b"x" * 1_000_000] * 20, framing=Framing.LENGTH))
    sink = send(pool)
    sink.on_call = lambda _name: sink.exchange.pause()
    await sink.has(b"x")
    sink.exchange.abort()
    sink.exchange.resume()
    await (await engine.received(1)).until_aborted()
    await assert_usable(pool)


async def test_while_the_request_is_still_being_written():
    """The rest of a long prompt is not sent."""

    async def read_nothing(_reader, _writer):
        await asyncio.Event().wait()

    async with raw_server(read_nothing) as port:
        upstream = Upstream("127.0.0.1", port)
        sink = send(upstream, b"x" * 20_000_000)
        while upstream.statistics().in_use == 0:  # noqa: ASYNC110  (the pool has no event for its own books)
            await asyncio.sleep(0)
        sink.exchange.abort()
        assert upstream.statistics() == EMPTY
        await asyncio.sleep(0)
        assert sink.calls == []
        upstream.close()


async def test_twice_and_after_the_end_is_harmless(engine, pool):
    """Whoever cleans up need not know what has already happened."""
    sink = send(pool)
    await sink.over()
    sink.exchange.abort()
    sink.exchange.abort()
    sink.exchange.pause()
    sink.exchange.resume()
    assert pool.statistics() == (1, 1, 0, 0, 0)
    failed = send(pool)
    failed.exchange.abort()
    failed.exchange.abort()
    await assert_usable(pool)


async def test_after_a_refusal_was_decided_and_before_it_is_told(engine):
    """The refusal comes a turn later; by then nobody listens."""
    upstream = Upstream.from_url(engine.url, limits=UpstreamLimits(max_connections=0, max_waiting=0))
    sink = send(upstream)
    sink.exchange.abort()
    told = send(upstream)
    await within_patience(told.over())
    assert sink.calls == []
    upstream.close()
