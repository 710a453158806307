"""Heads that never end, for listeners without an edge of their own."""

import asyncio
import contextlib

import pytest
import uvicorn
from uvicorn.server import ServerState

from engines import plain_http
from engines.plain_http import MAX_HEAD_BYTES, BoundedHttpProtocol

ASK = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"


async def echo(scope, receive, send):
    """Answer with the body, once it is there; at `/early` before."""
    body = b""
    while scope["path"] != "/early":
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected():
    """The protocol's connections, and a client's two ends of one."""
    config = uvicorn.Config(echo, lifespan="off", log_config=None, access_log=False, ws="none")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        while state.connections:  # noqa: ASYNC110  # nothing tells when it has lost them
            await asyncio.sleep(0)
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "piece",
    [b"x-more: " + b"y" * 4000 + b"\r\n", b"y" * 4000, b"0;" + b"y" * 4000],
    ids=["many headers", "one header", "chunk extension"],
)
async def test_a_head_that_does_not_end_is_refused(piece):
    """The parser would keep all of it, as long as the client likes."""
    async with connected() as (reader, writer):
        opening = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n"
        writer.write(opening + (b"\r\n" if piece.startswith(b"0;") else b"x: "))
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof() and sent < 100 * MAX_HEAD_BYTES:
                writer.write(piece)
                sent += len(piece)
                await writer.drain()
                await asyncio.sleep(0)
            assert b" 400 " in await reader.readline()
        assert sent < 100 * MAX_HEAD_BYTES


@pytest.mark.parametrize(
    "said", [b"", b"POST / HT", ASK + b"POST /"], ids=["nothing", "half a head", "after an answer"]
)
async def test_a_connection_whose_head_does_not_come_is_closed(said, monkeypatch):
    """Each takes a file descriptor."""
    monkeypatch.setattr(plain_http, "HEAD_S", 0.02)
    async with connected() as (reader, writer):
        writer.write(said)
        answer = await reader.read()
        assert answer.endswith(b"body") == (said.startswith(ASK))


@pytest.mark.parametrize("said", [b"\r\n", b"b"], ids=["empty lines", "more of a body"])
async def test_a_connection_that_says_something_else_after_an_answer_is_closed(said, monkeypatch):
    """It ends uvicorn's wait for a next request, and begins none."""
    monkeypatch.setattr(plain_http, "HEAD_S", 0.02)
    async with connected() as (reader, writer):
        writer.write(ASK if said == b"\r\n" else b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await asyncio.wait_for(reader.read(), 5)


async def test_requests_that_come_in_pieces_are_answered_one_after_the_other():
    """Neither bound touches a client that goes on; what has been read of one request does not count for the next."""
    async with connected() as (reader, writer):
        for _ in range(3):
            for piece in (ASK[:10], ASK[10:-2], ASK[-2:]):
                writer.write(piece)
                await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert await reader.readexactly(4) == b"body"
        writer.write(b"GET / HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
