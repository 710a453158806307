"""One request through the pool, over real sockets: every way an answer can end."""

import asyncio
import socket

import pytest

from engines.contract import Fault, ReplicaError
from engines.upstream import Upstream, UpstreamLimits
from tests.engines.upstream_kit import BODY, CHAT, STREAM, RecordingSink, raw_server
from tests.scripted_engine import Cut, Framing, Reply, ScriptedEngine, answer, dropped, garbage, status, within_patience


@pytest.fixture
async def engine():
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def upstream(engine):
    pool = Upstream.from_url(engine.url, limits=UpstreamLimits(max_head_bytes=4096, max_fetch_bytes=1000))
    yield pool
    pool.close()
    assert pool.statistics() == (0, 0, 0, 0, 0)


def raw(*steps, **options):
    return Reply(list(steps), framing=Framing.RAW, **options)


async def ask(upstream, body=BODY, sink=None):
    sink = sink or RecordingSink()
    upstream.send(CHAT, [], body, sink)
    return await sink.over()


class TestAnswers:
    async def test_a_stream_arrives_unframed_and_ends_once(self, engine, upstream):
        """The usual case: head first, data, flushes, one end."""
        engine.script(answer("Hel", "lo"))
        sink = await ask(upstream, STREAM)
        assert sink.status == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in sink.headers
        assert b"Hel" in sink.body
        assert sink.body.endswith(b"data: [DONE]\n\n")
        assert sink.calls[0] == "head"
        assert sink.calls[-1] == "end"
        assert sink.num_endings == 1

    async def test_the_engine_receives_exactly_what_was_sent(self, engine, upstream):
        """Path, headers and body as given, the length exact."""
        sink = RecordingSink()
        upstream.send("/v1/completions", [(b"x-request-id", b"a-1")], BODY, sink)
        request = await engine.received(1)
        await sink.over()
        assert (request.method, request.path, request.body) == ("POST", "/v1/completions", BODY)
        assert request.header("x-request-id") == "a-1"
        assert request.header("content-length") == str(len(BODY))
        assert request.header("host") == f"127.0.0.1:{engine.port}"
        assert request.header("accept-encoding") == "identity"

    async def test_no_packed_answer_is_asked_for(self, engine, upstream):
        """An engine that packs when offered would hide its usage from the meter (P03)."""
        engine.script(answer("plain", gzip="offered"))
        assert b"plain" in (await ask(upstream)).body

    async def test_a_body_that_ends_with_the_connection(self, engine, upstream):
        """HTTP/1.0 servers end a body by closing."""
        engine.script(raw(b"HTTP/1.0 200 OK\r\n\r\n", b"one ", b"two", Cut.CLOSE))
        sink = await ask(upstream)
        assert (sink.body, sink.error) == (b"one two", None)
        assert upstream.statistics().open == 0

    @pytest.mark.parametrize("code", [400, 404, 429, 500, 503])
    async def test_an_error_status_is_an_answer(self, engine, upstream, code):
        """Whose fault a status is, is decided where its body is read."""
        engine.script(status(code, headers={"retry-after": "3"}))
        sink = await ask(upstream)
        assert (sink.status, sink.error) == (code, None)
        assert (b"retry-after", b"3") in sink.headers
        assert upstream.statistics().idle == 1

    async def test_a_base_path_stands_before_every_path(self, engine):
        """Hosted providers serve under a prefix."""
        pool = Upstream.from_url(engine.url + "/openai/")
        await ask(pool)
        assert (await engine.received(1)).path == "/openai" + CHAT
        pool.close()

    async def test_a_read_with_several_events_is_flushed_once(self, engine, upstream):
        """One write to the client per read from the engine: what keeps the cost of a chunk low."""
        gate = asyncio.Event()
        events = b"".join(b"3\r\nabc\r\n" for _ in range(5))
        engine.script(raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + events, gate, b"0\r\n\r\n"))
        sink = RecordingSink()
        upstream.send(CHAT, [], BODY, sink)
        await sink.has(b"abc" * 5)
        assert sink.calls == ["head", *["data"] * 5, "flush"]
        gate.set()
        await sink.over()
        assert sink.calls[-2:] == ["flush", "end"]

    async def test_an_answer_before_the_request_is_written_counts(self, engine, upstream):
        """A server may refuse a long body early; the rest of that body must not reach anybody."""

        async def answer_early(_reader, writer):
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            await asyncio.Event().wait()

        async with raw_server(answer_early) as port:
            pool = Upstream("127.0.0.1", port)
            sink = await ask(pool, b"x" * 20_000_000)
            assert (sink.status, sink.body, sink.error) == (413, b"no", None)
            assert pool.statistics().open == 0
            pool.close()

    async def test_small_packets_leave_at_once(self, engine, upstream):
        """Nagle and delayed acknowledgements together hold a first token back by 40 ms."""
        await ask(upstream)
        [connection] = upstream._connections
        peer = connection._transport.get_extra_info("socket")
        assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    async def test_no_callback_comes_before_send_returns(self, engine, upstream):
        """The caller has not stored its exchange yet."""
        await ask(upstream)  # so that the next is on a connection ready to write
        sink = RecordingSink()
        upstream.send(CHAT, [], BODY, sink)
        assert sink.calls == []
        await sink.over()


