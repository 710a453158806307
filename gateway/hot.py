"""uvicorn's own HTTP protocol with the hot routes answered by callback; every other path falls through to the app.

uvicorn keeps the parser, the connection's life cycle and its limits. What is ours: the body of a hot request is
collected here, one task runs its lifecycle, and its sink writes to the transport, one write for each engine read.
"""

import asyncio
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from engines.plain_http import PlainHttpProtocol
from gateway.body import Body
from gateway.edge import ABORT, Edge
from gateway.errors import Problem
from gateway.exchange import HotExchange
from gateway.language import OPENAI, Language
from gateway.languages import language_of
from gateway.read_deadline import ReadDeadline, Stage
from gateway.unread_answer import UnreadAnswer

MAX_HEADER_BYTES = 65536  # chosen: as nginx and node allow in all
MAX_PIPELINED = 16  # chosen: with more requests waiting on one connection it is not read, so its end is not noticed
LINGER_S = 2.0  # chosen: how long a refused client's bytes are read and thrown away
MAX_LINGERING = 256  # chosen: of connections above the limit; more are closed at once, even if a reset hides the answer


class _Flow(FlowControl):
    """uvloop raises when a connection that closes is told to read or not to read."""

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            super().pause_reading()

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            super().resume_reading()


class HotProtocol(PlainHttpProtocol):
    """A connection. `edge` is set on the subclass that `hot_protocol` makes."""

    edge: Edge
    cycle: Any
    answering: HotExchange | None = None  # the hot request under way; `cycle` may already be a pipelined one
    _running: Any = None  # the latest request that the app was given; it may be an earlier one than `cycle`
    _is_deaf = False  # what still comes is not read any more
    _quiet_bytes = 0  # received since a body or a whole request came
    _stage = Stage.HEAD
    _num_messages = 0
    _is_in_head = False
    _header_bytes = 0
    _coding = b"chunked"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take the connection, or answer 503 and close it if there are as many as allowed."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        edge = self.edge
        self._deadline = ReadDeadline(self.loop, edge.head_s, edge.body_s, self._on_late)
        self._unread = UnreadAnswer(self.loop, transport, edge.idle_s, self._is_answering)
        if len(self.connections) > edge.max_connections:
            self._turn_away()
        else:
            self._deadline.follow(Stage.HEAD, 0, 0)

    def data_received(self, data: bytes) -> None:
        """A read. Heads, chunk extensions and trailers that never end are refused: the parser keeps them all."""
        if self._is_deaf:
            return
        self._quiet_bytes += len(data)
        super().data_received(data)
        if self._quiet_bytes > MAX_HEADER_BYTES and not self._is_deaf:
            self.send_400_response("The head of the request is too long.")
        if self._is_deaf or self.transport.is_closing():
            return
        hot = self.answering
        if hot is not None and not hot.has_begun and not hot.is_welcome:
            self._ask(hot)
        is_stray = self._stage is Stage.NOTHING and self._is_free()  # line ends between requests are no request
        self._deadline.follow(Stage.HEAD if is_stray else self._stage, self._num_messages, len(data))

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets 400."""
        self._refuse_request(Problem(400, msg, "invalid_request_error", "bad_http"))

    def _refuse_request(self, problem: Problem) -> None:
        """Behind a request that is being answered nothing can be said, so that one is cut."""
        if self._is_deaf or self.transport.is_closing():
            return
        if self._is_answering():
            self.transport.abort()
            return
        hot = self.answering
        self.refuse(_last_answer(problem, OPENAI if hot is None else language_of(hot.path)))

    def refuse(self, last_answer: bytes) -> None:
        """Answer and close, but read on for a while: closing over unread bytes resets, which overtakes the answer."""
        self._is_deaf = True
        self._deadline.stop()
        hot, self.answering = self.answering, None
        if hot is not None:
            hot.leave()
        if self.cycle is not None:
            self.cycle.disconnected = True  # an app that waits for the rest of its body waits in vain
            self.cycle.message_event.set()
        self.transport.write(last_answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self._stop_lingering)

    def _stop_lingering(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # a close would wait until all of it is read
        else:
            self.transport.close()

    def _turn_away(self) -> None:
        """Above the limit: said on the connection, which does not count from now on."""
        self.connections.discard(self)
        problem = Problem(
            503, "too many connections", "service_unavailable_error", "too_many_connections", retry_after_s=1
        )
        if len(self.edge.lingering) < MAX_LINGERING:
            self.edge.lingering.add(self)
            self.refuse(_last_answer(problem))
        else:
            self._is_deaf = True
            self.transport.write(_last_answer(problem))
            self.transport.close()

    def _ask(self, hot: HotExchange) -> None:
        """The body of a hot request is still to come: wait for it only if the caller is known and has something."""
        problem = self.edge.ask(hot.headers)
        hot.is_welcome = problem is None
        if problem is not None:
            hot.begin_unread(problem)
        elif self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _on_late(self, stage: Stage) -> None:
        """A head or a body did not come in time."""
        if self._is_answering() or self.flow.read_paused:
            self._deadline.restart()
        elif self._quiet_bytes == 0 and self.cycle is None:
            self.transport.close()  # not a byte: there is no request to answer
        else:
            message = f"the {stage.value} of the request did not come in time"
            self._refuse_request(Problem(408, message, "invalid_request_error", "request_timeout"))

    def _is_free(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

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
        self._is_in_head = True
        self._coding = b"chunked"
        self._stage = Stage.HEAD
        self._num_messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header or a trailer. More than `MAX_HEADER_BYTES` in all are refused; trailers are counted and dropped."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise httptools.HttpParserError("headers too large")
        if not self._is_in_head:
            return
        super().on_header(name, value)
        if len(name) == 17 and name.lower() == b"transfer-encoding":
            self._coding = value.strip().lower()

    def on_headers_complete(self) -> None:
        """Take a hot request, unless an earlier one on this connection is unanswered: pipelining goes the slow way."""
        if self._is_deaf or self.transport.is_closing() or self.puts_off_offer():
            return
        self._is_in_head = False
        self._stage = Stage.BODY
        if self._coding != b"chunked":
            self._refuse_request(
                Problem(501, "the only transfer coding here is chunked", "invalid_request_error", "transfer_coding")
            )
        elif self._is_free() and self._is_hot():
            body = Body(self.edge.bodies)
            hot = self.cycle = self.answering = HotExchange(
                self, self.url.decode(), body, keep_alive=self.parser.should_keep_alive()
            )
            if self._announced_bytes() > self.edge.bodies.max_bytes:
                hot.refuse_body(self.edge.bodies.too_large())
        else:
            self._pass_on()

    def _pass_on(self) -> None:
        super().on_headers_complete()
        self.scope["extensions"] = {ABORT: partial(self._abort, self.cycle)}  # type: ignore[dict-item]
        if len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _abort(self, cycle: Any) -> None:
        cycle.disconnected = True
        self.transport.abort()

    def on_body(self, body: bytes) -> None:
        """A piece of a request's body."""
        self._quiet_bytes = 0
        if self._is_deaf:
            return
        if type(self.cycle) is HotExchange:
            self.cycle.take_body(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        if self._is_deaf or self._has_offer:
            return
        self._quiet_bytes = 0
        self._stage = Stage.NOTHING
        if type(self.cycle) is HotExchange:
            self.cycle.begin()
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is complete, as far as we are concerned: the client may still have to read it."""
        super().on_response_complete()
        self._unread.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is being answered that the client has left."""
        super().connection_lost(exc)
        self._deadline.stop()
        self._unread.stop()
        self.edge.lingering.discard(self)
        self._unset_keepalive_if_required()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
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

    def _is_hot(self) -> bool:
        parser = self.parser
        return self.url in self.edge.hot_paths and parser.get_method() == b"POST" and parser.get_http_version() == "1.1"

    def _announced_bytes(self) -> int:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
        return 0


def _last_answer(problem: Problem, language: Language = OPENAI) -> bytes:
    body = language.problem(problem, "")
    lines = [STATUS_LINE[problem.status], b"content-type: application/json\r\n"]
    lines += [b"%b: %b\r\n" % header for header in problem.headers()]
    lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
    return b"".join([*lines, body])


def hot_protocol(edge: Edge) -> type[asyncio.Protocol]:
    """The protocol class for `uvicorn.Config(http=…)`."""
    return type("WarmlaneProtocol", (HotProtocol,), {"edge": edge})
