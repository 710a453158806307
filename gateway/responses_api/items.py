"""The items of a conversation, made the messages of a chat. Pure.

What an assistant thought, said and called in one turn are items of their own here and one message there. What chats
have no word for is told in the nearest they have: docs/design/021-responses.md.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from gateway.errors import ClientError
from gateway.fields import is_longer, reader
from gateway.prompt import MAX_PARTS
from gateway.reading import read_at, wrong

Chat = dict[str, Any]  # a chat's message, to be encoded
encode = msgspec.json.Encoder().encode


class _Text(Struct, tag="input_text"):
    text: str


class _Image(Struct, tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None


class _Said(Struct, tag="output_text"):
    text: str


class _Refusal(Struct, tag="refusal"):
    refusal: str


class _Message(Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_Text | _Image | _Said | _Refusal]


class _Call(Struct):
    call_id: str
    name: str
    arguments: str


class _Output(Struct):
    call_id: str
    output: str | list[_Text | _Image]


class _Thought(Struct):
    text: str


class _Reasoning(Struct):
    summary: list[_Thought] = []
    content: list[_Thought] | None = None


class Kind(Struct):
    """What every item may have."""

    type: str | None = None
    role: str | None = None
    id: str | None = None
    status: str | None = None


class _Outline(Struct):
    content: Raw = Raw()
    output: Raw = Raw()
    summary: Raw = Raw()


_kind = reader(Kind)
_outline = reader(_Outline)
_READERS = {
    "message": reader(_Message),
    "function_call": reader(_Call),
    "function_call_output": reader(_Output),
    "reasoning": reader(_Reasoning),
}
_ALLOWED: dict[str, tuple[type, ...]] = {
    "user": (_Text, _Image),
    "assistant": (_Said, _Refusal),
    "system": (_Text,),
    "developer": (_Text,),
}


def kind_of(item: Raw, path: str) -> tuple[str, str | None]:
    """(its kind, its id). Raises `ClientError`."""
    found: Kind = read_at(path, item, _kind)
    kind = found.type or ("item_reference" if found.role is None and found.id else "message")
    return kind, found.id


def chat_messages(items: Iterable[tuple[str, Raw]]) -> list[Chat]:
    """The messages that (path, item) are together. Raises `ClientError` naming what is wrong by its path."""
    turns = _Turns()
    for path, item in items:
        kind, _ = kind_of(item, path)
        if kind not in _READERS:
            raise wrong(f"{path}.type", f"{kind[:64]} is nothing that a model here can be told")
        if len(item) > MAX_PARTS:
            _check_counts(item, path)
        turns.add(path, read_at(path, item, _READERS[kind]))
    return turns.end()


def _check_counts(item: Raw, path: str) -> None:
    """Raises `ClientError` for far too many parts before they are made: a million take a part of a second."""
    outline: _Outline = read_at(path, item, _outline)
    for name in ("content", "output", "summary"):
        parts = getattr(outline, name)
        if len(parts) > MAX_PARTS and is_longer(parts, MAX_PARTS):
            raise wrong(f"{path}.{name}", f"it may hold at most {MAX_PARTS} parts")


class _Turns:
    """`_open`: the assistant's message that still grows; `_shown`: pictures out of tools, told behind their results."""

    def __init__(self) -> None:
        self._messages: list[Chat] = []
        self._open: Chat | None = None
        self._shown: list[Chat] = []

    def add(self, path: str, item: Any) -> None:
        match item:
            case _Output():
                self._close()
                self._result(path, item)
                return
            case _Reasoning():
                thoughts = item.content or item.summary
                self._assistant("reasoning_content", "\n".join(one.text for one in thoughts))
            case _Call():
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                self._show()
                if self._open is None:
                    self._open = {"role": "assistant", "content": None}
                self._open.setdefault("tool_calls", []).append(call)
            case _Message(role="assistant"):
                self._assistant("content", _content(item, path))
            case _:
                self._close()
                self._show()
                self._messages.append({"role": item.role, "content": _content(item, path)})

    def end(self) -> list[Chat]:
        self._close()
        self._show()
        return self._messages

    def _assistant(self, member: str, value: Any) -> None:
        """More of the assistant's turn; what it has already, or what comes before calls, begins another."""
        self._show()
        is_over = self._open is not None and (
            "tool_calls" in self._open or self._open["content"] is not None or member in self._open.keys() - {"content"}
        )
        if is_over:
            self._close()
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
        if value or member == "content":
            self._open[member] = value

    def _result(self, path: str, item: _Output) -> None:
        found = item.output
        if isinstance(found, list):
            parts = [(f"{path}.output[{place}]", one) for place, one in enumerate(found)]
            self._shown += [_part(one, where) for where, one in parts if isinstance(one, _Image)]
            found = "\n".join(one.text for one in found if isinstance(one, _Text))
        self._messages.append({"role": "tool", "tool_call_id": item.call_id, "content": found})

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open["content"] is None and "tool_calls" not in self._open:
            self._open["content"] = ""
        self._messages.append(self._open)
        self._open = None

    def _show(self) -> None:
        if self._shown:
            self._messages.append({"role": "user", "content": self._shown})
            self._shown = []


def _content(message: _Message, path: str) -> str | list[Chat]:
    """One text as it is said in most chats, so that both spellings have one prefix."""
    content = message.content
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if not isinstance(part, _ALLOWED[message.role]):
            kind = part.__struct_config__.tag
            raise wrong(f"{path}.content[{place}].type", f"{kind} has no place in a message of the {message.role}")
    parts = [_part(part, f"{path}.content[{place}]") for place, part in enumerate(content)]
    if not parts:
        return ""
    return str(parts[0]["text"]) if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(part: _Text | _Image | _Said | _Refusal, path: str) -> Chat:
    if isinstance(part, _Image):
        return _picture(part, path)
    return {"type": "text", "text": part.refusal if isinstance(part, _Refusal) else part.text}


def _picture(part: _Image, path: str) -> Chat:
    if part.image_url is None or not part.image_url.startswith("data:"):
        where, why = ("image_url", "media must be inline as a data: URL") if part.image_url else ("file_id", _NO_FILES)
        raise wrong(f"{path}.{where}", why)
    detail = {} if part.detail is None else {"detail": part.detail}
    return {"type": "image_url", "image_url": {"url": part.image_url, **detail}}


_NO_FILES = "there are no files here: media must be inline, as the data: URL of image_url"


def too_many(most: int) -> ClientError:
    """400: a conversation of too many items."""
    return ClientError(f"input may hold at most {most} items, earlier turns included", param="input")
