"""The client's side of one request: when headers are committed, what is sent in silence, how it ends.

A stream's headers go out at the first content or one second after admission, whichever is first; from then on a
failure is an event in the stream, not a status. One timer a request, none a chunk.
"""

import asyncio
import time
from collections.abc import Callable

from engines.contract import Headers
from gateway.errors import Problem
from gateway.language import OPENAI, Language
from gateway.sink import ClientSink

COMMIT_AFTER_S = 1.0  # design: one second after admission

_SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")


def _no_headers() -> Headers:
    return []


class ClientAnswer:
    """One answer. `silence` makes the comment for a silent stream; the stage the request is in sets it.

    `late_headers` makes those headers that tell how things stand, when they are committed. `failure` makes the last
    event of a stream that had content; None: as the language has it.
    """

    __slots__ = (
        "_headers",
        "_keepalive_s",
        "_language",
        "_last_write",
        "_loop",
        "_request_id",
        "_sink",
        "_timer",
        "failure",
        "has_content",
        "has_started",
        "late_headers",
        "silence",
    )

    def __init__(
        self,
        sink: ClientSink,
        headers: Headers,
        keepalive_s: float,
        *,
        language: Language = OPENAI,
        request_id: str = "",
    ) -> None:
        self._sink = sink
        self._language = language
        self._request_id = request_id
        self._headers = headers
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last_write = 0.0
        self.has_started = False
        self.has_content = False
        self.silence: Callable[[], bytes] = language.silence
        self.late_headers: Callable[[], Headers] = _no_headers
        self.failure: Callable[[Problem], bytes | None] | None = None

    def admit(self) -> None:
        """The request was admitted: a stream's headers are due within `COMMIT_AFTER_S` of the first time it was."""
        if self._timer is not None or self.has_started:
            return
        self._timer = self._loop.call_later(COMMIT_AFTER_S, self._tick)

    def start_stream(self) -> None:
        """Commit status 200 and the stream's headers, once."""
        if self.has_started:
            return
        self.has_started = True
        self._sink.start(200, _SSE_HEADERS + self._headers + self._take_late_headers(), None)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._keepalive_s, self._tick)

    def write(self, events: bytes) -> None:
        """Whole events; commits the headers if they are not yet."""
        if not self.has_started:
            self.start_stream()
        self._last_write = time.monotonic()
        self._sink.write(events)

    def keep_alive(self) -> None:
        """From now on silence is told as such: the request waits in no queue."""
        self.silence = self._language.silence

    def end_stream(self) -> None:
        """The stream is complete."""
        self._stop()
        self._sink.end()

    def whole(self, status: int, body: bytes, headers: Headers, kind: tuple[bytes, bytes] = _JSON) -> None:
        """An unstreamed answer. `kind`: its content-type header."""
        self._stop()
        self.has_started = True
        self._sink.start(status, [kind, *self._headers, *self._take_late_headers(), *headers], len(body))
        self._sink.write(body)
        self._sink.end()

    def fail(self, problem: Problem) -> None:
        """Say what went wrong: as a status if nothing was committed, else as the last event, without an end marker."""
        self._stop()
        if not self.has_started:
            self.whole(problem.status, self._language.problem(problem, self._request_id), problem.headers())
            return
        told = self.failure(problem) if self.failure is not None and self.has_content else None
        self._sink.write(told or self._language.failure(problem, self._request_id))
        self._sink.end()

    def _tick(self) -> None:
        self._timer = None
        if not self.has_started:
            self.start_stream()
            self.write(self.silence())
            return
        silent_s = time.monotonic() - self._last_write
        if silent_s >= self._keepalive_s * 0.99:
            self.write(self.silence())
            silent_s = 0.0
        self._timer = self._loop.call_later(self._keepalive_s - silent_s, self._tick)

    def _take_late_headers(self) -> Headers:
        """Asked for once, then let go: who makes them holds the request, a ring that only the collector would free."""
        make, self.late_headers = self.late_headers, _no_headers
        return make()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
