"""A few requests that measure a replica: prompts of several lengths alone, then answers side by side.

Every prompt is new text, so that nothing of it is cached. It should have nothing else to do meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.replay.exchange import Clock, Heard, body_of, exchange
from gateway.replay.step_fit import Observation
from gateway.replay.target import Target
from gateway.replay.trace_text import some_words

_SHORT_TOKENS = 16  # of a prompt that is only there to be answered
_LEAST_GAPS = 4  # of an answer, in which all others were decoded too


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What is asked. `lengths`: of prompts, in tokens. `rows`: answers at a time. `answer_tokens`: of each.

    `max_step_tokens`: what the engine reads in one step at most. `salt`: another one is other text.
    """

    lengths: tuple[int, ...] = (64, 256, 512, 1024, 2048)
    rows: tuple[int, ...] = (1, 2, 4, 8)
    answer_tokens: int = 48
    repeats: int = 3
    max_step_tokens: int = 2048
    salt: str = ""
    timeout_s: float = 120.0

    @property
    def num_requests(self) -> int:
        """In all, the one at the beginning included that is not measured."""
        return 1 + self.repeats * (len(self.lengths) + sum(self.rows))


class ProbeFailed(Exception):
    """The replica did not answer as it should; the message says how."""


async def probe(
    target: Target, plan: ProbePlan, on_progress: Callable[[int], Any], *, clock: Clock = time.perf_counter
) -> list[Observation]:  # fmt: skip
    """Measure. Raises `ProbeFailed`."""
    headers = {"content-type": "application/json", **target.headers}
    found: list[Observation] = []
    async with httpx.AsyncClient(headers=headers, timeout=plan.timeout_s, trust_env=False) as client:
        asker = _Asker(client, target, plan, on_progress, clock)
        await asker.ask([_SHORT_TOKENS], 2)  # the first request of a process is not like the others
        for _ in range(plan.repeats):
            for length in plan.lengths:
                [heard] = await asker.ask([length], 1)
                found.append(reading(heard, length, plan.max_step_tokens))
            for rows in plan.rows:
                found += decoding(await asker.ask([_SHORT_TOKENS] * rows, plan.answer_tokens))
    return found


def reading(heard: Heard, length: int, max_step_tokens: int) -> Observation:
    """A prompt read alone. `length`: in words, where the replica does not report its tokens."""
    prompt = heard.prompt_tokens or length
    uncached = max(1, prompt - (heard.cached_tokens or 0))
    return Observation(-(-uncached // max_step_tokens), 0.0, uncached, heard.at[0] - heard.sent_at, hops=1.0)


def decoding(heard: Sequence[Heard]) -> Iterator[Observation]:
    """The mean gap of each answer while all of them were decoded; none of those that hardly met."""
    begin, end = max(one.at[0] for one in heard), min(one.at[-1] for one in heard)
    for one in heard:
        inside = [at for at in one.at if begin <= at <= end]
        tokens_each = (one.output_tokens or len(one.at)) / len(one.at)  # of a piece; engines may send several at once
        steps = (len(inside) - 1) * tokens_each
        if len(inside) > _LEAST_GAPS:
            yield Observation(steps, len(heard) * steps, 0.0, inside[-1] - inside[0])


class _Asker:
    """Asks for texts that nobody has asked for before."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        target: Target,
        plan: ProbePlan,
        on_progress: Callable[[int], Any],
        clock: Clock,
    ) -> None:
        self._client, self._target, self._plan = client, target, plan
        self._on_progress, self._clock = on_progress, clock
        self._num = 0

    async def ask(self, lengths: Iterable[int], max_tokens: int) -> list[Heard]:
        """Requests of these lengths, all at once. Raises `ProbeFailed`."""
        found = await asyncio.gather(*(self._one(length, max_tokens) for length in lengths))
        for one in found:
            if one.fault:
                raise ProbeFailed(f"{self._target.url}{self._target.path} did not answer: {one.fault}")
        return found

    async def _one(self, length: int, max_tokens: int) -> Heard:
        self._num += 1
        text = some_words(f"{self._plan.salt}/probe/{self._num}", length)
        body = body_of(self._target, text, max_tokens, ignores_end=True)
        heard = await exchange(self._client, self._target, body, self._clock(), self._clock)
        self._on_progress(self._num)
        return heard
