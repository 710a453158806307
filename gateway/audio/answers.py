"""What an engine says of audio: its text, its usage (tokens or seconds), its stream in either of two languages. Pure.

OpenAI's `transcript.text.…` events pass as they are. vLLM streams chunks in a chat's shape, which become such events.
Everything here raises `msgspec.MsgspecError` for what is no answer.
"""

import math
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway import sse
from gateway.audio.request import TOKENS_PER_S
from gateway.chunks import Usage

TEXT_BYTES_PER_TOKEN = 4  # chosen: of prose, where an engine counts seconds and no tokens
_MAX_SECONDS = 1e7  # a third of a year
_MAX_TOKENS = 2**53  # what metrics can add up
_NOTHING = (b"", b"null")
_IS_JSON = b"application/json"


class _Usage(Struct):
    """`seconds` is OpenAI's for models that are paid by time; `prompt_tokens` are vLLM's in a stream."""

    seconds: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Whole(Struct):
    text: str
    usage: Raw = Raw()
    duration: Raw = Raw()  # a number, or one in quotes, of verbose_json
    error: Raw = Raw()


class _Delta(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(Struct):
    type: str = ""
    delta: str | None = None
    text: str | None = None
    choices: list[_Choice] | None = None
    usage: Raw = Raw()
    error: Raw = Raw()


_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_seconds = msgspec.json.Decoder(float, strict=False).decode


@dataclass(frozen=True, slots=True)
class Said:
    """A whole transcript. `usage`: None where the engine says nothing of it."""

    text: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class EventSigns:
    """One event of a stream. `told`: what the client is told of it, empty for nothing; `text`: what it adds.

    `is_chunk`: it was a chunk in vLLM's language, whose stream has no last event of its own.
    """

    told: bytes
    text: str = ""
    usage: Usage | None = None
    is_last: bool = False
    is_error: bool = False
    is_chunk: bool = False


def read_whole(body: bytes, *, is_json: bool) -> Said:
    """What an unstreamed answer says. `is_json`: it must be an object with a `text`; else it is a text itself."""
    if not is_json:
        try:
            return Said(body.decode(), None)
        except UnicodeDecodeError:
            raise msgspec.DecodeError("it is not UTF-8") from None
    body.decode()
    answer = _decode_whole(body)
    if bytes(answer.error) not in _NOTHING:
        raise msgspec.ValidationError("the engine answered an error with status 200")
    usage = _usage(answer.usage, answer.text)
    if usage is None and bytes(answer.duration) not in _NOTHING:
        usage = _of_seconds(_seconds(answer.duration), answer.text)
    return Said(answer.text, usage)


def read_event(payload: bytes, text_before: int) -> EventSigns:
    """The signs of one event. `text_before`: bytes of text that came before it, paid by where seconds are told."""
    payload.decode()
    event = _decode_event(payload)
    if bytes(event.error) not in _NOTHING or event.type == "error":
        return EventSigns(b"", is_error=True)
    if event.choices is not None:
        choice = event.choices[0] if event.choices else _Choice()
        text = (choice.delta.content if choice.delta is not None else None) or ""
        told = delta_event(text) if text else b""
        is_last = choice.finish_reason is not None
        return EventSigns(told, text, _usage(event.usage, text_before), is_last=is_last, is_chunk=True)
    if not event.type:
        raise msgspec.ValidationError("it has neither a type nor choices")
    is_last = event.type == "transcript.text.done"
    usage = _usage(event.usage, event.text or text_before) if is_last else None
    text = event.text or "" if event.type == "transcript.text.segment" else event.delta or ""
    return EventSigns(sse.event(payload), text, usage, is_last=is_last)


def delta_event(text: str) -> bytes:
    """The event that adds so much."""
    return _event({"type": "transcript.text.delta", "delta": text})


def done_event(text: str, usage: Usage | None) -> bytes:
    """The event that ends a stream."""
    event: dict[str, Any] = {"type": "transcript.text.done", "text": text}
    if usage is not None:
        total = usage.prompt_tokens + usage.completion_tokens
        tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens, "total_tokens": total}
        event["usage"] = {"type": "tokens", **tokens}
    return _event(event)


def is_json_type(content_type: bytes) -> bool:
    """Whether a content-type is JSON's."""
    return content_type.partition(b";")[0].strip().lower() == _IS_JSON


def _event(value: dict[str, Any]) -> bytes:
    return sse.event(msgspec.json.encode(value))


def _usage(raw: Raw, text: str | int) -> Usage | None:
    """None for what is no usage: the answer is the client's and is not spoiled by how its engine counts."""
    if bytes(raw) in _NOTHING:
        return None
    try:
        found = _decode_usage(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    prompt = found.input_tokens if found.input_tokens is not None else found.prompt_tokens
    output = found.output_tokens if found.output_tokens is not None else found.completion_tokens
    if prompt is not None and 0 <= prompt <= _MAX_TOKENS and 0 <= (output or 0) <= _MAX_TOKENS:
        return Usage(prompt_tokens=prompt, completion_tokens=output or 0)
    return _of_seconds(found.seconds, text)


def _of_seconds(seconds: float | None, text: str | int) -> Usage | None:
    """Audio by its length, its text by its size."""
    if seconds is None or not 0 <= seconds <= _MAX_SECONDS:
        return None
    num_bytes = len(text.encode()) if isinstance(text, str) else text
    output = math.ceil(num_bytes / TEXT_BYTES_PER_TOKEN)
    return Usage(prompt_tokens=math.ceil(seconds * TOKENS_PER_S), completion_tokens=output)


def _seconds(raw: Raw) -> float | None:
    try:
        return _decode_seconds(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
