"""The canonical prompt of a request: one piece a tool block or message, equal for equal conversations.

What is said is taken out of its JSON spelling; tools, tool calls and media count as the client wrote them. Media must
be inline: no engine may open a connection or a file that a tenant names.
"""

import re
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from gateway.errors import ClientError
from gateway.fields import LARGE_BYTES, is_longer, reader, typed

MAX_PROMPTS = 128  # chosen: as `n`
MAX_MESSAGES = 16_384  # chosen: four times what is looked at for routing
MAX_PARTS = 16_384  # of one message

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]  # engines hold them in 32 bits

_PLACE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]{0,31}://|file:)", re.IGNORECASE)
_WORDS = frozenset({"text", "refusal", "thinking"})  # members of a part that are read, never fetched
_BEFORE = ("tools", "functions", "documents")  # templates put them into the system part, in some order
_AFTER = ("chat_template_kwargs",)  # may hold as much; most often it is one switch about the answer's beginning


class Prompt(NamedTuple):
    """`home_segments`: how many leading segments all turns of the conversation share, up to the first user message."""

    segments: tuple[bytes, ...]
    home_segments: int
    num_prompts: int


class _Message(msgspec.Struct):
    role: str
    content: str | list[Raw] | None = None
    name: str | None = None
    tool_calls: Raw = Raw()
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Outline(msgspec.Struct):
    content: Raw = Raw()


_messages = reader(list[_Message])
_prompt = reader(str | list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]])
_outline = reader(list[_Outline])
_part_decoder = msgspec.json.Decoder(dict[str, Any])


def chat_prompt(fields: dict[str, Raw]) -> Prompt:
    """Tools and documents first, then one piece a message: all that a template makes tokens of, so that it is paid."""
    if "messages" in fields and len(fields["messages"]) > LARGE_BYTES:
        check_counts(fields)
    messages = typed(fields, "messages", _messages)
    if not messages:
        raise ClientError("messages must be a list of at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise _too_many_messages()
    segments = _named(fields, _BEFORE)
    num_before = len(segments)
    segments += [_message_bytes(message, index) for index, message in enumerate(messages)]
    segments += _named(fields, _AFTER)
    first_user = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    return Prompt(tuple(segments), num_before + first_user + 1, 1)


def completion_prompt(fields: dict[str, Raw]) -> Prompt:
    """The prompt as it came; a list of strings or of token lists is several prompts."""
    prompt = typed(fields, "prompt", _prompt)
    if prompt is None or prompt == []:
        raise ClientError("prompt must be a string, a list of strings or token ids", param="prompt")
    suffix = tuple(_named(fields, ("suffix",)))  # what is to be filled in stands between both
    if isinstance(prompt, str):
        return Prompt((prompt.encode(), *suffix), 1, 1)
    if len(set(map(type, prompt))) > 1:
        raise ClientError("prompt must be all strings, all token ids or all lists of token ids", param="prompt")
    num_prompts = 1 if isinstance(prompt[0], int) else len(prompt)
    if num_prompts > MAX_PROMPTS:
        raise ClientError(f"prompt may hold at most {MAX_PROMPTS} prompts, got {num_prompts}", param="prompt")
    # b"": a list is no string that looks like one
    return Prompt((b"", bytes(fields["prompt"]), *suffix), 2, num_prompts)


def _named(fields: dict[str, Raw], names: tuple[str, ...]) -> list[bytes]:
    """Those of these fields that there are, each as the client wrote it."""
    return [name.encode() + b"\x1f" + bytes(fields[name]) for name in names if name in fields]


def check_counts(fields: dict[str, Raw]) -> None:
    """Raises `ClientError` for too many messages or parts before they are made: a million take a second."""
    if is_longer(fields["messages"], MAX_MESSAGES):
        raise _too_many_messages()
    for index, message in enumerate(typed(fields, "messages", _outline)):
        if len(message.content) > MAX_PARTS and is_longer(message.content, MAX_PARTS):
            raise _too_many_parts(index)


def _too_many_messages() -> ClientError:
    return ClientError(f"messages may hold at most {MAX_MESSAGES} messages", param="messages")


def _too_many_parts(index: int) -> ClientError:
    return ClientError(f"messages[{index}].content may hold at most {MAX_PARTS} parts", param="messages")


def _message_bytes(message: _Message, index: int) -> bytes:
    """Who speaks, what is said, and last the lengths, which make the bytes this message's only.

    They stand last so that messages that begin alike share borders inside them.
    """
    content, more = message.content, _more_than_content(message)
    head = _PLAIN_HEADS.get(message.role) if message.name is message.tool_call_id is None else None
    if head is None:
        head = _head(message.role, message.name or "", message.tool_call_id or "")
    if isinstance(content, str) and not more:
        return f"{head}{content}\x1f{len(content)}".encode()
    if isinstance(content, list):
        if len(content) > MAX_PARTS:
            raise _too_many_parts(index)
        parts = [_part(part, index, place) for place, part in enumerate(content)]
    else:
        parts = [] if content is None else [(content.encode(), str(len(content)))]
    pieces, lengths = [piece for piece, _ in parts], [length for _, length in parts]
    lengths += [f"{len(piece)}m" for piece in more]
    return b"".join([head.encode(), *pieces, *more, b"\x1f", ",".join(lengths).encode()])


def _head(role: str, name: str = "", call: str = "") -> str:
    return f"{len(role)},{len(name)},{len(call)}\x1f{role}{name}{call}"


_PLAIN_HEADS = {role: _head(role) for role in ("system", "developer", "user", "assistant")}


def _more_than_content(message: _Message) -> list[bytes]:
    """What was thought, what was refused, which tools were called."""
    thought = message.reasoning_content or message.reasoning
    if not (thought or message.refusal or message.tool_calls):
        return []
    return [(thought or "").encode(), (message.refusal or "").encode(), bytes(message.tool_calls)]


def _part(raw: Raw, index: int, place: int) -> tuple[bytes, str]:
    """A content part's bytes, and their length marked with their kind."""
    where = f"messages[{index}].content[{place}]"
    try:
        part = _part_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise ClientError(f"{where} must be an object with a type", param="messages") from None
    text = part.get("text") if part.get("type") == "text" else None
    if not isinstance(text, str):
        _check_media(part, where)
        return bytes(raw), f"{len(raw)}r"
    if len(part) > 2:
        _check_media(part, where)
    return text.encode(), str(len(text))


def _check_media(part: dict[str, Any], where: str) -> None:
    """Raises `ClientError` for a string anywhere in the part that an engine might fetch."""
    left = list(part.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += [(key, one) for one in value]
        elif isinstance(value, str) and key not in _WORDS and _names_a_place(key, value):
            raise ClientError(f"{where}: media must be inline as a data: URL", param="messages")


def _names_a_place(key: str, value: str) -> bool:
    is_url = key.casefold().endswith(("url", "uri"))
    return not value.startswith("data:") if is_url else _PLACE.match(value) is not None
