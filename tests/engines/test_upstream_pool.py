"""Which request gets which connection: reuse, bounds, expiry, the stale race, closing."""

import asyncio
import random

import pytest

from engines.contract import Fault
from engines.upstream import Upstream, UpstreamLimits
from tests.engines.upstream_kit import BODY, CHAT, STREAM, RecordingSink
from tests.scripted_engine import Cut, Framing, Reply, ScriptedEngine, answer, dropped, garbage, status, within_patience

EMPTY = (0, 0, 0, 0, 0)


@pytest.fixture
async def engine():
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def pool_of(engine):
    """Makes pools for the engine, and sees that each gave back everything."""
    pools = []

    def make(**limits):
        pools.append(Upstream.from_url(engine.url, limits=UpstreamLimits(**limits)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
        pool.close()
        assert pool.statistics() == EMPTY
        assert "closed" in repr(pool)


def send(pool, body=BODY):
    sink = RecordingSink()
    sink.exchange = pool.send(CHAT, [], body, sink)
    return sink


async def several_at_once(engine, pool, count):
    """`count` requests in flight together, each on its own connection; then all of them over."""
    before = len(engine.requests)
    gate = asyncio.Event()
    engine.script(*[answer("a", hold_head=gate) for _ in range(count)])
    sinks = [send(pool) for _ in range(count)]
    await engine.received(before + count)
    gate.set()
    for sink in sinks:
        await sink.over()
    return sinks


class TestReuse:
    async def test_requests_in_turn_share_one_connection(self, engine, pool_of):
        """A handshake per request would cost more than the request."""
        pool = pool_of()
        for _ in range(5):
            assert (await send(pool).over()).error is None
        assert engine.num_connections == 1
        assert pool.statistics() == (1, 1, 0, 0, 0)

    async def test_requests_at_once_have_a_connection_each(self, engine, pool_of):
        """HTTP/1.1 answers in order: sharing would queue one stream behind another."""
        pool = pool_of()
        await several_at_once(engine, pool, 3)
        assert {request.connection for request in engine.requests} == {1, 2, 3}
        assert pool.statistics() == (3, 3, 0, 0, 0)

    async def test_the_connection_used_last_is_used_next(self, engine, pool_of):
        """Few sockets stay hot, the others may expire."""
        pool = pool_of()
        await several_at_once(engine, pool, 3)
        await send(pool).over()
        last = engine.requests[-1].connection
        for _ in range(3):
            await send(pool).over()
        assert {request.connection for request in engine.requests[-3:]} == {last}

    async def test_a_connection_that_says_close_is_not_used_again(self, engine, pool_of):
        """The engine means it."""
        pool = pool_of()
        engine.script(Reply([b"x"], framing=Framing.LENGTH, keep_alive=False))
        await send(pool).over()
        assert pool.statistics() == EMPTY
        await send(pool).over()
        assert engine.num_connections == 2

    async def test_bytes_after_an_answer_end_the_connection(self, engine, pool_of):
        """They would be read as the next client's answer."""
        pool = pool_of()
        engine.script(
            Reply([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n\r\nevil"], framing=Framing.RAW)
        )
        sink = await send(pool).over()
        assert (sink.body, sink.error) == (b"a", None)
        assert pool.statistics() == EMPTY
        assert b"evil" not in (await send(pool).over()).body

    async def test_bytes_on_an_idle_connection_end_it(self, engine, pool_of):
        """A timeout notice, or worse: nobody asked."""
        pool = pool_of()
        gate = asyncio.Event()
        engine.script(
            Reply(
                [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", gate, b"HTTP/1.1 408 Late\r\n\r\n"],
                framing=Framing.RAW,
            )
        )
        await send(pool).over()
        assert pool.statistics().idle == 1
        gate.set()
        await engine.until_connections(0)
        assert pool.statistics() == EMPTY

    async def test_an_engine_that_closes_an_idle_connection_is_noticed(self, engine, pool_of):
        """The usual end of a keep-alive."""
        pool = pool_of()
        await send(pool).over()
        await engine.kill()
        await within_patience(_until(lambda: pool.statistics() == EMPTY))


async def _until(condition):
    while not condition():  # noqa: ASYNC110  (the pool has no event for its own books)
        await asyncio.sleep(0)


class TestIdle:
    async def test_no_more_than_max_idle_are_kept_and_the_oldest_go(self, engine, pool_of):
        """A burst must not leave its connections behind."""
        pool = pool_of(max_idle=2)
        await several_at_once(engine, pool, 5)
        assert pool.statistics() == (2, 2, 0, 0, 0)
        await engine.until_connections(2)

    async def test_none_are_kept_with_a_bound_of_zero(self, engine, pool_of):
        """The bound is reached at once."""
        pool = pool_of(max_idle=0)
        await send(pool).over()
        assert pool.statistics() == EMPTY

    async def test_an_idle_connection_expires_without_traffic(self, engine, pool_of):
        """The pool of a quiet replica holds nothing."""
        pool = pool_of(idle_keep_s=0.01)
        await several_at_once(engine, pool, 3)
        await engine.until_connections(0)
        assert pool.statistics() == EMPTY

    async def test_each_connection_has_its_own_time(self, engine, pool_of, monkeypatch):
        """A later one does not go with an earlier one."""
        pool = pool_of(idle_keep_s=50.0)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await several_at_once(engine, pool, 2)
        pool._idle._since = {connection: start - 60 + 20 * n for n, connection in enumerate(pool._idle._since)}
        pool._idle._expire()
        assert pool.statistics().idle == 1

    async def test_an_expired_connection_is_not_taken(self, engine, pool_of):
        """Even if its timer has not run yet: it would lose the race with the engine's."""
        pool = pool_of(idle_keep_s=50.0)
        await several_at_once(engine, pool, 2)
        pool._idle._since = dict.fromkeys(pool._idle._since, asyncio.get_running_loop().time() - 60)
        assert (await send(pool).over()).error is None
        assert engine.requests[-1].connection == 3
        assert pool.statistics() == (1, 1, 0, 0, 0)


class TestBounds:
    async def test_a_request_over_the_bound_waits_for_a_connection(self, engine, pool_of):
        """First come, first served, on the connection that becomes free."""
        pool = pool_of(max_connections=1, connect_s=30)
        gates = [asyncio.Event() for _ in range(3)]
        engine.script(*[answer("a", hold_head=gate) for gate in gates])
        sinks = [send(pool, body=b'{"n": %d}' % number) for number in range(3)]
        await engine.received(1)
        assert pool.statistics() == (1, 0, 1, 0, 2)
        for number, (gate, sink) in enumerate(zip(gates, sinks, strict=True)):
            request = await engine.received(number + 1)
            assert request.json == {"n": number}
            gate.set()
            assert (await sink.over()).error is None
        assert engine.num_connections == 1
        assert pool.statistics() == (1, 1, 0, 0, 0)

    async def test_a_waiting_request_gets_the_place_of_a_broken_connection(self, engine, pool_of):
        """A place is free however its holder ended."""
        for ending in (
            answer("a", cut_before=1),
            garbage(),
            Reply([b"x"], framing=Framing.LENGTH, keep_alive=False),
            dropped(Cut.RESET),
        ):
            pool = pool_of(max_connections=1, connect_s=30)
            engine.script(ending)
            sinks = [send(pool, STREAM), send(pool, STREAM)]
            await sinks[0].over()
            assert (await sinks[1].over()).error is None
            assert pool.statistics() == (1, 1, 0, 0, 0)

    async def test_too_many_waiting_is_pool_exhausted(self, engine, pool_of):
        """Waiting is bounded in number."""
        pool = pool_of(max_connections=1, max_waiting=2, connect_s=30)
        gate = asyncio.Event()
        engine.script(answer("a", hold_head=gate))
        sinks = [send(pool) for _ in range(4)]
        assert sinks[3].calls == []
        refused = await sinks[3].over()
        assert refused.error.fault is Fault.CONNECT
        assert "pool exhausted" in refused.error.message
        gate.set()
        for sink in sinks[:3]:
            assert (await sink.over()).error is None

    async def test_waiting_too_long_is_pool_exhausted(self, engine, pool_of):
        """Waiting is bounded in time, and the others are not disturbed."""
        pool = pool_of(max_connections=1, connect_s=0.3)
        gate = asyncio.Event()
        engine.script(answer("a", hold_head=gate))
        first = send(pool)
        await engine.received(1)
        refused = await send(pool).over()
        assert refused.error.fault is Fault.CONNECT
        assert "pool exhausted" in refused.error.message
        gate.set()
        assert (await first.over()).error is None
        assert pool.statistics() == (1, 1, 0, 0, 0)

    async def test_waiting_requests_fail_one_by_one_when_nothing_listens(self, engine, pool_of):
        """A place that could not be connected is a place for the next."""
        await engine.kill()
        pool = pool_of(max_connections=1)
        sinks = [send(pool) for _ in range(4)]
        assert [(await sink.over()).error.fault for sink in sinks] == [Fault.CONNECT] * 4
        assert pool.statistics() == EMPTY


class TestStaleRace:
    @pytest.mark.parametrize("cut", list(Cut))
    async def test_a_reused_connection_that_closes_is_retried_on_a_fresh_one(self, engine, pool_of, cut):
        """The engine's keep-alive ended as the request was written: nobody needs to know."""
        pool = pool_of()
        await send(pool).over()
        engine.script(dropped(cut), answer("again"))
        sink = await send(pool).over()
        assert sink.error is None
        assert b"again" in sink.body
        assert sink.calls.count("head") == 1
        assert [request.connection for request in engine.requests] == [1, 1, 2]
        assert engine.requests[1].body == engine.requests[2].body == BODY
        assert pool.statistics() == (1, 1, 0, 0, 0)

    async def test_it_is_retried_once(self, engine, pool_of):
        """After that somebody else decides."""
        pool = pool_of()
        await send(pool).over()
        engine.script(dropped(), dropped(), answer("never"))
        assert (await send(pool).over()).error.fault is Fault.STALE
        assert len(engine.requests) == 3

    async def test_the_retry_does_not_take_another_idle_connection(self, engine, pool_of):
        """If one was closed as idle, the others most likely were too."""
        pool = pool_of()
        await several_at_once(engine, pool, 2)
        engine.script(dropped(), answer("again"))
        await send(pool).over()
        assert engine.requests[-1].connection == 3

    async def test_the_retry_keeps_its_place_at_the_bound(self, engine, pool_of):
        """Those who wait came later."""
        pool = pool_of(max_connections=1, connect_s=30)
        await send(pool).over()
        engine.script(dropped(), answer("again"), answer("later"))
        sinks = [send(pool), send(pool)]
        assert b"again" in (await sinks[0].over()).body
        assert b"later" in (await sinks[1].over()).body

    async def test_a_retry_that_cannot_connect_is_a_connect_error(self, engine, pool_of):
        """The engine is gone altogether."""
        pool = pool_of()
        await send(pool).over()
        gate = asyncio.Event()
        engine.script(Reply([gate], framing=Framing.RAW))
        sink = send(pool)
        await engine.received(2)
        await engine.kill()
        assert (await sink.over()).error.fault is Fault.CONNECT

    async def test_an_abort_during_the_retry_is_silent(self, engine, pool_of):
        """It is the same exchange as before."""
        pool = pool_of()
        await send(pool).over()
        gate = asyncio.Event()
        engine.script(dropped(), answer("again", hold_head=gate))
        sink = send(pool)
        request = await engine.received(3)
        sink.exchange.abort()
        await request.until_aborted()
        assert sink.calls == []
        assert pool.statistics() == EMPTY


class TestClosing:
    async def test_what_is_in_flight_fails_once(self, engine, pool_of):
        """Carried ones as reset; waiting and connecting ones as never sent."""
        pool = pool_of(max_connections=2, connect_s=30)
        gate = asyncio.Event()
        engine.script(answer("a", "b", gates={2: gate}))
        carried = send(pool, STREAM)
        await carried.has(b'"a"')
        connecting, waiting = send(pool), send(pool)
        assert pool.statistics() == (1, 0, 1, 1, 1)
        pool.close()
        assert pool.statistics() == EMPTY
        assert (await carried.over()).error.fault is Fault.RESET
        assert (await connecting.over()).error.fault is Fault.CONNECT
        assert (await waiting.over()).error.fault is Fault.CONNECT
        await engine.until_connections(0)
        assert [sink.num_endings for sink in (carried, connecting, waiting)] == [1, 1, 1]

    async def test_a_send_after_closing_fails(self, engine, pool_of):
        """By callback, like every failure."""
        pool = pool_of()
        pool.close()
        sink = send(pool)
        assert sink.calls == []
        assert (await sink.over()).error.fault is Fault.CONNECT
        assert engine.requests == []

    async def test_closing_inside_a_callback(self, engine, pool_of):
        """A gateway that shuts down because of what it just read."""
        pool = pool_of()
        sink = send(pool, STREAM)
        sink.on_call = lambda name: pool.close() if name == "data" else None
        assert (await sink.over()).error.fault is Fault.RESET
        assert sink.calls == ["head", "data", "fail"]

    async def test_an_answer_that_ends_as_the_pool_closes_is_whole(self, engine, pool_of):
        """`on_end` is final, and its connection is not kept."""
        pool = pool_of()
        sink = send(pool)
        sink.on_call = lambda name: pool.close() if name == "end" else None
        assert (await sink.over()).error is None
        assert pool.statistics() == EMPTY


async def test_a_new_request_from_inside_the_last_callback(engine, pool_of):
    """A retry is sent where the failure is told, and a next turn where the answer ends."""
    pool = pool_of()
    engine.script(dropped(), answer("second"), answer("third"))
    sinks = [RecordingSink(), RecordingSink(), RecordingSink()]
    sinks[0].on_call = lambda name: pool.send(CHAT, [], BODY, sinks[1]) if name == "fail" else None
    sinks[1].on_call = lambda name: pool.send(CHAT, [], BODY, sinks[2]) if name == "end" else None
    pool.send(CHAT, [], BODY, sinks[0])
    assert b"third" in (await sinks[2].over()).body
    assert [request.connection for request in engine.requests] == [1, 2, 2]


async def test_a_crowd_with_every_kind_of_ending_leaves_nothing(engine, pool_of):
    """200 requests, a few connections, endings and leavings at random: each is told once, the books are empty."""
    pool = pool_of(max_connections=5, max_waiting=250, max_idle=3, connect_s=30)
    rng = random.Random(11)
    endings = [
        answer("a", "b"),
        answer("a", cut_before=2, cut=Cut.RESET),
        answer("a", cut_before=1),
        dropped(),
        garbage(),
        status(500),
    ]
    engine.script(*rng.choices(endings, k=260))
    sinks = [send(pool, STREAM) for _ in range(200)]
    leavers = rng.sample(sinks, 50)
    for sink in leavers:
        chosen = rng.choice(["head", "data", "flush", None])
        if chosen is None:
            sink.exchange.abort()
        else:
            sink.on_call = lambda name, sink=sink, chosen=chosen: sink.exchange.abort() if name == chosen else None
    for sink in sinks:
        if sink not in leavers:
            await sink.over()
    await within_patience(
        _until(lambda: pool.statistics().in_use + pool.statistics().connecting + pool.statistics().waiting == 0)
    )
    assert {sink.num_endings for sink in sinks if sink not in leavers} == {1}
    assert {sink.num_endings for sink in leavers} <= {0, 1}
    assert pool.statistics().open <= 3
    await engine.until_idle()
