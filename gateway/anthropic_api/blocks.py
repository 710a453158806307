"""Anthropic's messages and their content blocks, made the messages of a chat. Pure.

What chats have no word for is told in the nearest they have, and only where nothing better is left: see
docs/design/020-anthropic-messages.md.
"""

import re
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.fields import is_longer, reader
from gateway.prompt import MAX_PARTS
from gateway.reading import check_object, read_at, wrong

_MEDIA = re.compile(r"image/[a-z0-9.+-]{1,64}")


class Text(Struct, tag="text"):
    """A text. `cache_control` and `citations` are passed over."""

    text: str


class _Base64(Struct, tag="base64"):
    media_type: str
    data: str


class _Url(Struct, tag="url"):
    url: str


class _Image(Struct, tag="image"):
    source: _Base64 | _Url


class _ToolUse(Struct, tag="tool_use"):
    id: str
    name: str
    input: Raw


class _ToolResult(Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[Text | _Image] | None = None
    is_error: bool | None = None


class _Thinking(Struct, tag="thinking"):
    thinking: str = ""


class _Redacted(Struct, tag="redacted_thinking"):
    """Words of another provider that nobody here can read."""


_Block = Text | _Image | _ToolUse | _ToolResult | _Thinking | _Redacted


class Message(Struct):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Outline(Struct):
    content: Raw = Raw()


encode = msgspec.json.Encoder().encode
_outlines = reader(list[_Outline])
_ALLOWED: dict[str, tuple[type, ...]] = {
    "user": (Text, _Image, _ToolResult),
    "assistant": (Text, _ToolUse, _Thinking, _Redacted),
    "system": (Text,),
}
Chat = dict[str, Any]  # a chat's message, to be encoded


def check_nested_counts(messages: Raw) -> None:
    """Raises `ClientError` for a tool result of far too many parts before they are made."""
    for index, message in enumerate(read_at("messages", messages, _outlines)):
        if len(message.content) <= MAX_PARTS or bytes(memoryview(message.content)[:1]) != b"[":
            continue
        path = f"messages[{index}].content"
        for place, block in enumerate(read_at(path, message.content, _outlines)):
            if len(block.content) > MAX_PARTS and is_longer(block.content, MAX_PARTS):
                raise wrong(f"{path}[{place}].content", f"it may hold at most {MAX_PARTS} parts")


def chat_messages(message: Message, index: int) -> list[Chat]:
    """The messages that one of Anthropic's is in a chat: tool results are messages of their own, before the rest."""
    content, path = message.content, f"messages[{index}].content"
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    for place, block in enumerate(content):
        if not isinstance(block, _ALLOWED[message.role]):
            kind = block.__struct_config__.tag
            raise wrong(f"{path}[{place}].type", f"{kind} has no place in a message of the {message.role}")
    if message.role == "assistant":
        return [_of_assistant(content, path)]
    return _of_user(message.role, content, path)


def joined(texts: list[Text]) -> str:
    """Several texts as one, as engines join the parts of a message."""
    return "\n".join(one.text for one in texts)


def _of_user(role: str, blocks: list[Any], path: str) -> list[Chat]:
    results: list[Chat] = []
    shown: list[Chat] = []  # pictures in tool results: a chat's tool message holds texts alone
    parts: list[Chat] = []
    for place, block in enumerate(blocks):
        if isinstance(block, _ToolResult):
            results.append(_result(block))
            if isinstance(block.content, list):
                found = enumerate(block.content)
                shown += [_part(one, f"{path}[{place}].content[{n}]") for n, one in found if isinstance(one, _Image)]
        else:
            parts.append(_part(block, f"{path}[{place}]"))
    parts = shown + parts
    if results and not parts:
        return results
    return [*results, {"role": role, "content": _content(parts)}]


def _result(block: _ToolResult) -> Chat:
    found = block.content
    text = joined([one for one in found if isinstance(one, Text)]) if isinstance(found, list) else found or ""
    if block.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}


def _part(block: Text | _Image, path: str) -> Chat:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    source = block.source
    if isinstance(source, _Url):
        raise wrong(f"{path}.source.type", "media must be inline, as base64")
    if not _MEDIA.fullmatch(source.media_type):
        raise wrong(f"{path}.source.media_type", "it must name a kind of image")
    return {"type": "image_url", "image_url": {"url": f"data:{source.media_type};base64,{source.data}"}}


def _of_assistant(blocks: list[Any], path: str) -> Chat:
    texts = [{"type": "text", "text": one.text} for one in blocks if isinstance(one, Text)]
    thoughts = [one.thinking for one in blocks if isinstance(one, _Thinking) and one.thinking]
    calls = [_call(one, f"{path}[{place}]") for place, one in enumerate(blocks) if isinstance(one, _ToolUse)]
    message: Chat = {"role": "assistant", "content": None if calls and not texts else _content(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: _ToolUse, path: str) -> Chat:
    check_object(block.input, f"{path}.input")
    function = {"name": block.name, "arguments": bytes(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _content(parts: list[Chat]) -> str | list[Chat]:
    """One text as it is said in most chats, so that both spellings have one prefix."""
    if not parts:
        return ""
    only = parts[0]
    return str(only["text"]) if len(parts) == 1 and only["type"] == "text" else parts
