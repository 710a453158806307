"""An engine that costs almost nothing: what stands behind a gateway when the gateway is what gets measured.

    python -m tests.benchmarks.mock_engine --port 9001 9002

Every chunk is written in a loop turn of its own, so that each is one packet, as from a real engine. Orders come in the
prompt (workloads.py): `itl_ms` between tokens, `stamp=1` puts the time of writing (monotonic ns) into each token.
"""

import argparse
import asyncio
import re
import signal
import time

import httptools
import uvloop

from tests.benchmarks.workloads import MODEL

_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens"\s*:\s*(\d+)')
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_USAGE = re.compile(rb'"include_usage"\s*:\s*true')
_ORDERS = re.compile(rb"bench:([a-z_0-9=,]*);")

_ENVELOPE = (
    b'{"id":"chatcmpl-bench","object":"chat.completion%b","created":1700000000,"model":"' + MODEL.encode() + b'",'
)
_CHUNK = b"data: " + _ENVELOPE % b".chunk"
_ROLE = _CHUNK + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
_TOKEN = _CHUNK + b'"choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}]}\n\n'
_FINISH = _CHUNK + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
_USAGE_MEMBER = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
_USAGE_CHUNK = _CHUNK.replace(b"%", b"%%") + b'"choices":[],' + _USAGE_MEMBER + b"}\n\n"
_DONE = b"data: [DONE]\n\n"
_WHOLE = (
    (_ENVELOPE % b"").replace(b"%", b"%%")
    + b'"choices":[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
    + _USAGE_MEMBER
    + b"}"
)
_SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def _framed(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


_PLAIN_TOKENS = (_framed(_TOKEN % b" token"), _framed(_TOKEN % b" other"))


class MockEngine(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._body: list[bytes] = []
        self._next_step: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_step is not None:
            self._next_step.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body = []
        if self._path == b"/v1/chat/completions":
            self._generate(body)
        elif self._path == b"/v1/models":
            self._answer(b'{"object":"list","data":[{"id":"%b","object":"model"}]}' % MODEL.encode())
        elif self._path.startswith(b"/v1/chat/completions/"):
            self._answer(b"{}", b"404 Not Found")  # vllm-router asks for a rendered prompt first
        else:
            self._answer(b"{}")

    def _answer(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)

    def _generate(self, body: bytes) -> None:
        asked = _MAX_TOKENS.search(body)
        num_tokens = int(asked[1]) if asked else 16
        usage = (len(body) // 4, num_tokens, len(body) // 4 + num_tokens)
        if not _STREAM.search(body):
            self._answer(_WHOLE % (b" token" * num_tokens, *usage))
            return
        found = _ORDERS.search(body)
        orders = dict(pair.split(b"=") for pair in found[1].split(b",")) if found else {}
        self._gap_s = int(orders.get(b"itl_ms", 0)) / 1000
        self._is_stamped = orders.get(b"stamp") == b"1"
        self._left = num_tokens
        self._tail = _framed(_FINISH) + (_framed(_USAGE_CHUNK % usage) if _USAGE.search(body) else b"")
        self._transport.write(_SSE_HEAD + _framed(_ROLE))
        self._due = self._loop.time()
        self._step()

    def _step(self) -> None:
        if self._left == 0:
            self._next_step = None
            self._transport.write(self._tail + _framed(_DONE) + b"0\r\n\r\n")
            return
        self._left -= 1
        if self._is_stamped:
            self._transport.write(_framed(_TOKEN % (b"t=%d " % time.monotonic_ns())))
        else:
            self._transport.write(_PLAIN_TOKENS[self._left & 1])
        if self._gap_s:
            self._due += self._gap_s
            self._next_step = self._loop.call_at(self._due, self._step)
        else:
            self._next_step = self._loop.call_soon(self._step)


async def serve(protocol: type[asyncio.Protocol], ports: list[int]) -> None:
    """Listen until SIGTERM or SIGINT; prints a ready line."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = [await loop.create_server(protocol, "127.0.0.1", port, backlog=1024) for port in ports]
    print("ready", *(f"url=http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers), flush=True)
    await stop.wait()
    for server in servers:
        server.close()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, nargs="+", default=[0, 0])
    uvloop.run(serve(MockEngine, parser.parse_args().port))


if __name__ == "__main__":
    main()
