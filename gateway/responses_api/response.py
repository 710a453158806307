"""The response object: what was asked, said again, and what came of it; and that of a chat's whole answer. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.chunks import Usage
from gateway.responses_api.ids import item_id, response_id
from gateway.responses_api.items import encode
from gateway.vector_answers import AnswerHead

COMPLETED, INCOMPLETE = "completed", "incomplete"
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Of one request. `echo`: what its response says of it. `wants_logprobs`: of its text."""

    echo: Mapping[str, Any]
    wants_logprobs: bool


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


class Logprobs(Struct):
    """Of a choice or a piece of it; each is passed on as its engine wrote it."""

    content: list[Raw] | None = None


class _Choice(Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class _Answer(Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Answer).decode


def response_of(body: bytes, usage: Usage | None, head: AnswerHead, asked: Asked) -> bytes:
    """The response of a whole answer. Raises `msgspec.MsgspecError` for what is no chat's."""
    choices = _decode(body).choices
    if not choices:
        raise msgspec.ValidationError("an answer without a choice")
    output = _output(choices[0], head, asked)
    return encode(ended(head, asked, output, choices[0].finish_reason, usage))


def response(head: AnswerHead, asked: Asked, status: str, output: list[Any], **more: Any) -> dict[str, Any]:
    """A response in this state. `more`: of `error`, `incomplete_details` and `usage`, what is not null."""
    return {
        "id": response_id(head.request_id),
        "object": "response",
        "created_at": head.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": output,
        **asked.echo,
        **more,
    }


def ended(
    head: AnswerHead, asked: Asked, output: list[Any], finish_reason: str | None, usage: Usage | None
) -> dict[str, Any]:
    """A response that is told to its end."""
    reason = _CUT.get(finish_reason or "")
    cut = {} if reason is None else {"incomplete_details": {"reason": reason}}
    told = {} if usage is None else {"usage": _usage(usage)}
    return response(head, asked, status_of(finish_reason), output, **cut, **told)


def status_of(finish_reason: str | None) -> str:
    """Of a response that ended so, and of its last item."""
    return INCOMPLETE if finish_reason in _CUT else COMPLETED


def message_item(item: str, status: str, content: list[Any]) -> dict[str, Any]:
    """What was said."""
    return {"id": item, "type": "message", "status": status, "role": "assistant", "content": content}


def reasoning_item(item: str, status: str, content: list[Any]) -> dict[str, Any]:
    """What was thought."""
    return {"id": item, "type": "reasoning", "status": status, "summary": [], "content": content}


def call_item(item: str, status: str, call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A call of a function."""
    called = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": item, "type": "function_call", "status": status, **called}


def text_part(text: Any, logprobs: list[Raw]) -> dict[str, Any]:
    """A text that was said."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def refusal_part(text: Any) -> dict[str, Any]:
    """A text that says why nothing else is said."""
    return {"type": "refusal", "refusal": text}


def thought_part(text: Any) -> dict[str, Any]:
    """A text that was thought."""
    return {"type": "reasoning_text", "text": text}


def as_text(arguments: Raw) -> Raw:
    """A call's arguments as a JSON string; some engines send the object itself."""
    said = bytes(arguments)
    if said.startswith(b'"'):
        return arguments
    return Raw(encode("" if said in (b"", b"null") else said.decode()))


def _output(choice: _Choice, head: AnswerHead, asked: Asked) -> list[Any]:
    said, status = choice.message, status_of(choice.finish_reason)
    output: list[dict[str, Any]] = []

    def name(kind: str) -> str:
        return item_id(kind, head.request_id, len(output))

    thought = said.reasoning_content or said.reasoning
    if thought:
        output.append(reasoning_item(name("rs"), COMPLETED, [thought_part(thought)]))
    logprobs = (choice.logprobs.content or []) if asked.wants_logprobs and choice.logprobs is not None else []
    parts = [text_part(said.content, logprobs)] if said.content else []
    parts += [refusal_part(said.refusal)] if said.refusal else []
    if parts or (not thought and not said.tool_calls):
        output.append(message_item(name("msg"), COMPLETED, parts or [text_part("", [])]))
    for number, call in enumerate(said.tool_calls or ()):
        call_id = call.id or item_id("call", head.request_id, number)
        arguments = as_text(call.function.arguments)
        output.append(call_item(name("fc"), COMPLETED, call_id, call.function.name, arguments))
    output[-1]["status"] = status
    return output


def _usage(usage: Usage) -> dict[str, Any]:
    """Clients need every number: what an engine does not tell is 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
