"""Requests as OpenAI's chat API has them: one JSON object a line with `messages` and a `timestamp`.

`timestamp`: Unix seconds, or ISO 8601. A last message of the assistant is the answer, and no part of the prompt; else
`completion_tokens`, or `usage.completion_tokens`, is its length. `tenant` (or `user`): who shares a cache. Tokens are
reckoned from bytes: no tokenizer is asked.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from cache_affinity.prefix import prefix_key
from gateway.simulation.json_lines import decoded
from gateway.simulation.prompts import BYTES_PER_TOKEN
from gateway.simulation.recording import RecordedRequest, Recording
from gateway.simulation.text_blocks import BLOCK_TOKENS, names_of
from gateway.simulation.trace_error import TraceError

_ANSWER_TOKENS = 200  # where nothing says how long an answer was; chosen
_MODEL = "trace"


class _Usage(msgspec.Struct):
    completion_tokens: int | None = None


class _Line(msgspec.Struct):
    messages: list[dict[str, Any]]
    timestamp: float | datetime
    tenant: str = ""
    user: str = ""
    tools: list[Any] | None = None
    completion_tokens: int | None = None
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    tenant: str
    segments: tuple[bytes, ...]
    output_tokens: int


def record(lines: Iterable[bytes]) -> Recording:
    """The requests in order of arrival, in blocks of 16 tokens. Raises `TraceError`."""
    found = sorted(_asked(lines), key=lambda asked: asked.at)
    if not found:
        raise TraceError("there is no request in it")
    return Recording(tuple(_recorded(number, asked, found[0].at) for number, asked in enumerate(found)), BLOCK_TOKENS)


def _asked(lines: Iterable[bytes]) -> Iterator[_Asked]:
    for number, line in decoded(lines, _Line):
        prompt, answer_tokens = _split(line)
        if not prompt or answer_tokens < 1:
            raise TraceError(f"line {number}: a request has a message before its answer, and an answer of some length")
        tools = [msgspec.json.encode(line.tools, order="sorted")] if line.tools else []
        segments = [*tools, *(msgspec.json.encode(message, order="sorted") for message in prompt)]
        yield _Asked(_seconds(line.timestamp), line.tenant or line.user, tuple(segments), answer_tokens)


def _split(line: _Line) -> tuple[list[dict[str, Any]], int]:
    """(messages of the prompt, tokens of the answer)."""
    told = line.completion_tokens
    if told is None and line.usage is not None:
        told = line.usage.completion_tokens
    if line.messages and line.messages[-1].get("role") == "assistant":
        answer = msgspec.json.encode(line.messages[-1], order="sorted")
        return line.messages[:-1], max(1, len(answer) // BYTES_PER_TOKEN) if told is None else told
    return line.messages, _ANSWER_TOKENS if told is None else told


def _seconds(timestamp: float | datetime) -> float:
    if isinstance(timestamp, datetime):
        return (timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)).timestamp()
    return timestamp


def _recorded(number: int, asked: _Asked, start: float) -> RecordedRequest:
    key = prefix_key(_MODEL, asked.tenant, asked.segments)
    return RecordedRequest(
        number=number,
        tenant=asked.tenant,
        arrival_s=asked.at - start,
        prompt_tokens=max(1, key.total_bytes // BYTES_PER_TOKEN),
        output_tokens=asked.output_tokens,
        blocks=names_of(asked.segments, asked.tenant),
        key=key,
    )
