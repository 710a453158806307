"""Relays a stream of server-sent events: an engine's read becomes one write to the client.

Usage is always read, and passed on only to a client that asked. The role chunk is held back until there is content, so
that an attempt on another replica cannot repeat it. A stream that ends early is a fault, never a success.
"""

from collections.abc import Callable

import msgspec

from engines.contract import Fault, ReplicaError
from gateway import sse
from gateway.answer import ClientAnswer
from gateway.chunks import ChunkSigns, read_chunk, usage_chunk, without_usage
from gateway.refusals import in_stream_error
from gateway.relay import MAX_GAPS, SIZED_EVERY, Relay
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink

MAX_HELD_EVENTS = 1024  # chosen: an engine that sends so many without content is not retried any more


class StreamRelay(Relay):
    """Relays server-sent events. Usage is always read, and passed on only if the client asked for it."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        on_first: Callable[[], None],
        wants_usage: bool,
        num_choices: int,
    ) -> None:
        """`on_first`: called once, at the first content: the prompt has been read."""
        super().__init__(answer, sink, timeouts, first_token_s)
        self._on_first = on_first
        self._events = sse.EventReader()
        self._event = sse.event  # how a payload is told
        self._wants_usage = wants_usage
        self._unfinished = set(range(num_choices))
        self._is_done = False
        self._out: list[bytes] = []
        self._held: list[bytes] = []  # a role chunk waits for the first content, so that a retry cannot repeat it
        self._usage_event: bytes | None = None

    def _take(self, data: bytes) -> None:
        if self._is_done:
            return
        for payload in self._events.feed(data):
            self._take_event(payload)

    def _take_event(self, payload: bytes) -> None:
        if self._is_done:
            return
        if payload == sse.DONE:
            self._is_done = True
            return
        try:
            number = self.relayed.num_chunks
            signs = read_chunk(payload, with_size=number < SIZED_EVERY or not number & (SIZED_EVERY - 1))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ReplicaError(
                Fault.PROTOCOL, f"the engine's stream holds something that is no chunk: {error}"
            ) from None
        if signs.is_error:
            raise in_stream_error(payload)
        if signs.has_content:
            self._count_content(signs.text_bytes)
        if signs.finished:
            self._unfinished.difference_update(signs.finished)
        if signs.usage is not None or signs.usage_only:
            payload = self._take_usage(payload, signs)
            if not payload:
                return
        is_due = self._answer.has_content or self._out or signs.has_content or signs.finished
        target = self._out if is_due or len(self._held) >= MAX_HELD_EVENTS else self._held
        target.append(self._event(payload))

    def _count_content(self, text_bytes: int) -> None:
        now = self._last_data_at
        relayed = self.relayed
        if relayed.first_content_at is None or relayed.last_content_at is None:
            relayed.first_content_at = now
            self._on_first()
        else:
            gap_s = now - relayed.last_content_at
            relayed.max_gap_s = max(relayed.max_gap_s, gap_s)
            if relayed.num_chunks & 3 == 0 and len(relayed.gap_sample) < MAX_GAPS:
                relayed.gap_sample.append(gap_s)
        relayed.last_content_at = now
        relayed.num_chunks += 1
        if text_bytes:
            relayed.num_sized += 1
            relayed.sized_bytes += text_bytes

    def _take_usage(self, payload: bytes, signs: ChunkSigns) -> bytes:
        self.relayed.usage = signs.usage or self.relayed.usage
        rest, fields = without_usage(payload)
        self._usage_event = sse.event(usage_chunk(fields))
        return b"" if signs.usage_only else rest

    def on_flush(self) -> None:
        """One write a read: what has come since the last one. The end marker is the end, whatever the body does."""
        if self._is_done:
            self._end_early()
            return
        if not self._out or self._ended.done():
            return
        events = self._held + self._out if self._held else self._out
        self._held, self._out = [], []
        self._answer.has_content = True
        self._answer.write(events[0] if len(events) == 1 else b"".join(events))

    def _has_all(self) -> bool:
        return self._is_done

    def _complete(self) -> None:
        if self._events.left_open() == sse.DONE:
            self._is_done = True
        if not self._is_done and self._unfinished:
            raise ReplicaError(Fault.RESET, "the engine's stream ended before its answer was complete")
        tail = self._held + self._out + self._ending()
        self._answer.has_content = True
        self._answer.write(b"".join(tail))
        self._answer.end_stream()

    def _ending(self) -> list[bytes]:
        """The last events: usage, where the client asked, and the end marker."""
        usage = [self._usage_event] if self._wants_usage and self._usage_event is not None else []
        return [*usage, sse.event(sse.DONE)]
