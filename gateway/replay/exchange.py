"""One streamed request, and when what came: the client's side, on a connection of a pool."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from engines.contract import ReplicaError
from gateway.replay.target import Target
from gateway.sse import DONE, EventReader

Clock = Callable[[], float]
_ERROR_BYTES = 64 << 10  # of an answer that is no stream


@dataclass(slots=True)
class Heard:
    """What came of one request. Times by the same clock; `due_at`: when it should have been sent.

    `at`: of each piece of content. Tokens as the other side reported them, None where it did not. `fault`: empty for a
    complete answer, else what went wrong in a few words.
    """

    due_at: float
    sent_at: float
    at: list[float] = field(default_factory=list)
    over_at: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    fault: str = ""

    @property
    def ttft_s(self) -> float:
        """From when it was due, so that a client that is late does not make answers look early."""
        return self.at[0] - self.due_at

    @property
    def gaps(self) -> list[float]:
        """Between pieces of content, which are tokens where the engine sends each by itself."""
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


def body_of(target: Target, text: str, max_tokens: int, *, ignores_end: bool) -> dict[str, object]:
    """A streamed request of this length. `ignores_end`: the engine shall go on to the last token, if it can."""
    body = {"model": target.model, **target.prompt(text), "max_tokens": max_tokens, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | {"ignore_eos": True} if ignores_end else body


async def exchange(
    client: httpx.AsyncClient, target: Target, body: dict[str, object], due_at: float, clock: Clock
) -> Heard:  # fmt: skip
    """Send it and hear it to the end. Whatever the other side does is told in the answer, never raised."""
    heard = Heard(due_at, clock())
    try:
        request = client.stream("POST", target.url + target.path, content=msgspec.json.encode(body))
        async with request as answer:
            if answer.status_code != httpx.codes.OK:
                heard.fault = await _refusal(answer)
            elif not await _read(answer, heard, clock):
                heard.fault = heard.fault or "cut"
    except httpx.TimeoutException:
        heard.fault = "timeout"
    except httpx.ConnectError:
        heard.fault = "no connection"
    except (httpx.TransportError, httpx.DecodingError, ReplicaError, msgspec.MsgspecError, RecursionError):
        heard.fault = "cut"
    heard.over_at = clock()
    if not heard.fault and not heard.at:
        heard.fault = "empty"
    return heard


async def _read(answer: httpx.Response, heard: Heard, clock: Clock) -> bool:
    """Read the stream; whether it came to its end."""
    reader = EventReader()
    async for data in answer.aiter_bytes():
        now = clock()
        for payload in reader.feed(data):
            if payload == DONE:
                return True
            _note(_decode(payload), heard, now)
    return False


def _note(chunk: _Chunk, heard: Heard, now: float) -> None:
    if chunk.error is not None:
        heard.fault = f"error event {chunk.error.get('reason') or chunk.error.get('code') or ''}".strip()
    if any(_says(choice) for choice in chunk.choices):
        heard.at.append(now)
    usage = chunk.usage
    if usage is not None:
        heard.prompt_tokens, heard.output_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            heard.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _says(choice: _Choice) -> bool:
    delta = choice.delta
    return bool(choice.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning)))


async def _refusal(answer: httpx.Response) -> str:
    """The status, and the code that a body in OpenAI's shape has."""
    content = b""
    async for data in answer.aiter_bytes():
        content += data
        if len(content) > _ERROR_BYTES:
            break
    try:
        error = msgspec.json.decode(content)["error"]
        return f"{answer.status_code} {error['code'] or error['type']}"[:80]
    except (msgspec.MsgspecError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        return str(answer.status_code)
