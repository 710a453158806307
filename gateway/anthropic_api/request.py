"""A body of `/v1/messages` or `/v1/messages/count_tokens` becomes the fields of a chat, which every engine takes. Pure.

An allow-list: what a chat has no word for is passed over, and refused where passing over would be a lie.
"""

from functools import partial
from typing import Literal

from msgspec import Raw, Struct

from gateway.anthropic_api.blocks import Chat, Message, Text, chat_messages, check_nested_counts, encode, joined
from gateway.anthropic_api.errors import NO_THREADS
from gateway.anthropic_api.tools import tool_fields
from gateway.anthropic_api.translation import MessageTranslation
from gateway.errors import ClientError
from gateway.fields import LARGE_BYTES, reader
from gateway.prompt import MAX_MESSAGES, check_counts
from gateway.reading import check_object, read, wrong
from gateway.translation import Translate

Fields = dict[str, Raw]

# Of a chat, and of the same meaning here; of engines, for those who know what they ask.
_SAME = (
    "model", "max_tokens", "temperature", "top_p", "top_k", "stream",
    "min_p", "repetition_penalty", "seed", "prompt_cache_key", "session_id",
)  # fmt: skip
_NOT_HERE = ("mcp_servers", "container", "compaction")  # what they ask for would be silently left undone
_MAX_STOPS = 64  # as a chat's `stop`


class _Metadata(Struct):
    user_id: str | None = None


class _Thinking(Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    display: Literal["summarized", "omitted"] | None = None


class _Format(Struct):
    type: Literal["json_schema"]
    schema: Raw


class _Output(Struct):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _Format | None = None


_messages = reader(list[Message])
_system = reader(str | list[Text])
_stops = reader(list[str])
_metadata = reader(_Metadata)
_thinking = reader(_Thinking)
_output = reader(_Output)
_whole = reader(int)
_members = reader(dict[str, Raw])
_TRUE, _FALSE = Raw(b"true"), Raw(b"false")
_THINKS = {"enabled": _TRUE, "disabled": _FALSE}  # else the model's own way


def read_messages(fields: Fields) -> tuple[Fields, Translate]:
    """(the fields of the chat, who turns its answer back). Raises `ClientError` naming the field that is wrong."""
    for name in _NOT_HERE:
        if bytes(fields.get(name, b"null")) not in (b"null", b"[]"):
            raise wrong(name, "nobody here can do that")
    if read(fields, "max_tokens", _whole) is None:
        raise wrong("max_tokens", "it is required, and must be a whole number")
    found = {name: fields[name] for name in _SAME if name in fields}
    found |= prompt_fields(fields)
    are_too_many = len(fields.get("stop_sequences", b"")) > LARGE_BYTES  # a million are not made
    stops: list[str] = [] if are_too_many else read(fields, "stop_sequences", _stops) or []
    if are_too_many or len(stops) > _MAX_STOPS or not all(stops):
        raise wrong("stop_sequences", f"it may hold at most {_MAX_STOPS} strings, none of them empty")
    if stops:
        found["stop"] = Raw(encode(stops))
    metadata: _Metadata | None = read(fields, "metadata", _metadata)
    if metadata is not None and metadata.user_id:
        found["user"] = Raw(encode(metadata.user_id))
    found |= _output_fields(fields)
    thinking: _Thinking | None = read(fields, "thinking", _thinking)
    is_hidden = thinking is not None and thinking.display == "omitted"
    return found, partial(MessageTranslation, stops=frozenset(stops), hides_thinking=is_hidden)


def prompt_fields(fields: Fields) -> Fields:
    """Of all that a template makes tokens of: what is counted is what will be read. Raises `ClientError`."""
    if bytes(fields.get("thread", b"null")) != b"null":
        why = "thread: no conversation is held here between messages: send all of it, without a thread"
        raise ClientError(why, param="thread", code=NO_THREADS)
    system: str | list[Text] | None = read(fields, "system", _system)
    chat: list[Chat] = []
    if system:
        chat.append({"role": "system", "content": system if isinstance(system, str) else joined(system)})
    for index, message in enumerate(_turns(fields)):
        chat += chat_messages(message, index)
    found = {"messages": Raw(encode(chat)), **tool_fields(fields)}
    if _is_begun(chat[-1]):
        found |= {"continue_final_message": _TRUE, "add_generation_prompt": _FALSE}
    variables = _template_variables(fields)
    if variables:
        found["chat_template_kwargs"] = Raw(encode(variables))
    return found


def _turns(fields: Fields) -> list[Message]:
    raw = fields.get("messages")
    if raw is not None and len(raw) > LARGE_BYTES:
        check_counts(fields)
        check_nested_counts(raw)
    turns: list[Message] = read(fields, "messages", _messages) or []
    if not turns:
        raise wrong("messages", "it must be a list of at least one message")
    if len(turns) > MAX_MESSAGES:
        raise ClientError(f"messages may hold at most {MAX_MESSAGES} messages", param="messages")
    return turns


def _is_begun(last: Chat) -> bool:
    """Whether the answer's own beginning is given, to be gone on with."""
    return last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last


def _template_variables(fields: Fields) -> Fields:
    thinking: _Thinking | None = read(fields, "thinking", _thinking)
    if len(fields.get("chat_template_kwargs", b"")) > LARGE_BYTES:  # a million members are not made
        raise wrong("chat_template_kwargs", f"it may have at most {LARGE_BYTES} bytes")
    variables: Fields = read(fields, "chat_template_kwargs", _members) or {}
    if thinking is not None and thinking.type in _THINKS:
        variables.setdefault("enable_thinking", _THINKS[thinking.type])
    return variables


def _output_fields(fields: Fields) -> Fields:
    output: _Output | None = read(fields, "output_config", _output)
    found: Fields = {}
    if output is not None and output.effort is not None:
        found["reasoning_effort"] = Raw(encode("high" if output.effort in ("xhigh", "max") else output.effort))
    if output is not None and output.format is not None:
        check_object(output.format.schema, "output_config.format.schema")
        schema = {"name": "output", "schema": output.format.schema, "strict": True}
        found["response_format"] = Raw(encode({"type": "json_schema", "json_schema": schema}))
    return found
