"""A chat's whole answer, made Anthropic's message. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.anthropic_api.ending import Finish, stop_of, tool_id, usage_of
from gateway.chunks import Usage, answer_text_bytes
from gateway.vector_answers import AnswerHead

INVALID_JSON = "INVALID_JSON"  # Anthropic's own key for arguments that are none


class _Function(Struct):
    name: str
    arguments: Raw = Raw()


class _Call(Struct):
    function: _Function
    id: str | None = None


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Finish, kw_only=True):
    message: _Message


class _Answer(Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Answer).decode
_decode_input = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def message_of(
    body: bytes, usage: Usage | None, head: AnswerHead, stops: frozenset[str], *, hides_thinking: bool
) -> bytes:
    """The message. `usage`: what the answer reports. Raises `msgspec.MsgspecError` for what is no chat's answer."""
    choices = _decode(body).choices
    if not choices:
        raise msgspec.ValidationError("an answer without a choice")
    choice = choices[0]
    said = choice.message
    stop_reason, stop_sequence = stop_of(choice, stops, has_tools=bool(said.tool_calls), has_refused=bool(said.refusal))
    told = usage_of(usage, head.estimated_tokens, 0 if usage is not None else answer_text_bytes(body))
    content = _blocks(said, head.request_id, hides_thinking=hides_thinking)
    return _encode(
        {
            **opening(head),
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": told,
        }
    )


def opening(head: AnswerHead) -> dict[str, Any]:
    """What every message says first."""
    id_ = f"msg_{head.request_id.removeprefix('req_')}"
    return {"id": id_, "type": "message", "role": "assistant", "model": head.model}


def _blocks(said: _Message, request_id: str, *, hides_thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    thought = said.reasoning_content or said.reasoning
    if thought and not hides_thinking:
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    blocks += [{"type": "text", "text": text} for text in (said.content, said.refusal) if text]
    for index, call in enumerate(said.tool_calls or ()):
        named = {"id": call.id or tool_id(request_id, index), "name": call.function.name}
        blocks.append({"type": "tool_use", **named, "input": _input(call.function.arguments)})
    return blocks


def _input(raw: Raw) -> dict[str, Any]:
    """The object that the arguments are. A model may write what is none, or be cut: that is no engine's fault."""
    said = bytes(raw).decode()
    arguments: str = _decode_text(raw) if said.startswith('"') else said.removeprefix("null")
    try:
        return _decode_input(arguments) if arguments else {}
    except (msgspec.MsgspecError, RecursionError):
        return {INVALID_JSON: arguments}