class TestFailures:
    @pytest.mark.parametrize("cut", list(Cut))
    @pytest.mark.parametrize("index", [0, 1, 3])
    async def test_a_stream_cut_in_the_middle_is_a_reset(self, engine, upstream, cut, index):
        """A chunked stream without its last chunk is not whole, however politely it is closed (P06)."""
        engine.script(answer("a", "b", cut_before=index, cut=cut))
        sink = await ask(upstream, STREAM)
        assert sink.error.fault is Fault.RESET
        assert sink.num_endings == 1

    @pytest.mark.parametrize("cut", list(Cut))
    async def test_a_unary_answer_cut_in_half_is_a_reset(self, engine, upstream, cut):
        """Fewer bytes than declared."""
        engine.script(answer("a", cut_before=0, cut=cut))
        assert (await ask(upstream)).error.fault is Fault.RESET

    @pytest.mark.parametrize("cut", list(Cut))
    async def test_a_fresh_connection_that_closes_without_an_answer_is_a_reset(self, engine, upstream, cut):
        """Nothing stale about it: the engine read the request and left."""
        engine.script(dropped(cut))
        assert (await ask(upstream)).error.fault is Fault.RESET
        assert len(engine.requests) == 1

    async def test_a_head_cut_in_half_is_a_reset(self, engine, upstream):
        """A byte of the answer has come: it is not stale, whatever the connection."""
        await ask(upstream)
        engine.script(raw(b"HTTP/1.1 20", Cut.CLOSE))
        assert (await ask(upstream)).error.fault is Fault.RESET
        assert len(engine.requests) == 2

    async def test_garbage_is_a_protocol_error(self, engine, upstream):
        """Something listens there that is no engine."""
        engine.script(garbage())
        assert (await ask(upstream)).error.fault is Fault.PROTOCOL

    async def test_garbage_after_some_chunks_is_a_protocol_error(self, engine, upstream):
        """What came before it has been delivered."""
        engine.script(raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"zz\r\n"))
        sink = await ask(upstream)
        assert (sink.body, sink.error.fault) == (b"a", Fault.PROTOCOL)

    async def test_a_head_over_the_bound_is_a_protocol_error(self, engine, upstream):
        """A head that never ends would otherwise grow here."""
        engine.script(raw(b"HTTP/1.1 200 OK\r\n", *[b"x-a: " + b"y" * 100 + b"\r\n"] * 50))
        assert (await ask(upstream)).error.fault is Fault.PROTOCOL

    async def test_an_engine_that_crashes_fails_every_stream(self, engine, upstream):
        """All in flight are told, each once."""
        gates = [asyncio.Event() for _ in range(3)]
        engine.script(*[answer("a", "b", gates={2: gate}) for gate in gates])
        sinks = [RecordingSink() for _ in gates]
        for sink in sinks:
            upstream.send(CHAT, [], STREAM, sink)
        for sink in sinks:
            await sink.has(b'"a"')
        await engine.kill()
        assert [(await sink.over()).error.fault for sink in sinks] == [Fault.RESET] * 3

    async def test_a_closed_port_is_a_connect_error(self, engine, upstream):
        """Nothing was sent: another replica may be tried."""
        await engine.kill()
        sink = await ask(upstream)
        assert sink.error.fault is Fault.CONNECT
        assert f"127.0.0.1:{engine.port}" in sink.error.message
        assert sink.error.__cause__ is not None

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".x", "a..b"])
    async def test_a_host_that_does_not_exist_is_a_connect_error(self, host):
        """Also one that cannot exist."""
        pool = Upstream(host, 80, limits=UpstreamLimits(connect_s=5.0))
        assert (await ask(pool)).error.fault is Fault.CONNECT
        pool.close()


