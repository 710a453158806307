"""uvicorn's own HTTP protocol with the hot routes answered by callback; every other path falls through to the app.

uvicorn keeps the parser, the connection's life cycle and its limits. What is ours: the body of a hot request is
collected here, one task runs its lifecycle, and its sink writes to the transport, one write for each engine read.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import Problem
from gateway.exchange import HotExchange
from gateway.sink import ClientSink, Incoming

Serve = Callable[[Incoming, ClientSink], Coroutine[Any, Any, None]]
MAX_HEADER_BYTES = 65536  # chosen: as nginx and node allow in all
MAX_PIPELINED = 16  # chosen: with more requests waiting on one connection it is not read, so its end is not noticed
LINGER_S = 2.0  # chosen: how long a refused client's bytes are read and thrown away


class HotProtocol(HttpToolsProtocol):
    """A connection. `serve`, `hot_paths` and the rest are set on the subclass that `hot_protocol` makes."""

    serve: Serve
    hot_paths: frozenset[bytes]
    max_body_bytes: int
    max_connections: int
    too_large: bytes
    cycle: Any
    answering: HotExchange | None = None  # the hot request under way; `cycle` may already be a pipelined one
    _is_deaf = False  # what still comes is not read any more
    _quiet_bytes = 0  # received since a body or a whole request came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the connection, or answer 503 and close it if there are as many as allowed."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            transport.close()

    def data_received(self, data: bytes) -> None:
        """A read. Heads, chunk extensions and trailers that never end are refused: the parser keeps them all."""
        if self._is_deaf:
            return
        self._quiet_bytes += len(data)
        super().data_received(data)
        if self._quiet_bytes > MAX_HEADER_BYTES and not self._is_deaf:
            self.send_400_response("The head of the request is too long.")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets 400; behind a request that is being answered nothing can be said, so that one is cut."""
        if self._is_deaf or self.transport.is_closing():
            return
        if self._is_answering():
            self.transport.abort()
            return
        body = Problem(400, msg, "invalid_request_error", "bad_http").body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.refuse(STATUS_LINE[400] + head + body)

    def refuse(self, last_answer: bytes) -> None:
        """Answer and close, but read on for a while: closing over unread bytes resets, which overtakes the answer."""
        self._is_deaf = True
        self.answering = None
        if self.cycle is not None:
            self.cycle.disconnected = True  # an app that waits for the rest of its body waits in vain
            self.cycle.message_event.set()
        self.transport.write(last_answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.transport.close)

    def _is_answering(self) -> bool:
        """Whether a request came whole and its answer is not complete."""
        if self.answering is not None:
            return self.answering.has_begun
        return bool(self.pipeline) or (
            self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        )

    def on_message_begin(self) -> None:
        """A request begins: its headers are counted from zero."""
        super().on_message_begin()
        self._header_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; more than `MAX_HEADER_BYTES` in all are refused."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise httptools.HttpParserError("headers too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Take a hot request, unless an earlier one on this connection is unanswered: pipelining goes the slow way."""
        if self._is_deaf or self.transport.is_closing():
            return
        is_free = self.cycle is None or self.cycle.response_complete
        if is_free and self.url in self.hot_paths and self.parser.get_method() == b"POST" and self._is_plain():
            hot = self.cycle = self.answering = HotExchange(
                self, self.url.decode(), keep_alive=self.parser.should_keep_alive()
            )
            if self._announced_bytes() > self.max_body_bytes:
                hot.refuse_body()
            elif self.expect_100_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        super().on_headers_complete()
        if len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body."""
        self._quiet_bytes = 0
        if type(self.cycle) is HotExchange:
            self.cycle.take_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._quiet_bytes = 0
        if type(self.cycle) is HotExchange:
            self.cycle.begin()
        else:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is being answered that the client has left."""
        super().connection_lost(exc)
        if self.answering is not None:
            self.answering.leave()
            self.answering = None

    def pause_writing(self) -> None:
        """The client reads slowly."""
        super().pause_writing()
        if self.answering is not None:
            self.answering.slow_down(is_slow=True)

    def resume_writing(self) -> None:
        """The client caught up."""
        super().resume_writing()
        if self.answering is not None:
            self.answering.slow_down(is_slow=False)

    def _is_plain(self) -> bool:
        return self.parser.get_http_version() == "1.1" and not self.parser.should_upgrade()

    def _announced_bytes(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return 0


def hot_protocol(
    serve: Serve, hot_paths: frozenset[bytes], *, max_body_bytes: int, max_connections: int, too_large: bytes
) -> type[asyncio.Protocol]:
    """The protocol class for `uvicorn.Config(http=…)`. `too_large`: the body of a 413."""
    members = {
        "serve": staticmethod(serve),
        "hot_paths": hot_paths,
        "max_body_bytes": max_body_bytes,
        "max_connections": max_connections,
        "too_large": too_large,
    }
    return type("WarmlaneProtocol", (HotProtocol,), members)
