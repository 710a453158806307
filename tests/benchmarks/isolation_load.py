"""The load of `isolation_wall`: people's chats and a bulk flood, the same bytes at the same moments for every engine.

Open loop: requests come at Poisson times that are drawn from a seed and do not care how the engine is doing. A chat's
past answers are written, not taken from the engine, so that a prompt never depends on what was said or when.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Self

import httpx

from tests.benchmarks.load import percentiles

INTERACTIVE, BULK = "interactive", "bulk"
_WORDS = "the a small quiet river house garden letter morning asks finds keeps sees takes and when under"
# Chosen for two cores and the demo model: a few requests a second, and a system prompt that most of a prompt is.
_SYSTEM_WORDS, _QUESTION_WORDS, _ANSWER_WORDS, _BULK_WORDS = 110, (8, 20), (8, 16), (40, 90)
_NUM_OPEN, _TURNS = 6, (2, 6)  # chats at a time; turns of each
_TALK_TOKENS, _BULK_TOKENS = 16, (8, 32)  # of output


@dataclass(frozen=True)
class Target:
    """Something that speaks OpenAI's API. `url`: without `/v1`."""

    url: str
    key: str
    model: str


@dataclass(frozen=True)
class Ask:
    """One request. `due_s`: since the run's begin."""

    lane: str
    due_s: float
    body: dict[str, object]


@dataclass
class Answer:
    """What became of it. Times in seconds since the run's begin; `tokens_at` only of a streamed one."""

    lane: str
    due_s: float
    status: int = 0
    request_id: str = ""
    tokens_at: list[float] = field(default_factory=list)
    ended_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def is_open(self) -> bool:
        """Neither ended nor failed yet."""
        return self.ended_s is None and not self.error

    @property
    def is_good(self) -> bool:
        """Answered to its end."""
        return self.status == 200 and self.ended_s is not None and not self.error

    def read(self, found: dict[str, object], now: float) -> None:
        """Take in a piece of it, or all of it."""
        if "error" in found:
            self.error = str(found["error"])[:300]
        if any(choice.get("delta", {}).get("content") for choice in found.get("choices", ())):
            self.tokens_at.append(now)
        if usage := found.get("usage"):
            self.prompt_tokens, self.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class Text:
    """Requests without end from one seed. `run`: told in the first words of each chat, so that no run finds another's."""

    def __init__(self, model: str, seed: int, run: str) -> None:
        self._model = model
        self._run = run
        self._talk, self._flood = random.Random(f"{seed} talk"), random.Random(f"{seed} flood")
        self._system = _words(random.Random(f"{seed} system"), (_SYSTEM_WORDS, _SYSTEM_WORDS))
        self._chats: list[tuple[int, list[dict[str, str]]]] = []  # (turns left, messages)
        self._num_chats = self._num_bulk = 0

    def talk(self) -> dict[str, object]:
        """The next turn of one of the open chats, streamed."""
        while len(self._chats) < _NUM_OPEN:
            self._num_chats += 1
            opening = {"role": "user", "content": f"{self._run} {self._num_chats}:"}
            system = {"role": "system", "content": f"You answer briefly. {self._system}."}
            self._chats.append((self._talk.randint(*_TURNS), [system, opening]))
        place = self._talk.randrange(_NUM_OPEN)
        left, messages = self._chats[place]
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": ""})
        messages[-1]["content"] += f" {_words(self._talk, _QUESTION_WORDS)}?"
        body = self._body(list(messages), _TALK_TOKENS) | {"stream": True, "stream_options": {"include_usage": True}}
        messages.append({"role": "assistant", "content": _words(self._talk, _ANSWER_WORDS)})
        self._chats[place] = (left - 1, messages)
        if left == 1:
            del self._chats[place]
        return body

    def bulk(self) -> dict[str, object]:
        """One of many documents, unlike the others from its first words, answered in one piece."""
        self._num_bulk += 1
        words = f"{self._run} {self._num_bulk}: go on with this. {_words(self._flood, _BULK_WORDS)}"
        return self._body([{"role": "user", "content": words}], self._flood.randint(*_BULK_TOKENS))

    def _body(self, messages: list[dict[str, str]], max_tokens: int) -> dict[str, object]:
        fixed = {"model": self._model, "temperature": 0, "ignore_eos": True}
        return fixed | {"messages": messages, "max_tokens": max_tokens}


def _words(rng: random.Random, between: tuple[int, int]) -> str:
    return " ".join(rng.choices(_WORDS.split(), k=rng.randint(*between)))


