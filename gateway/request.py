"""A client's bytes become a validated `InferenceRequest`, or a `ClientError` that names the field.

Only what the gateway acts on is typed and bounded; the rest is passed on. Nothing here knows tenants or engines.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from engines.adapters import surfaces
from engines.contract import Part
from gateway.anthropic_api import paths
from gateway.anthropic_api.request import read_messages
from gateway.audio.request import read_audio
from gateway.errors import ClientError
from gateway.fields import reader, top_level, typed
from gateway.inputs import read_inputs
from gateway.prompt import TokenId, chat_prompt, completion_prompt
from gateway.responses_api.paths import INPUT_TOKENS, RESPONSES
from gateway.responses_api.request import read_responses
from gateway.responses_api.state import Earlier
from gateway.translation import Translate
from gateway.wanted import Inputs
from policies.lane import Lane


class Surface(Enum):
    """The inference endpoints, by path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = surfaces.EMBEDDINGS
    RERANK = surfaces.RERANK
    SCORE = surfaces.SCORE
    TOKENIZE = surfaces.TOKENIZE
    DETOKENIZE = surfaces.DETOKENIZE
    MESSAGES = paths.MESSAGES
    COUNT_TOKENS = paths.COUNT_TOKENS
    RESPONSES = RESPONSES
    INPUT_TOKENS = INPUT_TOKENS
    TRANSCRIPTIONS = surfaces.TRANSCRIPTIONS
    TRANSLATIONS = surfaces.TRANSLATIONS


GENERATING = (Surface.CHAT, Surface.COMPLETIONS, Surface.MESSAGES, Surface.RESPONSES)
FORMS = (Surface.TRANSCRIPTIONS, Surface.TRANSLATIONS)  # asked by a form; what they say is no chat


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request whose shape is known to be sound.

    `fields`: the body's top level, nested values as the client wrote them. `segments`: the canonical prompt, one
    piece a tool block or message. `home_segments`: how many of them all turns of a conversation share (up to the
    first user message): they choose a cold prompt's home. `num_choices`: answers to one request, `n` for each prompt.
    `tier_lane`: what `service_tier` asks for. `max_output_tokens`: for all choices. `home_hint`: what the client says
    belongs together (`prompt_cache_key`, else `session_id`), as it spelled it; empty for nothing usable. `inputs`: what
    is asked of a surface that generates no text; None of one that does. Then there are no segments, and only of audio a
    stream. `form`: of a surface that is asked by one, its parts instead of `fields`.
    `translate`: of a request in another language, which is a chat here (`surface`, `fields`); None of one in its own.
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
    home_hint: bytes = b""
    inputs: Inputs | None = None
    translate: Translate | None = None
    form: tuple[Part, ...] | None = None

    @property
    def prompt_bytes(self) -> int:
        """Size of the canonical prompt."""
        return sum(map(len, self.segments))


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


_MAX_OUTPUT = 10_000_000  # chosen: above every engine's context, below every engine's integers
_MAX_STOPS = 64  # chosen: OpenAI allows 4, engines more
_MAX_STOP_TOKENS = 1024  # chosen: more than any model has of them

_string = reader(str)
_flag = reader(bool | None)
_count = reader(int | None)
_number = reader(float | None)
_strings = reader(str | list[str] | None)
_options = reader(_StreamOptions | None)
_tier = reader(str | None)
_stop_tokens = reader(Annotated[list[TokenId], Meta(max_length=_MAX_STOP_TOKENS)] | None)

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
_LANE_OF_TIER: dict[str, Lane | None] = {  # of OpenAI, and of those who speak its language
    "flex": Lane.BULK,
    "priority": Lane.INTERACTIVE,
    **dict.fromkeys(("auto", "default", "scale", "standard", "standard_only", "on_demand", "performance")),
}
# llama.cpp's and TGI's own words for the bound, which win over ours; and for how many answers there are.
_OTHER_BOUNDS = frozenset({"n_predict", "max_new_tokens", "n_cmpl"})
MAX_HINT_BYTES = 1024  # chosen: ids are shorter
MAX_MODEL_CHARS = 256  # chosen: twice the longest name that can be configured


