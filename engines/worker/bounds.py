"""What a generation may ask for: every documented field within its range, or a 400 that names it. Pure.

Nothing is clamped, but for what means the same: a `top_k` beyond the vocabulary as none, a tiny temperature as 0.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from engines.core.sequence import SamplingParams
from engines.worker.errors import invalid, unsupported
from engines.worker.schema import ChatRequest, CompletionRequest, GenerationFields
from engines.worker.stops import StopMatcher
from policies.lane import Lane

_INT64 = 2**63
MAX_CHOICES = 16  # of one prompt; chosen: above it a client means a batch
MAX_STOPS = 32  # OpenAI allows 4; chosen
MAX_STOP_CHARS = 256  # chosen; with MAX_STOPS bounds the automaton to 8192 states
MAX_STOP_TOKENS = 128  # chosen
MAX_LOGIT_BIASES = 1024  # chosen
MAX_TOP_LOGPROBS = 20  # OpenAI's
_LEAST_TEMPERATURE = 1e-6  # below, all but the best have no chance, and single precision ends somewhere
_SALT = re.compile(r"[^@/\\\x00]{1,128}")  # vLLM's rule for cache_salt
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class _Range(NamedTuple):
    low: float
    high: float
    excludes_low: bool = False


_RANGES = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, excludes_low=True),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0.01, 10),  # logits are divided by it
    "n": _Range(1, MAX_CHOICES),
    "seed": _Range(-_INT64, _INT64 - 1),
    "priority": _Range(-_INT64, _INT64 - 1),
    "min_tokens": _Range(0, _INT64 - 1),
    "max_tokens": _Range(1, _INT64 - 1),
    "max_completion_tokens": _Range(1, _INT64 - 1),
    "top_k": _Range(-1, _INT64 - 1),
    "top_logprobs": _Range(0, MAX_TOP_LOGPROBS),
}

_REFUSED = (
    *("allowed_token_ids", "bad_words", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"),
    *("kv_transfer_params", "functions", "function_call", "audio", "web_search_options", "chat_template"),
    *("suffix", "prompt_embeds"),
)


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """A checked request, but for its prompt. `max_tokens` still has to be held against the prompt's length.

    `max_tokens_field`: the name under which the client sent it. `matcher` is None without stop strings.
    """

    sampling: SamplingParams
    max_tokens: int | None
    max_tokens_field: str
    num_choices: int
    matcher: StopMatcher | None
    include_stop: bool
    lane: Lane
    salt: str
    is_streaming: bool
    include_usage: bool
    continuous_usage: bool


def check_generation(request: ChatRequest | CompletionRequest, vocab_size: int) -> GenerationSpec:
    """The request's generation, checked. Raises `ApiError` 400."""
    _check_ranges(request)
    _refuse_unsupported(request)
    options = request.stream_options
    if options is not None and not request.stream:
        raise invalid("stream_options", "`stream_options` needs `stream`: true")
    if request.cache_salt is not None and not _SALT.fullmatch(request.cache_salt):
        raise invalid("cache_salt", "`cache_salt` must be 1 to 128 characters without @ / \\ and NUL")
    if request.request_id is not None and not REQUEST_ID.fullmatch(request.request_id):
        raise invalid("request_id", "`request_id` must be 1 to 128 letters, digits or any of . _ : -")
    field, max_tokens = _max_tokens(request)
    if max_tokens is not None and (request.min_tokens or 0) > max_tokens:
        raise invalid("min_tokens", f"`min_tokens` must not be more than `{field}`")
    return GenerationSpec(
        sampling=_sampling(request, vocab_size),
        max_tokens=max_tokens,
        max_tokens_field=field,
        num_choices=request.n or 1,
        matcher=_matcher(request.stop),
        include_stop=bool(request.include_stop_str_in_output),
        lane=Lane.of_rank(request.priority or 0),
        salt=request.cache_salt or "",
        is_streaming=bool(request.stream),
        include_usage=options is not None and bool(options.include_usage),
        continuous_usage=options is not None and bool(options.continuous_usage_stats),
    )


