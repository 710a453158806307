"""Relays transcripts: whole as the engine wrote them, streamed event by event.

As of every surface that generates no text, an endpoint that an engine has not is no fault of it, and a whole answer is
read before any of it is sent. An engine may answer a stream's request whole (OpenAI's older model does): then its text
becomes the stream.
"""

from collections.abc import Callable

import msgspec

from engines.contract import Fault, Headers, ReplicaError
from gateway import sse
from gateway.answer import ClientAnswer
from gateway.audio.answers import EventSigns, delta_event, done_event, is_json_type, read_event, read_whole
from gateway.input_relay import UNSERVED
from gateway.refusals import in_stream_error, refusal
from gateway.relay import MAX_ANSWER_BYTES, WholeRelay
from gateway.settings import TimeoutSection
from gateway.sink import ClientSink
from gateway.streaming import MAX_HELD_EVENTS, StreamRelay
from gateway.wanted import Transcript

_JSON = (b"content-type", b"application/json")
_TEXT = (b"content-type", b"text/plain; charset=utf-8")


class TranscriptWhole(WholeRelay):
    """Collects an unstreamed transcript and passes it on as it is."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        wanted: Transcript,
    ) -> None:
        super().__init__(answer, sink, timeouts, first_token_s)
        self._is_json = wanted.is_json

    def on_head(self, status: int, headers: Headers) -> None:
        """An engine may answer JSON whatever was asked."""
        super().on_head(status, headers)
        self._is_json = self._is_json or is_json_type(_content_type(headers))

    def _refused(self, status: int, headers: Headers, body: bytes) -> ReplicaError:
        return _refused(status, headers, body)

    def _complete(self) -> None:
        body = b"".join(self._parts)
        try:
            said = read_whole(body, is_json=self._is_json)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is no transcript: {error}") from None
        self.relayed.usage = said.usage
        self.relayed.sized_bytes = len(said.text.encode())
        self.relayed.first_content_at = self.relayed.last_content_at = self._last_data_at
        self._answer.has_content = True
        self._answer.whole(200, body, [], _JSON if self._is_json else _TEXT)


class TranscriptStream(StreamRelay):
    """Relays events of either language; the client reads OpenAI's."""

    def __init__(
        self,
        answer: ClientAnswer,
        sink: ClientSink,
        timeouts: TimeoutSection,
        first_token_s: float,
        *,
        on_first: Callable[[], None],
        wanted: Transcript,
    ) -> None:
        super().__init__(answer, sink, timeouts, first_token_s, on_first=on_first, wants_usage=False, num_choices=1)
        self._is_json = wanted.is_json
        self._whole: list[bytes] | None = None  # of an answer that is no stream
        self._texts: list[str] = []
        self._num_bytes = 0  # of them, or of what was not streamed
        self._is_of_chunks = False

    def on_head(self, status: int, headers: Headers) -> None:
        """A stream, or an answer that came whole."""
        super().on_head(status, headers)
        kind = _content_type(headers)
        if not kind.lower().startswith(b"text/event-stream"):
            self._whole = []
            self._is_json = self._is_json or is_json_type(kind)

    def _refused(self, status: int, headers: Headers, body: bytes) -> ReplicaError:
        return _refused(status, headers, body)

    def _take(self, data: bytes) -> None:
        if self._whole is None:
            super()._take(data)
            return
        self._grow(len(data))
        self._whole.append(data)

    def _take_event(self, payload: bytes) -> None:
        if self._is_done:
            return
        if payload == sse.DONE:
            self._is_done = True
            return
        try:
            signs = read_event(payload, self._num_bytes)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's stream holds something that is none: {error}") from None
        if signs.is_error:
            raise in_stream_error(payload)
        self._take_signs(signs)

    def _take_signs(self, signs: EventSigns) -> None:
        if signs.text:
            size = len(signs.text.encode())
            self._grow(size)
            self._count_content(size)
        if signs.is_chunk:
            self._is_of_chunks = True
            self._texts.append(signs.text)
        self.relayed.usage = signs.usage or self.relayed.usage
        if signs.is_last:
            self._unfinished.clear()
        if signs.told:
            is_due = self._answer.has_content or self._out or signs.text or signs.is_last
            (self._out if is_due or len(self._held) >= MAX_HELD_EVENTS else self._held).append(signs.told)

    def _has_all(self) -> bool:
        return self._is_done or not self._unfinished

    def _complete(self) -> None:
        if self._whole is not None:
            self._take_whole(b"".join(self._whole))
        super()._complete()

    def _take_whole(self, body: bytes) -> None:
        try:
            said = read_whole(body, is_json=self._is_json)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer is no transcript: {error}") from None
        self._num_bytes = 0
        told = delta_event(said.text) if said.text else b""
        self._take_signs(EventSigns(told, said.text, said.usage, is_last=True, is_chunk=True))

    def _ending(self) -> list[bytes]:
        """The last event where the engine's language has none, and its own end marker."""
        done = [done_event("".join(self._texts), self.relayed.usage)] if self._is_of_chunks else []
        return [*done, sse.event(sse.DONE)] if self._is_done else done

    def _grow(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_ANSWER_BYTES:
            raise ReplicaError(Fault.PROTOCOL, f"the engine's answer passed {MAX_ANSWER_BYTES} bytes")


def _refused(status: int, headers: Headers, body: bytes) -> ReplicaError:
    if status in UNSERVED:
        return ReplicaError(Fault.UNSERVED, f"the engine answered {status}", status=status, body=body)
    return refusal(status, headers, body)


def _content_type(headers: Headers) -> bytes:
    return next((value for name, value in headers if name == b"content-type"), b"")
