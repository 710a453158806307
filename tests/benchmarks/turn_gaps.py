"""How long streams stand still while newcomers' prompts are read by turns (engines/core/turns.py), in virtual time.

    python -m tests.benchmarks.turn_gaps [--crowd-s 0.25 0.5 1.0]

The scheduler's own rules, with the step-cost model learning as it does in a worker, on a device like the demo model on
two quiet cores, whose steps are not linear in their rows. Beside them what llama-server does: prompts and decodes in one
step, whole prompts at once.
"""

import argparse
import random
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.table import Table

from engines.core import latency_guard
from engines.core.admission import SchedulerSettings
from engines.core.sampling import Sampled
from engines.core.scheduler import Scheduler
from engines.core.sequence import GenerateRequest, SamplingParams, SequenceDelta
from engines.step_cost import StepCost, StepCostFitter

_DECODE_S = ((0, 0.0), (1, 0.0094), (4, 0.0261), (16, 0.076), (32, 0.140))  # by rows, measured; between them straight
_PREFILL_BASE_S, _PREFILL_TOKEN_S = 0.006, 0.0019
_TOGETHER_S = 0.0003  # a prompt token beside eight rows costs so much more than both alone, from 64 tokens on
_NOISE = 0.05
_LONG_S = 0.3


@dataclass(frozen=True)
class Arrival:
    """A request: when it comes, in seconds, the tokens of its prompt and those of its answer."""

    at: float
    prompt: int
    output: int


@dataclass
class Gaps:
    """What streams saw. Seconds; `gap_s` between two tokens of one stream."""

    ttft_s: list[float] = field(default_factory=list)
    gap_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def note(self, delta: SequenceDelta, since: float, now: float) -> None:
        """A token came, `since` the one before or the request."""
        (self.ttft_s if delta.num_output == 1 else self.gap_s).append(now - since)

    @property
    def tokens_per_s(self) -> float:
        """Of all streams together."""
        return (len(self.ttft_s) + len(self.gap_s)) / self.seconds

    @property
    def long_share(self) -> float:
        """Gaps of more than 300 ms, of all."""
        return sum(gap > _LONG_S for gap in self.gap_s) / len(self.gap_s)


def step_s(rows: int, prefill_tokens: int) -> float:
    """What a step of the device takes."""
    index = max(1, bisect_left(_DECODE_S, (rows, 0.0)))
    (low, low_s), (high, high_s) = _DECODE_S[index - 1], _DECODE_S[index]
    seconds = low_s + (high_s - low_s) * (rows - low) / (high - low)
    if prefill_tokens:
        seconds += _PREFILL_BASE_S + _PREFILL_TOKEN_S * prefill_tokens
    if rows and prefill_tokens >= 64:
        seconds += _TOGETHER_S * prefill_tokens * min(1.0, rows / 8)
    return seconds


def run(arrivals: Sequence[Arrival], *, mixes_prompts: bool = False, max_step_tokens: int = 512) -> Gaps:
    """Serve them all, at most 16 at once."""
    settings = SchedulerSettings(16, max_step_tokens, 8192, 65_536, mixes_prompts=mixes_prompts)
    scheduler, chance, gaps = Scheduler(settings), random.Random(1), Gaps()
    fitter = StepCostFitter(StepCost(0.006, 0.0045, 0.0019))
    coming, since, now = sorted(arrivals, key=lambda each: each.at, reverse=True), dict[str, float](), 0.0
    while coming or scheduler.has_work:
        while coming and coming[-1].at <= now:
            one = coming.pop()
            request = _request(str(len(coming)), one, chance)
            assert scheduler.add(request, now) is None, "there is room"
            since[request.id] = one.at
        plan = scheduler.schedule(now, fitter.cost)
        if plan is None:
            now = coming[-1].at
            continue
        seconds = step_s(*plan.counts()) * chance.uniform(1 - _NOISE, 1 + _NOISE)
        now += seconds
        for delta in scheduler.complete(plan, [(Sampled(7),)] * sum(row.samples for row in plan.rows), now):
            gaps.note(delta, since[delta.request_id], now)
            since[delta.request_id] = now
        fitter.observe(*plan.counts(), seconds)
    gaps.seconds = now
    return gaps