def _check_ranges(request: GenerationFields) -> None:
    for name, (low, high, excludes_low) in _RANGES.items():
        value = getattr(request, name, None)
        if value is None or (low < value <= high) or (value == low and not excludes_low):
            continue
        opening = "above" if excludes_low else "at least"
        raise invalid(name, f"`{name}` must be {opening} {low} and at most {high}")


def _refuse_unsupported(request: ChatRequest | CompletionRequest) -> None:
    for name in _REFUSED:
        if not _is_absent(getattr(request, name, None)):
            raise unsupported(name)
    if isinstance(request, CompletionRequest):
        if request.best_of not in (None, request.n or 1):
            raise unsupported("best_of")
        if request.echo and request.logprobs is not None:
            raise invalid(
                "echo", "`echo` with `logprobs` is not supported by this worker", code="unsupported_parameter"
            )
    elif request.modalities not in (None, ["text"]):
        raise unsupported("modalities")


def _is_absent(value: object) -> bool:
    """Whether a field says nothing: null, false, or empty. The number 0 says something (`prompt_logprobs`: 0)."""
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _max_tokens(request: ChatRequest | CompletionRequest) -> tuple[str, int | None]:
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return "max_completion_tokens", request.max_completion_tokens
    return "max_tokens", request.max_tokens


def _sampling(request: ChatRequest | CompletionRequest, vocab_size: int) -> SamplingParams:
    """Sampling parameters without `max_tokens`. An absent temperature or top_p is OpenAI's default, 1."""
    top_k = request.top_k or 0
    return SamplingParams(
        temperature=_temperature(request.temperature),
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=top_k if 0 < top_k < vocab_size else 0,
        min_p=request.min_p or 0.0,
        seed=request.seed,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=_stop_tokens(request.stop_token_ids or [], vocab_size),
        logprobs=_logprobs(request),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
    )


def _temperature(asked: float | None) -> float:
    if asked is None:
        return 1.0
    return asked if asked >= _LEAST_TEMPERATURE else 0.0


def _logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        if request.logprobs is not None and not 0 <= request.logprobs <= MAX_TOP_LOGPROBS:
            raise invalid("logprobs", f"`logprobs` must be at least 0 and at most {MAX_TOP_LOGPROBS}")
        return request.logprobs
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise invalid("top_logprobs", "`top_logprobs` needs `logprobs`: true")
    return None


def _matcher(stop: str | list[str] | None) -> StopMatcher | None:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"`stop` may hold at most {MAX_STOPS} strings")
    if any(not 1 <= len(text) <= MAX_STOP_CHARS for text in stops):
        raise invalid("stop", f"each string of `stop` must have 1 to {MAX_STOP_CHARS} characters")
    return StopMatcher(stops) if stops else None


def _stop_tokens(tokens: list[int], vocab_size: int) -> frozenset[int]:
    if len(tokens) > MAX_STOP_TOKENS:
        raise invalid("stop_token_ids", f"`stop_token_ids` may hold at most {MAX_STOP_TOKENS} tokens")
    if any(not 0 <= token < vocab_size for token in tokens):
        raise invalid("stop_token_ids", f"each of `stop_token_ids` must be at least 0 and below {vocab_size}")
    return frozenset(tokens)


def _logit_bias(biases: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(biases) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"`logit_bias` may hold at most {MAX_LOGIT_BIASES} tokens")
    checked = {}
    for text, bias in biases.items():
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= vocab_size:
            raise invalid("logit_bias", f"each key of `logit_bias` must be a token id below {vocab_size}")
        if not -100 <= bias <= 100:
            raise invalid("logit_bias", "each value of `logit_bias` must be between -100 and 100")
        checked[int(text)] = bias
    return tuple(checked.items())
