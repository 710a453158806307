"""The best parameters of a policy for one fleet and load: every combination of its grid is tried on one seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.simulation.recording import Recording
from gateway.simulation.trace_policies import POLICIES, Settings
from gateway.simulation.trace_run import TraceSettings, run_trace


@dataclass(frozen=True, slots=True)
class Tried:
    """One combination, judged by `ttft_p95_s`: the less the better."""

    parameters: Settings
    ttft_p95_s: float
    hit_tokens: int


def _ignore(num_done: int, num_all: int) -> None:
    """Nobody watches."""


def tune(
    recording: Recording, settings: TraceSettings, policy: str, seed: int,
    on_progress: Callable[[int, int], Any] = _ignore,
) -> Sequence[Tried]:  # fmt: skip
    """All combinations, the best first; of equal ones the one with more hits."""
    candidates = POLICIES[policy].candidates()
    tried = []
    for number, parameters in enumerate(candidates, start=1):
        result = run_trace(recording, settings, policy, parameters, seed)
        tried.append(Tried(parameters, float(np.percentile(result.ttft_s, 95)), result.hit_tokens))
        on_progress(number, len(candidates))
    return sorted(tried, key=lambda one: (one.ttft_p95_s, -one.hit_tokens))
