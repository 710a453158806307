"""From an engine's answer to the client's, by callbacks: no task, queue or future per chunk.

A relay ends once, with `Relayed` or with the `ReplicaError` that says whose fault it was; whether another replica may
be tried is the lifecycle's affair. `WholeRelay` is here, `StreamRelay` in streaming.py.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import msgspec

from engines.contract import Fault, Headers, ReplicaError, UpstreamExchange
from gateway.answer import ClientAnswer
from gateway.chunks import Usage, answer_text_bytes, read_answer
from gateway.refusals import refusal
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink

MAX_GAPS = 256
SIZED_EVERY = 8  # chosen: a power of two; the text of so few chunks is enough to know how much all of them hold
MAX_REFUSAL_BYTES = 65536  # chosen: of an engine's error page, more says nothing more
DRAIN_S = 0.25  # chosen: an engine that has said all may end its answer so late, and the connection is used again
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # chosen: an unstreamed answer above this is a broken engine


class Preempted(Exception):
    """The attempt was cancelled for the sake of people; nothing was sent, so the request may wait again."""


@dataclass(slots=True)
class Relayed:
    """What an attempt gave, kept up to date while it runs, so that an ending in the middle is settled truly.

    Times are monotonic seconds. `num_chunks` counts chunks with content, about one a token. `gap_sample`: every fourth
    gap between them, at most `MAX_GAPS`. `was_slow`: the client held the stream up, so its gaps say nothing.
    `sized_bytes`: of the text of the first chunks and of every `SIZED_EVERY`th, `num_sized` of them; of an answer that
    came whole all of it, if it has no usage. `was_asked_too_much`: the engine did what was asked, and its client cannot
    have it.
    """

    usage: Usage | None = None
    first_content_at: float | None = None
    last_content_at: float | None = None
    max_gap_s: float = 0.0
    num_chunks: int = 0
    gap_sample: list[float] = field(default_factory=list)
    was_slow: bool = False
    num_sized: int = 0
    sized_bytes: int = 0
    was_asked_too_much: bool = False

    @property
    def text_bytes(self) -> int:
        """About how much text came, where no engine says how many tokens it is."""
        if self.num_sized >= self.num_chunks:
            return self.sized_bytes
        return self.sized_bytes * self.num_chunks // max(1, self.num_sized)


class Relay(ABC):
    """What both kinds share: the head of the answer, the timers, the single ending."""

    def __init__(self, answer: ClientAnswer, sink: ClientSink, timeouts: TimeoutSection, first_token_s: float) -> None:
        self._answer = answer
        self._sink = sink
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Relayed] = self._loop.create_future()
        self._started_at = self._last_data_at = time.monotonic()
        self._first_token_s = first_token_s
        self._exchange: UpstreamExchange | None = None
        self._slow_since: float | None = None
        self._refusal: tuple[int, Headers, list[bytes]] | None = None
        self._refusal_bytes = 0
        self._is_draining = False  # everything was said, but the body has not ended
        self._watch: asyncio.TimerHandle | None = None
        self._drain: asyncio.TimerHandle | None = None
        self.relayed = Relayed()

    async def run(self, exchange: UpstreamExchange) -> Relayed:
        """Wait for the end. Raises `ReplicaError`; if cancelled, the engine is told to abort."""
        self._exchange = exchange
        self._watch = self._loop.call_later(self._next_check_s(), self._check)
        self._sink.watch(self)
        try:
            return await self._ended
        finally:
            self._sink.watch(None)
            self._watch.cancel()
            if self._is_draining:
                exchange.resume()  # its end is still to be read
                self._drain = self._loop.call_later(DRAIN_S, exchange.abort)
            else:
                exchange.abort()

    def on_head(self, status: int, headers: Headers) -> None:
        """Anything but 200 is collected and becomes an error."""
        if status != 200:
            self._refusal = (status, headers, [])
        elif any(name == b"content-encoding" and value not in (b"", b"identity") for name, value in headers):
            self._fail(ReplicaError(Fault.PROTOCOL, "the engine packed its answer although nobody asked"))

    def on_data(self, data: bytes) -> None:
        """A piece of the body."""
        if self._ended.done():
            return
        self._last_data_at = time.monotonic()
        if self._refusal is not None:
            if self._refusal_bytes < MAX_REFUSAL_BYTES:
                self._refusal_bytes += len(data)
                self._refusal[2].append(data)
            return
        try:
            self._take(data)
        except ReplicaError as error:
            self._fail(error)

    @abstractmethod
    def on_flush(self) -> None:
        """All pieces of one read were taken."""

    def on_end(self) -> None:
        """The body is complete."""
        self._stop_draining()
        if self._ended.done():
            return
        if self._refusal is not None:
            status, headers, parts = self._refusal
            self._fail(self._refused(status, headers, b"".join(parts)))
            return
        self._end()

    def _refused(self, status: int, headers: Headers, body: bytes) -> ReplicaError:
        """What an engine's status means."""
        return refusal(status, headers, body)

    def _end(self) -> None:
        try:
            self._complete()
        except ReplicaError as error:
            self._fail(error)
        else:
            self._ended.set_result(self.relayed)

    def on_fail(self, error: ReplicaError) -> None:
        """The attempt broke; after the last word of an answer that is nobody's fault."""
        self._stop_draining()
        if self._has_all() and not self._ended.done():
            self._end()
        else:
            self._fail(error)

    def on_slow(self) -> None:
        """The client reads slowly: stop reading from the engine."""
        self._slow_since = time.monotonic()
        self.relayed.was_slow = True
        if self._exchange is not None:
            self._exchange.pause()

    def on_drained(self) -> None:
        """The client caught up."""
        self._slow_since = None
        self._last_data_at = time.monotonic()
        if self._exchange is not None:
            self._exchange.resume()

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Use a piece of the body. Raises `ReplicaError` for what no engine should send."""

    @abstractmethod
    def _complete(self) -> None:
        """Finish the client's answer. Raises `ReplicaError` if the engine's is not complete."""

    def _has_all(self) -> bool:
        """Whether the engine has said all, although its body may not have ended."""
        return False

    def _end_early(self) -> None:
        """The engine has said all: the client is answered now, whenever the body ends."""
        if not self._ended.done():
            self._is_draining = True
            self._end()

    def _stop_draining(self) -> None:
        self._is_draining = False
        if self._drain is not None:
            self._drain.cancel()
            self._drain = None

    @property
    def heard_at(self) -> float | None:
        """When the engine last sent something of its answer, monotonic seconds; None before it did."""
        return self._last_data_at if self._last_data_at > self._started_at else None

    def lose(self) -> None:
        """The replica is lost: fail, so that another is tried, unless content has gone to the client."""
        if not self._answer.has_content:
            self._fail(ReplicaError(Fault.RESET, "the replica stopped answering"))

    def preempt(self, why: Preempted | None = None) -> None:
        """End the attempt with `Preempted`, or what is given of its kind, unless it has ended."""
        self._fail(why or Preempted())

    def _fail(self, error: ReplicaError | Preempted) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    def _limit(self) -> tuple[float, float, str]:
        """Since when, how long, and the name of the wait that is running now."""
        if self.relayed.first_content_at is None:
            return self._started_at, self._first_token_s, "the first token"
        return self._last_data_at, self._timeouts.idle_s, "the next token"

    def _next_check_s(self) -> float:
        """Seconds until a wait may be over; never later than `idle_s`, since the wait that runs changes meanwhile."""
        since, limit_s, _ = self._limit()
        end = min(since + limit_s, self._started_at + self._timeouts.total_s)
        return min(self._timeouts.idle_s, max(0.001, end - time.monotonic()))

    def _check(self) -> None:
        now = time.monotonic()
        since, limit_s, waited_for = self._limit()
        if now - self._started_at >= self._timeouts.total_s:
            self._fail(ReplicaError(Fault.TIMEOUT, f"the answer took more than {self._timeouts.total_s:g} s"))
        elif self._slow_since is not None:
            if now - self._slow_since >= self._timeouts.idle_s:
                self._sink.abort()  # a client that reads nothing must not hold a seat for ever
        elif now - since >= limit_s:
            self._fail(ReplicaError(Fault.TIMEOUT, f"{waited_for} took more than {limit_s:g} s"))
        if not self._ended.done():
            wait_s = self._next_check_s() if self._slow_since is None else min(1.0, self._timeouts.idle_s)
            self._watch = self._loop.call_later(wait_s, self._check)


class WholeRelay(Relay):
    """Collects an unstreamed answer and sends it at once. There is no first token to wait for, only the total."""

    def __init__(self, answer: ClientAnswer, sink: ClientSink, timeouts: TimeoutSection, first_token_s: float) -> None:
        super().__init__(answer, sink, timeouts, first_token_s)
        self._parts: list[bytes] = []
        self._size = 0

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer passed {MAX_ANSWER_BYTES} bytes")
        self._parts.append(data)

    def on_flush(self) -> None:
        """Nothing to send before the whole answer is here."""

    def _complete(self) -> None:
        body = b"".join(self._parts)
        try:
            self.relayed.usage = usage = read_answer(body)
            if usage is None:
                self.relayed.sized_bytes = answer_text_bytes(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is not one: {error}") from None
        self.relayed.first_content_at = self.relayed.last_content_at = self._last_data_at
        told = self._told(body)
        self._answer.has_content = True
        self._answer.whole(200, told, [])

    def _told(self, body: bytes) -> bytes:
        """What the client is told of it. Raises `ReplicaError`."""
        return body