def poisson(
    lane: str, make: Callable[[], dict[str, object]], rate_per_s: float, until_s: float, seed: int
) -> list[Ask]:
    """Requests of one lane at Poisson times before `until_s`; none at a rate of 0."""
    rng, due_s, asks = random.Random(f"{seed} {lane} times"), 0.0, []
    while rate_per_s and (due_s := due_s + rng.expovariate(rate_per_s)) < until_s:
        asks.append(Ask(lane, due_s, make()))
    return asks


class Run:
    """One run against a target: its clock starts at 0 when it is made. Leaving the block closes what is still open."""

    def __init__(self, target: Target) -> None:
        self.answers: list[Answer] = []
        self._target, self._begun_at = target, time.perf_counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        # A connection a request: an engine that closes an idle one must not cost a person's request.
        self._client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_keepalive_connections=0))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def now(self) -> float:
        """Seconds since the begin."""
        return time.perf_counter() - self._begun_at

    def num_good(self) -> int:
        """Requests that were answered to their end."""
        return sum(one.is_good for one in self.answers)

    async def open_loop(self, asks: Sequence[Ask], until_s: float) -> None:
        """Send each when it is due, whatever became of those before; returns at `until_s`."""
        for ask in sorted(asks, key=lambda ask: ask.due_s):
            await asyncio.sleep(ask.due_s - self.now())
            self._spawn(self._exchange(ask))
        await asyncio.sleep(until_s - self.now())

    def closed_loop(self, lane: str, make: Callable[[], dict[str, object]], clients: int) -> None:
        """So many requests at all times from now on."""

        async def client() -> None:
            while True:
                await self._exchange(Ask(lane, self.now(), make()))

        for _ in range(clients):
            self._spawn(client())

    async def until(self, is_reached: Callable[[], bool], until_s: float) -> None:
        """Wait for it, asking whenever a request has ended, at most until `until_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until_s - self.now()):
                while not is_reached():
                    self._ended.clear()
                    await self._ended.wait()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, ask: Ask) -> None:
        answer = Answer(ask.lane, ask.due_s)
        self.answers.append(answer)
        try:
            await self._stream(ask, answer)
        except httpx.HTTPError as error:
            answer.error = repr(error)
            await asyncio.sleep(0.1)  # a closed loop must not spin
        finally:
            self._ended.set()

    async def _stream(self, ask: Ask, answer: Answer) -> None:
        headers = {"authorization": f"Bearer {self._target.key}", "x-warmlane-lane": ask.lane}
        url = f"{self._target.url}/v1/chat/completions"
        async with self._client.stream("POST", url, json=ask.body, headers=headers) as found:
            answer.status, answer.request_id = found.status_code, found.headers.get("x-request-id", "")
            if found.status_code != 200:
                answer.error = (await found.aread())[:300].decode(errors="replace")
            elif ask.body.get("stream"):
                async for line in found.aiter_lines():
                    if line.startswith("data: {"):
                        answer.read(json.loads(line[6:]), self.now())
            else:
                answer.read(json.loads(await found.aread()), self.now())
        answer.ended_s = self.now()


def talk_summary(answers: Sequence[Answer], window: tuple[float, float], ended_s: float) -> dict[str, object]:
    """Of the requests due in the window: times in ms. One without a token counts with the time it waited so far."""
    due = [one for one in answers if one.lane == INTERACTIVE and window[0] <= one.due_s < window[1]]
    ttft = [((one.tokens_at[0] if one.tokens_at else ended_s) - one.due_s) * 1e3 for one in due]
    gaps = [(b - a) * 1e3 for one in due for a, b in zip(one.tokens_at, one.tokens_at[1:], strict=False)]
    shown = [at for one in answers if one.lane == INTERACTIVE for at in one.tokens_at]
    told = [one for one in due if one.prompt_tokens]
    return {
        "requests": len(due),
        "unanswered": sum(not one.tokens_at for one in due),
        "errors": sorted({one.error for one in due if one.error and one.status not in (0, 200)}),
        "ttft_ms": percentiles(ttft),
        "itl_ms": percentiles(gaps),
        "num_gaps": len(gaps),
        "tokens_per_s": sum(window[0] <= at < window[1] for at in shown) / (window[1] - window[0]),
        "hit_ratio": sum(one.cached_tokens for one in told) / max(1, sum(one.prompt_tokens for one in told)),
    }


def ended_per_s(answers: Sequence[Answer], lane: str, window: tuple[float, float]) -> tuple[float, float]:
    """(requests, output tokens) a second of those that ended well in the window."""
    good = [one for one in answers if one.lane == lane and one.is_good and window[0] <= one.ended_s < window[1]]
    seconds = window[1] - window[0]
    return len(good) / seconds, sum(one.output_tokens for one in good) / seconds
