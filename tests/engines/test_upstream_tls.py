"""The pool over TLS, with a certificate made for the test."""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess

import pytest

from engines.contract import Fault
from engines.upstream import Upstream, UpstreamLimits
from tests.engines.upstream_kit import BODY, CHAT, RecordingSink, raw_server
from tests.scripted_engine import within_patience

OPENSSL = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
    "-days",
    "2",
    "-subj",
    "/CN=localhost",
    "-addext",
    "subjectAltName=DNS:localhost,IP:127.0.0.1",
]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(certificate, key) files for 127.0.0.1 and localhost, signed by themselves."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed: TLS to engines is not tested")
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [*OPENSSL, "-out", paths[0], "-keyout", paths[1]],
        check=True,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    return paths


@pytest.fixture
def trusting(certificate):
    """A client's context that trusts the test's certificate and no other."""
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture
async def port_of(certificate):
    """Starts TLS servers that answer each connection with a script of bytes; gives their ports."""
    async with contextlib.AsyncExitStack() as servers:

        async def start(*answers, keeps_open=True):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)

            async def serve(reader, writer):
                for raw in answers:
                    await reader.readuntil(b"\r\n\r\n" + BODY)
                    writer.write(raw)
                if keeps_open:
                    await asyncio.Event().wait()
                writer.close()  # with a TLS goodbye
                await writer.wait_closed()

            return await servers.enter_async_context(raw_server(serve, ssl=context))

        yield start


async def ask(pool):
    sink = RecordingSink()
    pool.send(CHAT, [], BODY, sink)
    return await sink.over()


WHOLE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"


async def test_requests_in_turn_share_a_tls_connection(port_of, trusting):
    """A TLS handshake costs even more to repeat."""
    port = await port_of(WHOLE, WHOLE)
    pool = Upstream.from_url(f"https://localhost:{port}", tls=trusting)
    for _ in range(2):
        sink = await ask(pool)
        assert (sink.error, sink.body) == (None, b"hi")
    assert pool.statistics() == (1, 1, 0, 0, 0)
    pool.close()


async def test_a_body_that_ends_with_the_connection_over_tls(port_of, trusting):
    """A proper TLS close is an end like any other."""
    port = await port_of(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", keeps_open=False)
    pool = Upstream.from_url(f"https://127.0.0.1:{port}", tls=trusting)
    sink = await ask(pool)
    assert (sink.error, sink.body) == (None, b"until the end")
    pool.close()


async def test_a_cut_chunked_body_over_tls_is_a_reset(port_of, trusting):
    """The same fault as without TLS."""
    port = await port_of(WHOLE[:-5], keeps_open=False)
    pool = Upstream.from_url(f"https://127.0.0.1:{port}", tls=trusting)
    sink = await ask(pool)
    assert sink.error.fault is Fault.RESET
    assert sink.num_endings == 1
    pool.close()


async def test_a_certificate_nobody_vouches_for_is_a_connect_error(port_of):
    """Keys and prompts are not sent to whoever answers."""
    port = await port_of(WHOLE)
    pool = Upstream.from_url(f"https://localhost:{port}")
    sink = await ask(pool)
    assert sink.error.fault is Fault.CONNECT
    assert "certificate" in sink.error.message.lower()
    assert pool.statistics() == (0, 0, 0, 0, 0)
    pool.close()


async def test_a_server_without_tls_is_a_connect_error(trusting):
    """A plain server behind an https URL."""

    async def serve(reader, writer):
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Plain\r\n\r\n")

    async with raw_server(serve) as port:
        pool = Upstream("127.0.0.1", port, tls=trusting)
        assert (await ask(pool)).error.fault is Fault.CONNECT
        pool.close()


class TestSilentServer:
    """A server that accepts and says nothing: the handshake is where connecting hangs."""

    @pytest.fixture
    async def silent(self):
        """(port, event set by the first bytes, event set when the client has left)."""
        hello, is_left = asyncio.Event(), asyncio.Event()

        async def serve(reader, _writer):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    hello.set()
            is_left.set()

        async with raw_server(serve) as port:
            yield port, hello, is_left

    async def test_connecting_too_long_is_a_connect_error(self, silent, trusting):
        """Another replica may be tried after `connect_s` (P07)."""
        port, _, is_left = silent
        pool = Upstream("127.0.0.1", port, tls=trusting, limits=UpstreamLimits(connect_s=0.05))
        sink = await ask(pool)
        assert sink.error.fault is Fault.CONNECT
        assert "nothing within 0.05 s" in sink.error.message
        await within_patience(is_left.wait())
        assert pool.statistics() == (0, 0, 0, 0, 0)
        pool.close()

    async def test_an_abort_while_connecting_closes_the_socket(self, silent, trusting):
        """The engine is not left with a half-open client, and nothing is told."""
        port, hello, is_left = silent
        pool = Upstream("127.0.0.1", port, tls=trusting, limits=UpstreamLimits(connect_s=30))
        sink = RecordingSink()
        exchange = pool.send(CHAT, [], BODY, sink)
        await within_patience(hello.wait())
        exchange.abort()
        await within_patience(is_left.wait())
        assert pool.statistics() == (0, 0, 0, 0, 0)
        assert sink.calls == []
        pool.close()

    async def test_closing_the_pool_while_connecting(self, silent, trusting):
        """The caller is told, the socket closed."""
        port, hello, _ = silent
        pool = Upstream("127.0.0.1", port, tls=trusting, limits=UpstreamLimits(connect_s=30))
        sink = RecordingSink()
        pool.send(CHAT, [], BODY, sink)
        await within_patience(hello.wait())
        pool.close()
        assert (await sink.over()).error.fault is Fault.CONNECT


def test_tls_settings_for_a_plain_url_are_refused():
    """A typo in the scheme must not send prompts in the clear."""
    with pytest.raises(ValueError, match="not an https URL"):
        Upstream.from_url("http://127.0.0.1:1", tls=ssl.create_default_context())
