"""uvicorn's own HTTP protocol with the hot routes answered by callback; every other path falls through to the app.

uvicorn keeps the parser, the connection's life cycle and its limits. What is ours: the body of a hot request is
collected here, one task runs its lifecycle, and its sink writes to the transport, one write for each engine read.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engines.contract import Headers
from gateway.errors import Problem
from gateway.sink import ClientSink, Incoming, SinkWatcher

Serve = Callable[[Incoming, ClientSink], Coroutine[Any, Any, None]]
MAX_HEADER_BYTES = 65536  # chosen: as nginx and node allow in all
MAX_PIPELINED = 16  # chosen: with more requests waiting on one connection it is not read, so its end is not noticed
LINGER_S = 2.0  # chosen: how long a refused client's bytes are read and thrown away


class _NoEvent:
    """Stands where uvicorn would wake an ASGI task."""

    def set(self) -> None:
        """Nobody waits."""


_NO_EVENT = _NoEvent()


class HotExchange:
    """One hot request and its answer: what uvicorn calls a cycle, and the sink of the lifecycle."""

    def __init__(self, protocol: "HotProtocol", path: str, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self._transport = protocol.transport
        self._path = path
        self._headers: Headers = protocol.headers
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._is_chunked = False
        self.has_begun = False
        self._watcher: SinkWatcher | None = None
        self._on_gone: Callable[[], object] | None = None
        # What uvicorn's protocol reads of a cycle.
        self.message_event = _NO_EVENT
        self.response_complete = False
        self.keep_alive = keep_alive
        self.disconnected = False

    # The request, as the parser delivers it.

    def take_body(self, data: bytes) -> None:
        """A piece of the body; above the limit the request is answered with 413 and the rest not read."""
        if self.response_complete:
            return
        self._size += len(data)
        if self._size > self._protocol.max_body_bytes:
            self.refuse_body()
            return
        self._parts.append(data)

    def refuse_body(self) -> None:
        """413; the connection cannot be used again, since its body was not read."""
        self.keep_alive = False
        self._parts.clear()
        body = self._protocol.too_large
        self.start(413, [(b"content-type", b"application/json")], len(body))
        self.response_complete = True
        self._protocol.refuse(self._head + body)

    def begin(self) -> None:
        """The body is complete: run the lifecycle."""
        if self.response_complete:
            return
        self.has_begun = True
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        incoming = Incoming(self._path, self._headers, body, time.monotonic())
        task = self._protocol.loop.create_task(self._protocol.serve(incoming, self))
        tasks = self._protocol.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # The answer: a ClientSink.

    @property
    def is_gone(self) -> bool:
        """Whether the client left before the answer was complete."""
        return self.disconnected and not self.response_complete

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """Held back until the first piece of the body, so that both leave in one write."""
        lines = [STATUS_LINE[status]]
        for name, value in self._protocol.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if length is None:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            lines.append(b"content-length: %d\r\n" % length)
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        self._head = b"".join(lines)

    def write(self, data: bytes) -> None:
        """A piece of the body, framed."""
        if self.disconnected or self.response_complete or not data:
            return
        if self._is_chunked:
            data = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
        elif self._head:
            data = self._head + data
        self._head = b""
        self._transport.write(data)

    def end(self) -> None:
        """Complete; the connection takes its next request or closes."""
        if self.disconnected or self.response_complete:
            return
        tail = self._head + b"0\r\n\r\n" if self._is_chunked else self._head
        if tail:
            self._transport.write(tail)
        self._complete()

    def abort(self) -> None:
        """Drop the connection with the answer incomplete. A kind close would wait for a client that reads nothing."""
        if not self.response_complete:
            self._transport.abort()

    def watch(self, watcher: SinkWatcher | None) -> None:
        """Pass on what the transport says of its buffer, beginning with what it says now."""
        self._watcher = watcher
        if watcher is not None and self._protocol.flow.write_paused:
            watcher.on_slow()

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Called by `leave`; at once if the client has left already."""
        self._on_gone = callback
        if self.is_gone:
            callback()

    # What the connection says.

    def leave(self) -> None:
        """The client's connection is lost."""
        self.disconnected = True
        callback, self._on_gone = self._on_gone, None
        if callback is not None and not self.response_complete:
            callback()

    def slow_down(self, *, is_slow: bool) -> None:
        """The transport's buffer passed its high or low mark."""
        if self._watcher is not None:
            if is_slow:
                self._watcher.on_slow()
            else:
                self._watcher.on_drained()

    def _complete(self) -> None:
        self.response_complete = True
        self._on_gone = self._watcher = None
        if not self.keep_alive:
            self._transport.close()
        self._protocol.answering = None
        self._protocol.on_response_complete()


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
        """What is no HTTP gets 400; in the middle of an answer nothing can be said, so that one is cut."""
        under_way = self.answering.has_begun if self.answering else getattr(self.cycle, "response_started", False)
        if under_way and not (self.answering or self.cycle).response_complete:
            self.transport.abort()
            return
        body = Problem(400, msg, "invalid_request_error", "bad_http").body()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.refuse(STATUS_LINE[400] + head + body)

    def refuse(self, last_answer: bytes) -> None:
        """Answer and close, but read on for a while: a close over unread bytes is a reset, which overtakes the answer."""
        self._is_deaf = True
        self.answering = None
        self.transport.write(last_answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.transport.close)

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
