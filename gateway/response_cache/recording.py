"""Writes down what an engine answers, on its way to the relay. Bounded: a longer answer is not kept."""

from typing import Protocol

import msgspec

from engines.contract import Headers, ReplicaError, UpstreamSink
from gateway.response_cache.shapes import ended_well, events_of, read_chunks, stream_of


class Recording(Protocol):
    """What an attempt needs to know: whose sink to give to the engine's connection."""

    def of(self, sink: UpstreamSink) -> UpstreamSink:
        """A sink that passes all on to this one; one for each attempt."""
        ...


UNREADABLE = (msgspec.MsgspecError, ReplicaError, AttributeError, KeyError, TypeError, ValueError, RecursionError)


class AnswerRecording:
    """Of one request. `key`: under which its answer would be kept; `beside`: with the other form that is there."""

    __slots__ = ("_max_bytes", "_taps", "beside", "is_streaming", "key")

    def __init__(self, key: bytes, max_bytes: int, *, is_streaming: bool, beside: bool) -> None:
        self.key = key
        self.is_streaming = is_streaming
        self.beside = beside
        self._max_bytes = max_bytes
        self._taps: list[_Tap] = []  # one an attempt

    def of(self, sink: UpstreamSink) -> UpstreamSink:
        """See `Recording`."""
        tap = _Tap(sink, self._max_bytes)
        self._taps.append(tap)
        return tap

    def answer(self, num_choices: int) -> bytes | None:
        """The answer as it is kept, the stream without comments; None for one that is not fit to be given again."""
        answers = (self._fit(tap.take(), num_choices) for tap in self._taps)
        return next((answer for answer in answers if answer is not None), None)

    def _fit(self, raw: bytes, num_choices: int) -> bytes | None:
        try:
            payloads = events_of(raw) if self.is_streaming else [raw]
            if not ended_well(read_chunks(payloads), num_choices):
                return None
        except UNREADABLE:
            return None
        return stream_of(payloads) if self.is_streaming else raw


class _Tap:
    """What one attempt's engine says, passed on and written down."""

    __slots__ = ("_max_bytes", "_num_bytes", "_pieces", "_sink")

    def __init__(self, sink: UpstreamSink, max_bytes: int) -> None:
        self._sink = sink
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._pieces: list[bytes] | None = []  # None: nothing more is written down

    def take(self) -> bytes:
        """All of it, empty for what was not kept; nothing is written down any more."""
        pieces, self._pieces = self._pieces, None
        return b"".join(pieces or ())

    def on_head(self, status: int, headers: Headers) -> None:
        """Only 200 is an answer."""
        if status != 200:
            self._pieces = None
        self._sink.on_head(status, headers)

    def on_data(self, data: bytes) -> None:
        """A piece of it, as long as there is room."""
        if self._pieces is not None:
            self._num_bytes += len(data)
            self._pieces.append(data)
            if self._num_bytes > self._max_bytes:
                self._pieces = None
        self._sink.on_data(data)

    def on_flush(self) -> None:
        """Passed on."""
        self._sink.on_flush()

    def on_end(self) -> None:
        """Passed on."""
        self._sink.on_end()

    def on_fail(self, error: ReplicaError) -> None:
        """Passed on; of an answer that had its last word nothing is missing."""
        self._sink.on_fail(error)