class TestBugsOfTheSink:
    @pytest.mark.parametrize("name", ["head", "data", "flush", "end"])
    async def test_a_sink_that_raises_costs_its_own_answer_only(self, engine, upstream, name):
        """The pool keeps its books, the sink is told once, the trace is reported."""
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
        sink = RecordingSink(raises_in=name)
        upstream.send(CHAT, [], STREAM, sink)
        await sink.over()
        assert sink.num_endings == 1
        assert sink.calls[-1] == ("end" if name == "end" else "fail")
        second = await ask(upstream)
        assert second.error is None
        assert upstream.statistics().in_use == 0
        assert str(reported[0]) == f"bug in {name}"

    async def test_a_sink_that_raises_at_its_failure_is_reported(self, engine, upstream):
        """Even then nothing is left over."""
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
        engine.script(dropped())
        await ask(upstream, sink=RecordingSink(raises_in="fail"))
        assert upstream.statistics() == (0, 0, 0, 0, 0)
        assert (await ask(upstream)).error is None
        assert str(reported[0]) == "bug in fail"


class TestFetch:
    async def test_a_probe_gets_the_whole_answer(self, engine, upstream):
        """Health and load are small GETs."""
        found = await upstream.fetch("GET", "/health", timeout_s=5)
        assert (found.status, found.body) == (200, b"{}")
        assert engine.probes["/health"] == 1

    async def test_any_status_is_an_answer(self, engine, upstream):
        """A 503 of a loading engine is what the probe wants to know."""
        engine.health = status(503)
        assert (await upstream.fetch("GET", "/health", timeout_s=5)).status == 503

    async def test_a_post_carries_its_body_and_headers(self, engine, upstream):
        """Small unary calls, such as tokenize."""
        found = await upstream.fetch("POST", "/v1/completions", [(b"x-a", b"1")], BODY, timeout_s=5)
        request = await engine.received(1)
        assert (found.status, request.body, request.header("x-a")) == (200, BODY, "1")

    async def test_too_slow_is_a_timeout_and_closes_the_connection(self, engine, upstream):
        """A probe that hangs must not keep a connection."""
        engine.health_gate = asyncio.Event()
        with pytest.raises(ReplicaError) as caught:
            await upstream.fetch("GET", "/health", timeout_s=0.01)
        assert caught.value.fault is Fault.TIMEOUT
        assert upstream.statistics().open == 0

    async def test_too_long_is_a_protocol_error(self, engine, upstream):
        """The bound holds for whatever listens there."""
        engine.metrics = b"x" * 1001
        with pytest.raises(ReplicaError, match="over 1000 bytes") as caught:
            await upstream.fetch("GET", "/metrics", timeout_s=5)
        assert (caught.value.fault, caught.value.status) == (Fault.PROTOCOL, 200)
        engine.metrics = b"x" * 1000
        assert len((await upstream.fetch("GET", "/metrics", timeout_s=5)).body) == 1000

    async def test_a_failure_is_raised(self, engine, upstream):
        """The same faults as by callback."""
        await engine.kill()
        with pytest.raises(ReplicaError) as caught:
            await upstream.fetch("GET", "/health", timeout_s=5)
        assert caught.value.fault is Fault.CONNECT

    async def test_a_cancelled_fetch_closes_its_connection(self, engine, upstream):
        """Shutting down while a probe is under way."""
        gate = asyncio.Event()
        engine.script(answer("a", hold_head=gate))
        task = asyncio.create_task(upstream.fetch("POST", CHAT, [], BODY, timeout_s=50))
        request = await engine.received(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await request.until_aborted()
        assert upstream.statistics() == (0, 0, 0, 0, 0)


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("http://gpu-1:8000", "gpu-1:8000"),
            ("http://gpu-1", "gpu-1"),
            ("https://api.example.com/openai", "api.example.com"),
            ("https://api.example.com:8443", "api.example.com:8443"),
            ("http://[::1]:9000", "[::1]:9000"),
            ("http://bücher.example", "xn--bcher-kva.example"),
        ],
    )
    async def test_a_pool_names_its_host(self, url, text):
        """The host header leaves out the scheme's own port."""
        assert repr(Upstream.from_url(url)) == f"<Upstream {text} open=0 idle=0 in_use=0 connecting=0 waiting=0>"

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "gpu-1:8000",
            "ftp://x",
            "http://",
            "http://u:p@x",
            "http://x/?a=1",
            "http://x#f",
            "http://x:99999",
            "http://a b/",
        ],
    )
    def test_anything_else_is_refused(self, url):
        """A replica that cannot be reached is found when the configuration is read."""
        with pytest.raises(ValueError):
            Upstream.from_url(url)

    @pytest.mark.parametrize("path", ["v1", "/a b", "/a\r\nx: y", "/é"])
    async def test_a_bad_path_is_the_callers_error(self, upstream, path):
        """At once, and nothing is left behind."""
        with pytest.raises(ValueError):
            upstream.send(path, [], b"", RecordingSink())
        assert upstream.statistics() == (0, 0, 0, 0, 0)

    async def test_a_bad_header_is_the_callers_error(self, upstream):
        """Injection stops before a connection is even taken."""
        with pytest.raises(ValueError):
            upstream.send(CHAT, [(b"x-a", b"1\r\nx-b: 2")], b"", RecordingSink())
        assert upstream.statistics() == (0, 0, 0, 0, 0)


