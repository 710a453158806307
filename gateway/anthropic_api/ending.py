"""How a message ended and what it took, in Anthropic's words: the same for a whole answer and a streamed one. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from gateway.chunks import Usage

TEXT_BYTES = 4  # of a token, about; only where an engine reports no usage

_STOP_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}  # all else is `end_turn`
_decode_stop = msgspec.json.Decoder(str | int | None).decode


class Finish(Struct):
    """What an engine says of a choice's end.

    `stop_reason`: vLLM's and our worker's word for the stop string that was found, `matched_stop` SGLang's; a number is
    a token that no client named.
    """

    finish_reason: str | None = None
    stop_reason: Raw = Raw()
    matched_stop: Raw = Raw()


def stop_of(finish: Finish, stops: frozenset[str], *, has_tools: bool, has_refused: bool) -> tuple[str, str | None]:
    """(`stop_reason`, `stop_sequence`). A call that was forced ends with `stop` in some engines."""
    if has_refused:
        return "refusal", None
    if finish.finish_reason == "stop":
        found = _text(finish.stop_reason) or _text(finish.matched_stop)
        if found in stops:
            return "stop_sequence", found
        return "tool_use" if has_tools else "end_turn", None
    return _STOP_REASONS.get(finish.finish_reason or "", "end_turn"), None


def usage_of(usage: Usage | None, estimated_input: int, text_bytes: int) -> dict[str, int | None]:
    """Anthropic's usage, whose input leaves out what came from the cache. Null: the engine does not say."""
    if usage is None:
        return begun_usage(estimated_input) | {"output_tokens": max(1, text_bytes // TEXT_BYTES)}
    cached = usage.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - (cached or 0),
        "cache_creation_input_tokens": None if cached is None else 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def begun_usage(estimated_input: int) -> dict[str, Any]:
    """What can be said before the engine has said anything."""
    return {
        "input_tokens": estimated_input,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": None,
        "output_tokens": 0,
    }


def tool_id(request_id: str, index: int) -> str:
    """The id of a call that its engine gave none."""
    return f"toolu_{request_id.removeprefix('req_')}{index:02d}"


def _text(raw: Raw) -> str | None:
    try:
        found = _decode_stop(raw) if raw else None
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, str) else None
