"""A client's bytes become a validated `InferenceRequest`, or a `ClientError` that names the field.

The top level is read into raw values, so that duplicate and escaped spellings of a key become one and nested values
keep the client's own bytes; only what the gateway acts on is typed. Nothing here knows tenants or engines.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.errors import ClientError
from policies.lane import Lane


class Surface(Enum):
    """The inference endpoints, by path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request whose shape is known to be sound.

    `fields`: the body's top level, nested values as the client wrote them. `segments`: the canonical prompt, one
    piece a tool block or message. `home_segments`: how many of them all turns of a conversation share (up to the
    first user message): they choose a cold prompt's home. `num_choices`: answers to one request, `n` for each prompt.
    `tier_lane`: what `service_tier` asks for. `max_output_tokens`: for all choices.
    """

    surface: Surface
    model: str
    fields: dict[str, Raw]
    segments: tuple[bytes, ...]
    home_segments: int
    is_streaming: bool
    wants_usage: bool
    num_choices: int
    max_output_tokens: int | None
    tier_lane: Lane | None

    @property
    def prompt_bytes(self) -> int:
        """Size of the canonical prompt."""
        return sum(map(len, self.segments))


class _Message(msgspec.Struct):
    role: str
    content: str | list[Raw] | None = None
    name: str | None = None
    tool_calls: Raw = Raw()
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Prompt(NamedTuple):
    segments: tuple[bytes, ...]
    home_segments: int
    num_prompts: int


_MAX_OUTPUT = 10_000_000  # chosen: above every engine's context, below every engine's integers
_MAX_PROMPTS = 128  # chosen: as `n`
_MAX_STOPS = 64  # chosen: OpenAI allows 4, engines more

_body_decoder = msgspec.json.Decoder(dict[str, Raw])
_messages_decoder = msgspec.json.Decoder(list[_Message])
_part_decoder = msgspec.json.Decoder(dict[str, Any])


def _reader(kind: Any) -> Callable[[Raw], Any]:
    return msgspec.json.Decoder(kind).decode


_string = _reader(str)
_flag = _reader(bool | None)
_count = _reader(int | None)
_number = _reader(float | None)
_strings = _reader(str | list[str] | None)
_options = _reader(_StreamOptions | None)
_tier = _reader(str | None)
_prompt = _reader(str | list[str | int | list[int]])

_WHOLE: dict[str, tuple[int, int]] = {  # field: the least and the most it may be
    "max_tokens": (1, _MAX_OUTPUT),
    "max_completion_tokens": (1, _MAX_OUTPUT),
    "min_tokens": (0, _MAX_OUTPUT),
    "n": (1, 128),
    "best_of": (1, 128),
    "seed": (-(2**63), 2**63 - 1),
    "top_k": (-1, 2**31 - 1),
    "top_logprobs": (0, 1000),
}
_REAL: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "repetition_penalty": (0, 100),
}
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TIERS = {"flex": Lane.BULK, "priority": Lane.INTERACTIVE}


def read(surface: Surface, body: bytes) -> InferenceRequest:
    """The request in `body`. Raises `ClientError` (400) naming the field that is wrong."""
    fields = _top_level(body)
    model = _typed(fields, "model", _string)
    if not model:
        raise ClientError("model must be a string that names a model; GET /v1/models lists them", param="model")
    _check_numbers(fields)
    _check_stop(fields)
    options = _typed(fields, "stream_options", _options)
    is_streaming = bool(_typed(fields, "stream", _flag))
    if options is not None and not is_streaming:
        raise ClientError("stream_options is only allowed when stream is true", param="stream_options")
    tier = _typed(fields, "service_tier", _tier)
    prompt = _chat_prompt(fields) if surface is Surface.CHAT else _completion_prompt(fields)
    num_choices = prompt.num_prompts * (_typed(fields, "n", _count) or 1)
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        segments=prompt.segments,
        home_segments=prompt.home_segments,
        is_streaming=is_streaming,
        wants_usage=bool(options and options.include_usage),
        num_choices=num_choices,
        max_output_tokens=_output_bound(fields, num_choices),
        tier_lane=_TIERS.get(tier or ""),
    )


def _top_level(body: bytes) -> dict[str, Raw]:
    try:
        body.decode()  # raw values are passed on unread: what is not UTF-8 must stop here
        fields = _body_decoder.decode(body)
    except UnicodeDecodeError:
        raise ClientError("the body is not UTF-8") from None
    except RecursionError:
        raise ClientError("the body is nested too deeply") from None
    except msgspec.MsgspecError as error:
        if _LONE_SURROGATE.search(body):
            raise ClientError(f"the body has an unpaired surrogate escape: {error}") from None
        raise ClientError(f"the body is not a JSON object: {error}") from None
    if _LONE_SURROGATE.search(body):
        _check_surrogates(fields)
    return fields


def _check_surrogates(fields: dict[str, Raw]) -> None:
    """Half of an emoji must never reach an engine: raw values have not been looked into yet."""
    for name, value in fields.items():
        try:
            msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ClientError(f"{name} is not valid JSON text: {error}", param=name) from None


def _typed(fields: dict[str, Raw], name: str, reader: Callable[[Raw], Any]) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    try:
        return reader(value)
    except RecursionError:
        raise ClientError(f"{name} is nested too deeply", param=name) from None
    except msgspec.MsgspecError as error:
        raise ClientError(f"{name}: {_plainly(error)}", param=name) from None


def _plainly(error: Exception) -> str:
    return str(error).replace("`", "").removesuffix(" - at $")


def _check_numbers(fields: dict[str, Raw]) -> None:
    for name in fields.keys() & _WHOLE.keys():
        value = _typed(fields, name, _count)
        least, most = _WHOLE[name]
        if value is not None and not least <= value <= most:
            raise ClientError(f"{name} must be between {least} and {most}, got {value}", param=name)
    for name in fields.keys() & _REAL.keys():
        number = _typed(fields, name, _number)
        low, high = _REAL[name]
        if number is not None and not low <= number <= high:
            raise ClientError(f"{name} must be between {low:g} and {high:g}, got {number:g}", param=name)


def _check_stop(fields: dict[str, Raw]) -> None:
    stops = _typed(fields, "stop", _strings)
    if isinstance(stops, list) and len(stops) > _MAX_STOPS:
        raise ClientError(f"stop may hold at most {_MAX_STOPS} strings, got {len(stops)}", param="stop")


def _output_bound(fields: dict[str, Raw], num_choices: int) -> int | None:
    bound = _typed(fields, "max_completion_tokens", _count) or _typed(fields, "max_tokens", _count)
    return bound * num_choices if bound else None


def _chat_prompt(fields: dict[str, Raw]) -> _Prompt:
    """Tools first (templates put them into the system part), then one piece a message."""
    messages = _typed(fields, "messages", _messages_decoder.decode)
    if not messages:
        raise ClientError("messages must be a list of at least one message", param="messages")
    segments = [b"tools\x1f" + bytes(fields["tools"])] if "tools" in fields else []
    num_tools = len(segments)
    segments += [_message_bytes(message, index) for index, message in enumerate(messages)]
    first_user = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    return _Prompt(tuple(segments), num_tools + first_user + 1, 1)


def _message_bytes(message: _Message, index: int) -> bytes:
    head = f"{message.role}\x1f{message.name or ''}\x1f{message.tool_call_id or ''}\x1f"
    if isinstance(message.content, str):
        text = (head + message.content).encode()
    elif message.content is None:
        text = head.encode()
    else:
        parts = (_part_bytes(part, index, place) for place, part in enumerate(message.content))
        text = head.encode() + b"\x1e".join(parts)
    return text + b"\x1f" + bytes(message.tool_calls) if message.tool_calls else text


def _part_bytes(raw: Raw, index: int, place: int) -> bytes:
    where = f"messages[{index}].content[{place}]"
    try:
        part = _part_decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise ClientError(f"{where} must be an object with a type", param="messages") from None
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"]).encode()
    _check_media(part, where)
    return bytes(raw)


def _check_media(part: dict[str, Any], where: str) -> None:
    """A part must not make an engine open a connection that the tenant names: only inline data passes."""
    for key, value in part.items():
        url = value.get("url") if isinstance(value, dict) else value if key.endswith("url") else None
        if isinstance(url, str) and not url.startswith("data:"):
            raise ClientError(f"{where}: media must be inline as a data: URL", param="messages")


def _completion_prompt(fields: dict[str, Raw]) -> _Prompt:
    """The prompt as it came; a list of strings or of token lists is several prompts."""
    prompt = _typed(fields, "prompt", _prompt)
    if prompt is None or prompt == []:
        raise ClientError("prompt must be a string, a list of strings or token ids", param="prompt")
    if isinstance(prompt, str):
        return _Prompt((prompt.encode(),), 1, 1)
    num_prompts = 1 if isinstance(prompt[0], int) else len(prompt)
    if num_prompts > _MAX_PROMPTS:
        raise ClientError(f"prompt may hold at most {_MAX_PROMPTS} prompts, got {num_prompts}", param="prompt")
    return _Prompt((bytes(fields["prompt"]),), 1, num_prompts)
