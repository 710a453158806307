"""Who asks for what, and when: streams of requests in virtual time, the same for the same seed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log
from typing import Protocol

import numpy as np

from gateway.simulation.prompts import Passage, Prompt, num_tokens
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request on its way to the gateway. `arrival_s`: virtual seconds at the gateway's door.

    `answer`: what the engine will say, all of it. `patience_s`: the client leaves so long after its arrival unless it
    has its answer by then; None waits for ever.
    """

    id: str
    tenant: str
    lane: Lane
    arrival_s: float
    prompt: Prompt
    answer: Passage
    patience_s: float | None = None
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_tokens", num_tokens(self.prompt))


class Source(Protocol):
    """A stream of requests. Used once: a run consumes it."""

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Requests that come whatever happens to others, in order of arrival; may be endless."""
        ...

    def follow_up(self, ended: SimulatedRequest, now: float) -> SimulatedRequest | None:
        """The request that comes because one of this source has ended, not before `now`; None for none."""
        ...


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal length in tokens: its mean, and how wide (`sigma` 0: always the mean). Cut at eight means."""

    mean: float
    sigma: float = 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """A length of at least 1."""
        if self.sigma == 0.0:
            return max(1, round(self.mean))
        drawn = exp(log(self.mean) - self.sigma**2 / 2 + self.sigma * rng.standard_normal())
        return max(1, min(round(drawn), round(8 * self.mean)))


@dataclass(frozen=True, slots=True)
class Shape:
    """What requests of one kind look like. Lengths in tokens.

    `num_systems` system prompts of `system_tokens`, picked evenly. `mean_turns`: turns of a conversation (geometric; 1:
    none has a second). `num_open`: conversations going on at a time. `max_prompt_tokens`: a longer one starts anew.
    """

    system_tokens: int
    user: Spread
    answer: Spread
    num_systems: int = 1
    mean_turns: float = 1.0
    num_open: int = 1
    max_prompt_tokens: int = 1 << 20


class Conversations:
    """Prompts of one shape: each repeats the conversation so far and adds a message."""

    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        self._shape = shape
        self._rng = rng
        self._systems = [self._passage(shape.system_tokens) for _ in range(shape.num_systems)]
        self._open: list[Prompt | None] = [None] * shape.num_open

    def next_turn(self) -> tuple[Prompt, Passage]:
        """(prompt, answer) of the next turn of some conversation."""
        place = int(self._rng.integers(len(self._open)))
        history = self._open[place]
        message = self._passage(self._shape.user.draw(self._rng))
        if history is None or num_tokens(history) + message.num_tokens > self._shape.max_prompt_tokens:
            history = (self._systems[int(self._rng.integers(len(self._systems)))],)
        prompt, answer = (*history, message), self._passage(self._shape.answer.draw(self._rng))
        goes_on = self._rng.random() >= 1 / self._shape.mean_turns
        self._open[place] = (*prompt, answer) if goes_on else None
        return prompt, answer

    def _passage(self, length: int) -> Passage:
        return Passage(int(self._rng.integers(1 << 62)), length)


class PoissonStream:
    """Requests of one tenant and lane at `rate_per_s` on average, whatever the fleet makes of them (an open loop).

    `active`: [start, end) in seconds within each `period_s` in which they come; None for always. The
    rate is that of the active time.
    """

    def __init__(
        self, tenant: str, lane: Lane, shape: Shape, *, rate_per_s: float, seed: int,
        active: tuple[float, float] | None = None, period_s: float = 60.0, patience_s: float | None = None,
    ) -> None:  # fmt: skip
        if rate_per_s <= 0:
            raise ValueError("rate_per_s must be positive")
        self._tenant, self._lane = tenant, lane
        self._rng = np.random.default_rng(seed)
        self._conversations = Conversations(shape, np.random.default_rng([seed, 1]))
        self._rate_per_s = rate_per_s
        self._active, self._period_s = active, period_s
        self._patience_s = patience_s

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """Endless."""
        now, number = 0.0, 0
        while True:
            now += float(self._rng.exponential(1 / self._rate_per_s))
            if not self._is_active(now):
                continue  # thinning keeps the process Poisson in the active time
            prompt, answer = self._conversations.next_turn()
            name = f"{self._tenant}/{self._lane.value}/{number}"
            yield SimulatedRequest(name, self._tenant, self._lane, now, prompt, answer, self._patience_s)
            number += 1

    def follow_up(self, ended: SimulatedRequest, now: float) -> SimulatedRequest | None:  # noqa: ARG002 - open loop
        """None: an open loop."""
        return None

    def _is_active(self, now: float) -> bool:
        return self._active is None or self._active[0] <= now % self._period_s < self._active[1]


class Flood:
    """A tenant that keeps `depth` requests open at all times from `start_s` on: saturation, without a growing queue."""

    def __init__(
        self, tenant: str, lane: Lane, shape: Shape, *, depth: int, seed: int, start_s: float = 0.0
    ) -> None:  # fmt: skip
        self._tenant, self._lane = tenant, lane
        self._depth, self._start_s = depth, start_s
        self._conversations = Conversations(shape, np.random.default_rng(seed))
        self._num_made = 0

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """The first `depth` requests, all at once."""
        for _ in range(self._depth):
            yield self._make(self._start_s)

    def follow_up(self, ended: SimulatedRequest, now: float) -> SimulatedRequest | None:  # noqa: ARG002 - any will do
        """One for one."""
        return self._make(now)

    def _make(self, now: float) -> SimulatedRequest:
        prompt, answer = self._conversations.next_turn()
        self._num_made += 1
        name = f"{self._tenant}/{self._lane.value}/flood/{self._num_made}"
        return SimulatedRequest(name, self._tenant, self._lane, now, prompt, answer)


class Trace:
    """Recorded requests, in order of arrival."""

    def __init__(self, requests: list[SimulatedRequest]) -> None:
        self._requests = sorted(requests, key=lambda request: request.arrival_s)

    def arrivals(self) -> Iterator[SimulatedRequest]:
        """All of them."""
        return iter(self._requests)

    def follow_up(self, ended: SimulatedRequest, now: float) -> SimulatedRequest | None:  # noqa: ARG002 - recorded
        """None: what was recorded came as it came."""
        return None
