"""Messages as a chat template wants them: roles and parts checked, the client's texts guarded. Pure."""

import re
from typing import Any

import msgspec

from engines.worker.content_guard import ContentGuard
from engines.worker.errors import ApiError, invalid
from engines.worker.schema import Message, ToolCall

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NAME = re.compile(r"[^\s<|\\/>]{1,64}")  # OpenAI's rule for a participant's name


def template_messages(
    messages: list[Message], guard: ContentGuard, *, knows_developer: bool, continues_last: bool
) -> list[dict[str, Any]]:
    """The `messages` variable of a template. Raises `ApiError` 400 naming the message at fault.

    `continues_last` puts the guard's end marker behind the last message's text.
    """
    if not messages:
        raise invalid("messages", "`messages` must not be empty")
    rendered = [_message(message, f"messages[{index}]", guard) for index, message in enumerate(messages)]
    for message in rendered:
        if message["role"] == "developer" and not knows_developer:
            message["role"] = "system"
    if continues_last:
        rendered[-1]["content"] += guard.end_marker
    return rendered


def content_chars(messages: list[Message]) -> int:
    """Characters of all texts, the cheapest lower bound of a prompt's length."""
    return sum(
        len(message.content)
        if isinstance(message.content, str)
        else sum(len(p.text or "") for p in message.content or [])
        for message in messages
    )


def _message(message: Message, path: str, guard: ContentGuard) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise invalid(f"{path}.role", f"`{path}.role` must be one of {', '.join(sorted(_ROLES))}")
    for field in ("function_call", "audio"):
        if getattr(message, field) is not None:
            raise invalid(f"{path}.{field}", f"`{path}.{field}` is not supported by this worker")
    rendered: dict[str, Any] = {"role": message.role, "content": guard.hide(_text(message, path))}
    if message.name is not None:
        if not _NAME.fullmatch(message.name):
            raise invalid(
                f"{path}.name", f"`{path}.name` must be 1 to 64 characters without white space and < | \\ / >"
            )
        rendered["name"] = guard.hide(message.name)
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = guard.hide(message.tool_call_id)
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    if reasoning is not None:
        rendered["reasoning_content"] = guard.hide(reasoning)
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        rendered["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{index}]", guard) for index, call in calls]
    return rendered


def _text(message: Message, path: str) -> str:
    """All text of a message; several parts are joined as they are."""
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise invalid(f"{path}.content", f"`{path}.content` is required")
    for index, part in enumerate(message.content):
        if part.type != "text":
            raise _unreadable_part(f"{path}.content[{index}]", part.type)
        if part.text is None:
            raise invalid(f"{path}.content[{index}].text", f"`{path}.content[{index}].text` is required")
    return "".join(part.text or "" for part in message.content)


def _unreadable_part(path: str, kind: str) -> ApiError:
    known = kind if kind in {"image_url", "input_audio", "file", "video_url", "audio_url", "refusal"} else "such"
    return invalid(path, f"`{path}`: this model reads text, not {known} parts", code="unsupported_parameter")


def _tool_call(call: ToolCall, path: str, guard: ContentGuard) -> dict[str, Any]:
    """A call as templates expect it, with its arguments as an object.

    Python's own parser would let through what is no JSON: NaN, and halves of surrogate pairs, which have no tokens.
    """
    place = f"{path}.function.arguments"
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
        hidden = guard.hide_all(arguments)
    except msgspec.DecodeError:
        raise invalid(place, f"`{place}` is not JSON") from None
    except RecursionError:
        raise invalid(place, f"`{place}` is nested too deeply") from None
    if not isinstance(arguments, dict):
        raise invalid(place, f"`{place}` must be the text of an object")
    function = {"name": guard.hide(call.function.name), "arguments": hidden}
    return {"id": guard.hide(call.id), "type": "function", "function": function}