def _request(id_: str, one: Arrival, chance: random.Random) -> GenerateRequest:
    prompt = tuple(chance.randrange(1 << 30) for _ in range(one.prompt))
    return GenerateRequest(
        id_, prompt, SamplingParams(temperature=0, max_tokens=one.output, ignore_eos=True), arrival=one.at
    )


def crowd(size: int, at: float = 0.0) -> list[Arrival]:
    """So many at once, as in `gguf_worker`."""
    return [Arrival(at + 0.001 * number, 154, 64) for number in range(size)]


def newcomers(per_s: float, seconds: float, seed: int = 1) -> list[Arrival]:
    """One after the other by chance, with prompts and answers of any length."""
    chance, at, arrivals = random.Random(seed), 0.0, []
    while (at := at + chance.expovariate(per_s)) < seconds:
        arrivals.append(Arrival(at, chance.randint(50, 400), chance.randint(64, 200)))
    return arrivals


LOADS: Mapping[str, Sequence[Arrival]] = {
    "4 at once": crowd(4),
    "16 at once": crowd(16),
    "8 at once, every 16 s": [one for number in range(12) for one in crowd(8, 16.0 * number)],
    "one each 1.5 s": [Arrival(1.5 * number, 200, 120) for number in range(100)],
    "by chance, 0.3/s": newcomers(0.3, 300),
    "by chance, 0.5/s": newcomers(0.5, 300, seed=2),
}


@contextmanager
def turns_of(crowd_s: float, crowd_turns: int = 1) -> Iterator[None]:
    """With turns of a crowd that take this share of its time, at most `crowd_s`."""
    before = latency_guard._CROWD_TURN_S, latency_guard._CROWD_TURNS
    latency_guard._CROWD_TURN_S, latency_guard._CROWD_TURNS = crowd_s, crowd_turns
    try:
        yield
    finally:
        latency_guard._CROWD_TURN_S, latency_guard._CROWD_TURNS = before


@contextmanager
def whole_prompts() -> Iterator[None]:
    """Prompts take what room a step has, whoever decodes in it."""
    rule = latency_guard.LatencyGuard.urgent_prompt_tokens
    latency_guard.LatencyGuard.urgent_prompt_tokens = lambda _, __, most: most  # type: ignore[method-assign]
    try:
        yield
    finally:
        latency_guard.LatencyGuard.urgent_prompt_tokens = rule  # type: ignore[method-assign]


def main() -> int:
    """Always 0: the reader judges."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.turn_gaps", description=__doc__)
    parser.add_argument("--crowd-s", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="longest turns to compare")
    options = parser.parse_args()
    heads = ("tok/s", "TTFT p50 ms", "p95", "gap p50 ms", "p95", "p99", "longest", "> 300 ms")
    table = Table("newcomers", "rule", *heads)
    for name, arrivals in LOADS.items():
        with whole_prompts():
            table.add_row(name, "whole prompts", *_cells(run(arrivals, mixes_prompts=True, max_step_tokens=2048)))
        for crowd_s in options.crowd_s:
            with turns_of(crowd_s):
                table.add_row(name, f"turns, {crowd_s * 1e3:.0f} ms", *_cells(run(arrivals)))
        table.add_row(name, "the worker's turns", *_cells(run(arrivals)))
    Console(width=140).print(table)
    return 0


def _cells(gaps: Gaps) -> list[str]:
    ttft, gap = (partial(_quantile_ms, sorted(values)) for values in (gaps.ttft_s, gaps.gap_s))
    milliseconds = (ttft(0.5), ttft(0.95), gap(0.5), gap(0.95), gap(0.99), gap(1.0))
    return [f"{gaps.tokens_per_s:.1f}", *(f"{value:.0f}" for value in milliseconds), f"{100 * gaps.long_share:.1f} %"]


def _quantile_ms(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] * 1e3


if __name__ == "__main__":
    sys.exit(main())