async def test_a_slow_client_holds_the_engine_back(engine, upstream):
    """Paused, nothing is read; resumed, all of it comes."""
    large = b"x" * 200_000
    engine.script(Reply([large] * 100, framing=Framing.LENGTH))
    sink = RecordingSink()
    exchange = upstream.send(CHAT, [], BODY, sink)
    sink.on_call = lambda name: exchange.pause() if name == "head" else None
    await sink.has(b"x")
    request = await engine.received(1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(sink.body) < 2_000_000
    assert not sink.num_endings
    exchange.resume()
    exchange.resume()
    await sink.over()
    assert len(sink.body) == 20_000_000
    await request.until_finished()


async def test_a_pause_before_the_connection_stands_is_kept(engine, upstream):
    """A client can be slow before its engine has answered."""
    sink = RecordingSink()
    exchange = upstream.send(CHAT, [], BODY, sink)
    exchange.pause()
    request = await engine.received(1)
    await request.until_finished()
    for _ in range(20):
        await asyncio.sleep(0)
    assert sink.calls == []
    exchange.resume()
    await within_patience(sink.over())
    exchange.pause()
    exchange.resume()
    assert (await ask(upstream)).error is None


async def test_a_connection_paused_at_its_end_reads_again_for_the_next(engine, upstream):
    """A pause belongs to an exchange, not to the connection it came on."""
    sink = RecordingSink()
    exchange = upstream.send(CHAT, [], BODY, sink)
    sink.on_call = lambda _name: exchange.pause()
    await sink.over()
    assert (await ask(upstream)).error is None
    assert engine.num_connections == 1