def read(surface: Surface, body: bytes, earlier: Earlier | None = None, content_type: bytes = b"") -> InferenceRequest:
    """The request in `body`. Raises `ClientError` (400) naming the field that is wrong.

    `earlier`: what was found of the responses that it names, of one that may name some. `content_type`: of a form.
    """
    if surface in FORMS:
        return _read_form(surface, body, content_type)
    fields = top_level(body)
    model = typed(fields, "model", _string)
    _check_model(model)
    if surface not in GENERATING:
        return _read_inputs(surface, model, fields, earlier or Earlier())
    tier_lane, translate = _tier_lane(fields), None
    if surface is Surface.MESSAGES:
        fields, translate = read_messages(fields)
        surface = Surface.CHAT
    elif surface is Surface.RESPONSES:
        fields, translate = read_responses(fields, earlier or Earlier())
        surface = Surface.CHAT
    _check_numbers(fields)
    _check_stop(fields)
    options = typed(fields, "stream_options", _options)
    is_streaming = bool(typed(fields, "stream", _flag))
    if options is not None and not is_streaming:
        raise ClientError("stream_options is only allowed when stream is true", param="stream_options")
    prompt = chat_prompt(fields) if surface is Surface.CHAT else completion_prompt(fields)
    num_choices = prompt.num_prompts * (typed(fields, "n", _count) or 1)
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        segments=prompt.segments,
        home_segments=prompt.home_segments,
        is_streaming=is_streaming,
        wants_usage=bool(options and options.include_usage),
        num_choices=num_choices,
        max_output_tokens=_output_bound(fields, prompt.num_prompts),
        tier_lane=tier_lane,
        home_hint=_home_hint(fields),
        translate=translate,
    )


def _read_inputs(surface: Surface, model: str, fields: dict[str, Raw], earlier: Earlier) -> InferenceRequest:
    inputs = read_inputs(surface.value, fields, earlier)
    return InferenceRequest(
        surface=surface,
        model=model,
        fields=fields,
        segments=(),
        home_segments=0,
        is_streaming=False,
        wants_usage=False,
        num_choices=1,
        max_output_tokens=0,
        tier_lane=_tier_lane(fields),
        inputs=inputs,
    )


def _read_form(surface: Surface, body: bytes, content_type: bytes) -> InferenceRequest:
    asked = read_audio(surface.value, body, content_type)
    _check_model(asked.model)
    return InferenceRequest(
        surface=surface,
        model=asked.model,
        fields={},
        segments=(),
        home_segments=0,
        is_streaming=asked.is_streaming,
        wants_usage=False,
        num_choices=1,
        max_output_tokens=0,
        tier_lane=None,
        inputs=asked.inputs,
        form=asked.form,
    )


def _check_model(model: str | None) -> None:
    if not model:
        raise ClientError("model must be a string that names a model; GET /v1/models lists them", param="model")
    if len(model) > MAX_MODEL_CHARS:
        raise ClientError(f"model may have at most {MAX_MODEL_CHARS} characters", param="model")


def _tier_lane(fields: dict[str, Raw]) -> Lane | None:
    tier = typed(fields, "service_tier", _tier)
    if tier and tier not in _LANE_OF_TIER:
        raise ClientError(f"service_tier must be one of {', '.join(_LANE_OF_TIER)}", param="service_tier")
    return _LANE_OF_TIER.get(tier or "")


class _Asked(msgspec.Struct):
    service_tier: Raw = Raw()


_decode_asked = msgspec.json.Decoder(_Asked).decode


def asked_lane(body: bytes) -> Lane | None:
    """The lane that `service_tier` asks for, without reading anything else; None for what `read` will refuse."""
    try:
        tier = _decode_asked(body).service_tier
        return _LANE_OF_TIER.get(_tier(tier) or "") if tier else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _home_hint(fields: dict[str, Raw]) -> bytes:
    """A hint is never refused: what is no short string is no hint."""
    for name in ("prompt_cache_key", "session_id"):
        hint = bytes(fields.get(name, b""))
        if hint.startswith(b'"') and len(b'""') < len(hint) <= MAX_HINT_BYTES:
            return hint
    return b""


def _check_numbers(fields: dict[str, Raw]) -> None:
    for name in fields.keys() & _WHOLE.keys():
        value = typed(fields, name, _count)
        least, most = _WHOLE[name]
        if value is not None and not least <= value <= most:
            raise ClientError(f"{name} must be between {least} and {most}, got {value}", param=name)
    for name in fields.keys() & _REAL.keys():
        number = typed(fields, name, _number)
        low, high = _REAL[name]
        if number is not None and not low <= number <= high:
            raise ClientError(f"{name} must be between {low:g} and {high:g}, got {number:g}", param=name)


def _check_stop(fields: dict[str, Raw]) -> None:
    stops = typed(fields, "stop", _strings)
    if isinstance(stops, list) and len(stops) > _MAX_STOPS:
        raise ClientError(f"stop may hold at most {_MAX_STOPS} strings, got {len(stops)}", param="stop")
    typed(fields, "stop_token_ids", _stop_tokens)


def _output_bound(fields: dict[str, Raw], num_prompts: int) -> int | None:
    """The most that all answers can hold; None where there is no bound, or an engine may go by another one."""
    if not _OTHER_BOUNDS.isdisjoint(fields):
        return None
    bounds = (typed(fields, "max_completion_tokens", _count), typed(fields, "max_tokens", _count))
    bound = max((one for one in bounds if one), default=None)  # of two, engines differ in which they obey
    tries = max(typed(fields, "n", _count) or 1, typed(fields, "best_of", _count) or 1)
    return bound * num_prompts * tries if bound else None
