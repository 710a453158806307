"""One hot request and its answer: what uvicorn calls a cycle, and the sink that the lifecycle writes to.

Writes straight to the transport, one write for each engine read, with nothing in between.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from engines.contract import Headers
from gateway.auth import AuthFailure
from gateway.body import Body
from gateway.errors import Problem
from gateway.languages import language_of
from gateway.sink import Incoming, SinkWatcher
from policies.quota_refusal import Rejected

if TYPE_CHECKING:
    from gateway.hot import HotProtocol


class _NoEvent:
    """Stands where uvicorn would wake an ASGI task."""

    def set(self) -> None:
        """Nobody waits."""


_NO_EVENT = _NoEvent()


class HotExchange:
    """One hot request and its answer: what uvicorn calls a cycle, and the sink of the lifecycle."""

    def __init__(self, protocol: "HotProtocol", path: str, body: Body, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self._transport = protocol.transport
        self.path = path
        self.headers: Headers = protocol.headers
        self._body = body
        self._head = b""
        self._is_chunked = False
        self.has_begun = False
        self.is_welcome = False  # the caller, as far as it was asked
        self._is_whole = False  # the request has come to its end
        self._watcher: SinkWatcher | None = None
        self._on_gone: Callable[[], object] | None = None
        # What uvicorn's protocol reads of a cycle.
        self.message_event = _NO_EVENT
        self.response_complete = False
        self.keep_alive = keep_alive
        self.disconnected = False

    # The request, as the parser delivers it.

    def take_body(self, data: bytes) -> None:
        """A piece of the body; above a limit the request is refused and the rest not read."""
        if self.response_complete or self.has_begun:
            return
        problem = self._body.add(data)
        if problem is not None:
            self.refuse_body(problem)

    def refuse_body(self, problem: Problem) -> None:
        """413 or 503; the connection cannot be used again, since its body was not read."""
        body = language_of(self.path).problem(problem, "")
        self.start(problem.status, [(b"content-type", b"application/json"), *problem.headers()], len(body))
        self.response_complete = True
        self._protocol.refuse(self._head + body)

    def begin(self) -> None:
        """The body is complete: run the lifecycle."""
        self._is_whole = True
        if not self.response_complete and not self.has_begun:
            self._begin(self._body.take())

    def begin_unread(self, problem: AuthFailure | Rejected) -> None:
        """The caller is not known or has nothing left: the lifecycle says so, and needs no body for that."""
        self._body.drop()
        self._begin(b"", problem if isinstance(problem, Rejected) else None)

    def _begin(self, body: bytes, used_up: Rejected | None = None) -> None:
        self.has_begun = True
        incoming = Incoming(self.path, self.headers, body, time.monotonic(), used_up=used_up)
        task = self._protocol.loop.create_task(self._protocol.edge.serve(incoming, self))
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
        self.keep_alive = self.keep_alive and self._is_whole
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
        self._body.drop()
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
        if self._is_whole and not self.keep_alive:
            self._transport.close()
        self._protocol.answering = None
        self._protocol.on_response_complete()
        if not self._is_whole:
            self._protocol.refuse(b"")
