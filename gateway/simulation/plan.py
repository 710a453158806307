"""How many replicas of which kind a workload needs: candidates simulated until each kind's fewest that hold are known.

More replicas are taken to be no worse, so each kind is searched by growth and halving. A kind that could only cost more
than what already holds is not simulated further.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

import numpy as np

from gateway.simulation.recording import Recording
from gateway.simulation.trace_policies import OURS, OurSettings
from gateway.simulation.trace_report import counted_percentiles, percentiles
from gateway.simulation.trace_run import TraceEngine, TraceResult, TraceSettings, replica_s, run_trace

_GROWTH = 1.5  # of the number of replicas until one holds; chosen

OnProgress = Callable[[str, int, int], Any]  # (what is run, requests that have arrived in this run, of how many)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of replica. `cost`: of each, in whatever unit, as long as it is the same for all."""

    name: str
    kv_tokens: int
    cost: float = 1.0
    engine: TraceEngine = field(default_factory=TraceEngine)


@dataclass(frozen=True, slots=True)
class Objective:
    """What must hold. `itl_p95_s`: None where gaps do not matter."""

    ttft_p95_s: float
    itl_p95_s: float | None = None

    def holds(self, ttft_p95_s: float, itl_p95_s: float) -> bool:
        """Whether a run keeps to it."""
        return ttft_p95_s <= self.ttft_p95_s and (self.itl_p95_s is None or itl_p95_s <= self.itl_p95_s)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """`speed`: times as fast as recorded. `most`: replicas of a kind at most. `seeds`: medians are judged."""

    speed: float = 1.0
    most: int = 64
    seeds: Sequence[int] = (1,)
    speed_error: float = 0.3
    events: bool = True


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fleet that was simulated. `load`: modelled replica-seconds at oracle hits over what there is.

    `peak_in_flight`: requests open at a time at most, in the whole fleet.
    """

    kind: str
    replicas: int
    kv_tokens: int
    cost: float
    load: float
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p95_s: float
    hit_ratio: float
    peak_in_flight: int
    holds: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """`chosen`: the cheapest candidate that holds, of equal ones the one with the lowest TTFT; None for none.

    `unfit`: (kind, why) of those that were not simulated at all.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    unfit: tuple[tuple[str, str], ...]


def plan(
    recording: Recording, kinds: Sequence[Kind], objective: Objective, settings: PlanSettings, on_progress: OnProgress
) -> Plan:  # fmt: skip
    """Search all kinds, the order as given. Raises ValueError for a trace whose requests all come at once."""
    if recording.facts().duration_s <= 0:
        raise ValueError("all requests of the trace come at the same time, so there is no load to plan for: take more")
    candidates, unfit = list[Candidate](), list[tuple[str, str]]()
    for kind in kinds:
        search = _Search(recording, kind, objective, settings, on_progress)
        if (why := search.unfit()) is not None:
            unfit.append((kind.name, why))
            continue
        holding = [one.cost for one in candidates if one.holds]
        candidates += search.run(min(holding, default=float("inf")))
    holding_ones = [one for one in candidates if one.holds]
    chosen = min(holding_ones, key=lambda one: (one.cost, one.ttft_p95_s), default=None)
    return Plan(tuple(candidates), chosen, tuple(unfit))


class _Search:
    """One kind."""

    def __init__(
        self, recording: Recording, kind: Kind, objective: Objective, settings: PlanSettings, on_progress: OnProgress
    ) -> None:  # fmt: skip
        self._recording, self._kind, self._objective = recording, kind, objective
        self._settings, self._on_progress = settings, on_progress
        facts = recording.facts()
        modelled_s = replica_s(facts, kind.engine.settings(kind.kv_tokens, recording.block_tokens))
        self._prompt_tokens = facts.prompt_tokens
        self._load_of_one = modelled_s * settings.speed / facts.duration_s

    def unfit(self) -> str | None:
        """Why not even the largest fleet of it could do; None if it could."""
        block = self._recording.block_tokens
        longest = max(one.prompt_tokens + one.output_tokens for one in self._recording.requests)
        if self._kind.kv_tokens // block * block < ceil(longest / block) * block:
            return f"its {self._kind.kv_tokens} KV tokens do not hold the longest request, {longest}"
        if self._fewest() > self._settings.most:
            return f"{self._fewest()} replicas are needed at best, and {self._settings.most} are the most allowed"
        return None

    def run(self, cheapest: float) -> Iterator[Candidate]:
        """The candidates that were simulated, dearer ones than `cheapest` left out."""
        most = min(self._settings.most, int(cheapest / self._kind.cost) if cheapest < float("inf") else 1 << 30)
        failed, num = 0, self._fewest()
        while num <= most:
            candidate = self._simulated(num)
            yield candidate
            if candidate.holds:
                break
            failed = num
            if num == most:
                return
            num = min(most, ceil(num * _GROWTH))
        else:
            return
        held, failed = num, max(failed, self._fewest() - 1)
        while held - failed > 1:
            num = (held + failed) // 2
            candidate = self._simulated(num)
            yield candidate
            held, failed = (num, failed) if candidate.holds else (held, num)

    def _fewest(self) -> int:
        """Fewer could not even compute it in time."""
        return max(1, ceil(self._load_of_one))

    def _simulated(self, num: int) -> Candidate:
        kind, settings = self._kind, self._settings
        of = TraceSettings(num, kind.kv_tokens, settings.speed, speed_error=settings.speed_error, engine=kind.engine)
        what, requests = f"{num} x {kind.name}", len(self._recording.requests)
        results = [
            run_trace(
                self._recording, of, OURS, OurSettings(events=settings.events), seed,
                on_progress=lambda arrived: self._on_progress(what, arrived, requests),
            )
            for seed in settings.seeds
        ]  # fmt: skip
        ttft = [percentiles(result.ttft_s) for result in results]
        itl_p95_s = median(counted_percentiles(one.gap_s, one.gap_counts)["p95"] for one in results)  # type: ignore[arg-type]
        ttft_p95_s = median(one["p95"] for one in ttft)
        return Candidate(
            kind=kind.name, replicas=num, kv_tokens=kind.kv_tokens, cost=num * kind.cost, load=self._load_of_one / num,
            ttft_p50_s=median(one["p50"] for one in ttft), ttft_p95_s=ttft_p95_s, itl_p95_s=itl_p95_s,
            hit_ratio=median(result.hit_tokens for result in results) / self._prompt_tokens,
            peak_in_flight=max(self._peak(result) for result in results),
            holds=self._objective.holds(ttft_p95_s, itl_p95_s),
        )  # fmt: skip

    def _peak(self, result: TraceResult) -> int:
        """Requests open at a time."""
        arrived = np.array([one.arrival_s for one in self._recording.requests]) / self._settings.speed
        moments = np.concatenate([arrived, arrived + result.e2e_s])
        steps = np.concatenate([np.ones(len(arrived)), -np.ones(len(arrived))])
        return int(np.cumsum(steps[np.argsort(moments, kind="stable")]).max())
