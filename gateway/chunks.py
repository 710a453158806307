"""What the gateway reads in an engine's answer: usage, content, finish reasons, errors. Pure.

Typed decoding of only these fields costs 0.4 µs a chunk; everything else passes as the engine wrote it.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

_NOTHING = (b"", b'""', b"null", b"[]")


_Count = Annotated[int, Meta(ge=0, le=2**53)]  # what metrics can add up


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """Tokens as the engine counted them. `cached_tokens` is None where the engine does not say."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _OutputDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens served from the engine's cache; absence of a report is not zero."""
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        return None if cached is None else min(cached, self.prompt_tokens)  # no engine found more than it was given

    def with_cached(self, cached_tokens: int | None) -> "Usage":
        """The same with so many cached tokens."""
        details = None if cached_tokens is None else _Details(cached_tokens=cached_tokens)
        return msgspec.structs.replace(self, prompt_tokens_details=details)

    @property
    def reasoning_tokens(self) -> int | None:
        """Of the completion, those that were thought; None where the engine does not say."""
        return self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else None


class _Function(msgspec.Struct):
    name: Raw = Raw()
    arguments: Raw = Raw()


class _Call(msgspec.Struct):
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: Raw = Raw()
    reasoning_content: Raw = Raw()
    reasoning: Raw = Raw()
    tool_calls: Raw = Raw()
    refusal: Raw = Raw()

    def has_content(self) -> bool:
        return (
            bytes(self.content) not in _NOTHING
            or bytes(self.tool_calls) not in _NOTHING
            or bytes(self.reasoning_content) not in _NOTHING
            or bytes(self.reasoning) not in _NOTHING
            or bytes(self.refusal) not in _NOTHING
        )

    def text_bytes(self) -> int:
        """Of what a client would show, at least 1 if there is anything: of the first kind that the chunk holds."""
        return (
            _text_bytes(self.content)
            or _calls_bytes(self.tool_calls)
            or _text_bytes(self.reasoning_content)
            or _text_bytes(self.reasoning)
            or _text_bytes(self.refusal)
        )


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    text: Raw = Raw()
    finish_reason: str | None = None

    def has_content(self) -> bool:
        return self.delta.has_content() if self.delta is not None else bytes(self.text) not in _NOTHING

    def text_bytes(self) -> int:
        return self.delta.text_bytes() if self.delta is not None else _text_bytes(self.text)


class _Whole(msgspec.Struct):
    message: _Delta | None = None
    text: Raw = Raw()

    def text_bytes(self) -> int:
        said = self.message
        if said is None:
            return _text_bytes(self.text)
        thought = _text_bytes(said.reasoning_content) or _text_bytes(said.reasoning)
        return thought + _text_bytes(said.content) + _calls_bytes(said.tool_calls) + _text_bytes(said.refusal)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Raw = Raw()
    error: Raw = Raw()


class _Answer(msgspec.Struct):
    choices: list[Raw] | None = None
    usage: Raw = Raw()
    error: Raw = Raw()


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode
_decode_calls = msgspec.json.Decoder(list[_Call]).decode
_decode_usage = msgspec.json.Decoder(Usage).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(slots=True)
class ChunkSigns:
    """What one chunk says. `usage_only`: it has no choices and exists to carry the usage.

    `text_bytes`: of its content, in UTF-8 and nearly exact, if that was asked for; 0 if it has none.
    """

    has_content: bool = False
    finished: tuple[int, ...] = ()
    usage: Usage | None = None
    usage_only: bool = False
    is_error: bool = False
    text_bytes: int = 0


_PLAIN = ChunkSigns(has_content=True)  # one for all: nobody changes it


def read_chunk(payload: bytes, *, with_size: bool = False) -> ChunkSigns:
    """The signs of one stream chunk. Raises `msgspec.MsgspecError` for what is not a chunk.

    `with_size`: its `text_bytes` too, which cost half as much again.
    """
    _check_utf8(payload)
    chunk = _decode_chunk(payload)
    choices = chunk.choices
    if choices is not None and len(choices) == 1 and not chunk.usage and not chunk.error:
        choice = choices[0]
        if choice.finish_reason is None and choice.has_content():
            return ChunkSigns(has_content=True, text_bytes=choice.text_bytes()) if with_size else _PLAIN
    has_usage = bytes(chunk.usage) not in _NOTHING
    return ChunkSigns(
        has_content=any(choice.has_content() for choice in choices or ()),
        finished=tuple(choice.index for choice in choices or () if choice.finish_reason is not None),
        usage=_read_usage(chunk.usage) if has_usage else None,
        usage_only=has_usage and not choices,
        is_error=bytes(chunk.error) not in _NOTHING,
        text_bytes=sum(choice.text_bytes() for choice in choices or ()) if with_size else 0,
    )


def without_usage(payload: bytes) -> tuple[bytes, dict[str, Raw]]:
    """A chunk less its `usage`, and its fields: some engines put the usage on the last content chunk."""
    fields = _decode_fields(payload)
    rest = {name: value for name, value in fields.items() if name != "usage"}
    return msgspec.json.encode(rest), fields


def usage_chunk(fields: dict[str, Raw]) -> bytes:
    """The standard separate usage chunk, made of the fields of a chunk that carried it."""
    return msgspec.json.encode({**fields, "choices": Raw(b"[]")})


def read_answer(body: bytes) -> Usage | None:
    """The usage of an unstreamed answer. Raises `msgspec.MsgspecError` for an error and what is no answer."""
    _check_utf8(body)
    answer = _decode_answer(body)
    if bytes(answer.error) not in _NOTHING:
        raise msgspec.ValidationError("the engine answered an error with status 200")
    usage = _read_usage(answer.usage) if bytes(answer.usage) not in _NOTHING else None
    if answer.choices is None or (not answer.choices and usage is None):
        raise msgspec.ValidationError("the engine's answer has no choices")
    return usage


def answer_text_bytes(body: bytes) -> int:
    """Of all that an unstreamed answer says that `read_answer` has read. What is of no known shape counts as it is."""
    size = 0
    for choice in _decode_answer(body).choices or ():
        try:
            size += _decode_whole(choice).text_bytes()
        except (msgspec.MsgspecError, RecursionError):
            size += len(choice)
    return size


def _text_bytes(value: Raw) -> int:
    """Of the text in a JSON string, at least 1 if there is any. An escape counts as what it stands for, about."""
    text = bytes(value)
    if text in _NOTHING:
        return 0
    size = len(text) - 2
    if b"\\" in text:
        size -= text.count(b"\\") + 2 * text.count(b"\\u")
    return size if size > 0 else 1


def _calls_bytes(value: Raw) -> int:
    """Of the names and arguments of tool calls, at least 1 if there are any."""
    if bytes(value) in _NOTHING:
        return 0
    try:
        functions = [call.function for call in _decode_calls(value) if call.function is not None]
    except (msgspec.MsgspecError, RecursionError):
        return len(value)
    return max(1, sum(_text_bytes(one.name) + _text_bytes(one.arguments) for one in functions))


def _check_utf8(payload: bytes) -> None:
    """Values that are passed on unread must not break the client's own reader."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it is not UTF-8") from None


def _read_usage(usage: Raw) -> Usage | None:
    """None for what is no usage: the answer is the client's and is not spoiled by how its engine counts."""
    try:
        return _decode_usage(usage)
    except (msgspec.MsgspecError, RecursionError):
        return None
