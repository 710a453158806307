"""A body of `/v1/responses` becomes the fields of a chat, which every engine takes. Pure.

An allow-list: what a chat has no word for is passed over, and refused where passing over would be a lie.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Raw, Struct

from gateway.fields import LARGE_BYTES, is_longer, reader
from gateway.prompt import MAX_MESSAGES
from gateway.reading import read, wrong
from gateway.responses_api.items import Kind, chat_messages, encode, kind_of, too_many
from gateway.responses_api.response import Asked
from gateway.responses_api.state import MAX_KEPT_BYTES, MAX_REFERENCED_BYTES, Earlier, too_much_referenced
from gateway.responses_api.tools import format_fields, told_text, told_tools, tool_fields
from gateway.responses_api.translation import ResponseTranslation
from gateway.translation import Translate

Fields = dict[str, Raw]

# Of a chat, and of the same meaning here; of engines, for those who know what they ask.
_SAME = (
    "model", "temperature", "top_p", "top_logprobs", "stream", "prompt_cache_key",
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop", "logit_bias",
    "session_id", "chat_template_kwargs",
)  # fmt: skip
_READ_BY_TEMPLATES = ("chat_template_kwargs",)
_NOT_HERE = ("background", "conversation", "prompt", "context_management", "moderation")  # would be left undone
_NO_ASK = (b"null", b"false", b"[]")
# What a response says again of its request, and what it says where the request says nothing.
_ECHO: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None}, "safety_identifier": None, "service_tier": None,
    "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_logprobs": None, "top_p": None, "truncation": "disabled",
}  # fmt: skip
_MAX_OUTPUT = 10_000_000  # as a chat's
_MAX_METADATA, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # OpenAI's
# Of fields that hold a few words, so that a million are not made; chosen. Of metadata: a character has two escapes.
_MAX_BYTES = {
    "metadata": 12 * _MAX_METADATA * (_MAX_KEY + _MAX_VALUE + 8),
    "stream_options": 16_384,
    "include": 16_384,
}
_LOGPROBS = "message.output_text.logprobs"


class _Reasoning(Struct):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


_input = reader(str | list[Raw])
_kinds = reader(str | list[Kind])
_words = reader(list[str])
_string = reader(str)
_whole = reader(int)
_flag = reader(bool)
_reasoning = reader(_Reasoning)
_metadata = reader(dict[str, str])
_object = reader(dict[str, Raw])
_TRUE = Raw(b"true")


def read_responses(fields: Fields, earlier: Earlier) -> tuple[Fields, Translate]:
    """(the fields of the chat, who turns its answer back). Raises `ClientError` naming the field that is wrong."""
    _refuse_what_nobody_does(fields)
    _check(fields)
    items, given = _conversation(fields, earlier)
    found = {name: fields[name] for name in _SAME if bytes(fields.get(name, b"null")) != b"null"}
    found["messages"] = Raw(encode(_messages(fields, items, given)))
    found |= {**tool_fields(fields), **format_fields(fields), **_output_fields(fields)}
    is_kept = (
        earlier.keep is not None
        and read(fields, "store", _flag) is not False
        and sum(map(len, items)) + sum(len(fields.get(name, b"")) for name in _ECHO) <= MAX_KEPT_BYTES
    )
    asked = Asked(_echo(fields, is_kept=is_kept), wants_logprobs="logprobs" in found)
    keep = earlier.keep if is_kept else None
    return found, partial(ResponseTranslation, asked=asked, items=items, given=len(given), keep=keep)


def counted_fields(fields: Fields, earlier: Earlier) -> Fields:
    """Of all that a template makes tokens of: what is counted is what will be read. Raises `ClientError`."""
    _refuse_what_nobody_does(fields)
    items, given = _conversation(fields, earlier)
    found = {name: fields[name] for name in _READ_BY_TEMPLATES if bytes(fields.get(name, b"null")) != b"null"}
    return found | {"messages": Raw(encode(_messages(fields, items, given)))} | tool_fields(fields)


def _refuse_what_nobody_does(fields: Fields) -> None:
    for name in _NOT_HERE:
        if bytes(fields.get(name, b"null")) not in _NO_ASK:
            raise wrong(name, "nobody here can do that")
    if read(fields, "truncation", _string) not in (None, "disabled"):
        raise wrong("truncation", "nothing is left out of a conversation here: it must be disabled")


def _conversation(fields: Fields, earlier: Earlier) -> tuple[list[Raw], list[Raw]]:
    """(all items, those of them that came with this request)."""
    given = _given(fields, earlier)
    items = [*([] if earlier.previous is None else earlier.previous.conversation()), *given]
    if len(items) > MAX_MESSAGES:
        raise too_many(MAX_MESSAGES)
    return items, given


def _check(fields: Fields) -> None:
    """What is passed over or only said again is sound, all the same."""
    for name, most in _MAX_BYTES.items():
        if len(fields.get(name, b"")) > most:
            raise wrong(name, f"it may have at most {most} bytes")
    read(fields, "stream_options", _object)
    read(fields, "max_tool_calls", _whole)
    read(fields, "store", _flag)
    read(fields, "previous_response_id", _string)
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        read(fields, name, _string)
    metadata: dict[str, str] = read(fields, "metadata", _metadata) or {}
    if len(metadata) > _MAX_METADATA:
        raise wrong("metadata", f"it may have at most {_MAX_METADATA} members")
    for name, value in metadata.items():
        if len(name) > _MAX_KEY or len(value) > _MAX_VALUE:
            raise wrong("metadata", f"names may have {_MAX_KEY} characters, values {_MAX_VALUE}")


def _given(fields: Fields, earlier: Earlier) -> list[Raw]:
    """The items of this request, those that it refers to in their place."""
    raw = fields.get("input")
    if raw is not None and len(raw) > LARGE_BYTES:
        if is_longer(raw, MAX_MESSAGES):
            raise too_many(MAX_MESSAGES)
        read(fields, "input", _kinds)  # a million of what are no items are not made
    given: str | list[Raw] | None = read(fields, "input", _input)
    if not given and (given is None or earlier.previous is None):
        raise wrong("input", "it is required: a text, or a list of at least one item")
    if isinstance(given, str):
        return [Raw(encode({"role": "user", "content": given}))]
    items, left = [], MAX_REFERENCED_BYTES
    for index, item in enumerate(given):
        found = _referenced(item, f"input[{index}]", earlier)
        if found is not item:
            left -= len(found)
        if left < 0:
            raise too_much_referenced()
        items.append(found)
    return items


def _referenced(item: Raw, path: str, earlier: Earlier) -> Raw:
    kind, id_ = kind_of(item, path)
    if kind != "item_reference":
        return item
    found = earlier.referenced.get(id_ or "")
    if found is None:
        raise wrong(f"{path}.id", f"there is no item {(id_ or '')[:128]!r}")
    return found


def _messages(fields: Fields, items: Sequence[Raw], given: Sequence[Raw]) -> list[dict[str, Any]]:
    before = len(items) - len(given)
    paths = (f"input[{place - before}]" if place >= before else "previous_response_id" for place in range(len(items)))
    messages = chat_messages(zip(paths, items, strict=True))
    instructions: str | None = read(fields, "instructions", _string)
    return [*([{"role": "system", "content": instructions}] if instructions else []), *messages]


def _output_fields(fields: Fields) -> Fields:
    found: Fields = {}
    bound: int | None = read(fields, "max_output_tokens", _whole)
    if bound is not None:
        if not 1 <= bound <= _MAX_OUTPUT:
            raise wrong("max_output_tokens", f"it must be between 1 and {_MAX_OUTPUT}, got {bound}")
        found["max_completion_tokens"] = Raw(encode(bound))
    reasoning: _Reasoning | None = read(fields, "reasoning", _reasoning)
    if reasoning is not None and reasoning.effort is not None:
        found["reasoning_effort"] = Raw(encode(reasoning.effort))
    include: list[str] = read(fields, "include", _words) or []
    if _LOGPROBS in include or bytes(fields.get("top_logprobs", b"null")) not in (b"null", b"0"):
        found["logprobs"] = _TRUE
    user: str | None = read(fields, "user", _string) or read(fields, "safety_identifier", _string)
    if user:
        found["user"] = Raw(encode(user))
    return found


def _echo(fields: Fields, *, is_kept: bool) -> dict[str, Any]:
    said = {name: fields.get(name, Raw(b"null")) for name in _ECHO}
    echo = {name: _ECHO[name] if bytes(value) == b"null" else value for name, value in said.items()}
    if bytes(fields.get("text", b"null")) != b"null":
        echo["text"] = told_text(fields)
    if echo["tools"]:
        echo["tools"] = told_tools(fields)
    if bytes(fields.get("user", b"null")) != b"null":
        echo["user"] = fields["user"]  # which alone may be missing, and not be null
    return {**echo, "store": is_kept}
