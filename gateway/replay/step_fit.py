"""What steps cost, from measurements: the least squares of all terms that are not negative, hiccups left out.

The model is the simulator's: seconds = base a step + a row's a step + a prompt token's, and on the way to the first
token the way there and back (`hop`). Errors count relative to what was measured, else long prompts drown short gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from engines.step_cost import StepCost

LEAST_OBSERVATIONS = 4  # as many as there are terms
TERMS = ("base_s", "per_row_s", "per_prefill_token_s", "hop_s")
_ROUNDS = 3  # of leaving out what is too far off; chosen
_TOLERANCE = 4.0  # times the usual deviation, at least 5%
_LEAST_DEVIATION = 0.0125

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Observation:
    """Something that was measured: `seconds` for so many steps, row-steps and prompt tokens, and so many hops."""

    steps: float
    row_steps: float
    prompt_tokens: float
    seconds: float
    hops: float = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """`unseen`: terms that nothing was measured of; they are 0. Errors: of the model, relative, over what was kept."""

    cost: StepCost
    hop_s: float
    num: int
    num_left_out: int
    median_error: float
    p90_error: float
    unseen: tuple[str, ...]

    def seconds(self, of: Observation) -> float:
        """What the model says of it."""
        cost = self.cost
        read = cost.per_prefill_token_s * of.prompt_tokens
        return cost.base_s * of.steps + cost.per_row_s * of.row_steps + read + self.hop_s * of.hops


def fit(observations: Sequence[Observation]) -> Fit:
    """The best model of these. Raises ValueError for too few that are of any use."""
    usable = [one for one in observations if 0 < one.seconds < float("inf")]
    if len(usable) < LEAST_OBSERVATIONS:
        raise ValueError(f"{len(usable)} measurements are too few: there must be at least {LEAST_OBSERVATIONS}")
    seconds = np.array([one.seconds for one in usable])
    rows = np.array([[one.steps, one.row_steps, one.prompt_tokens, one.hops] for one in usable]) / seconds[:, None]
    kept = np.ones(len(usable), dtype=bool)
    terms = _solve(rows)
    for _ in range(_ROUNDS):
        error = np.abs(rows @ terms - 1)
        near = error <= _TOLERANCE * max(float(np.median(error[kept])) * 1.48, _LEAST_DEVIATION)
        if near.sum() < max(LEAST_OBSERVATIONS, len(usable) // 2) or bool((near == kept).all()):
            break
        kept = near
        terms = _solve(rows[kept])
    error = np.abs(rows[kept] @ terms - 1)
    unseen = tuple(name for name, column in zip(TERMS, rows[kept].T, strict=True) if not column.any())
    return Fit(
        StepCost(*map(float, terms[:3])), float(terms[3]), int(kept.sum()), int((~kept).sum()),
        float(np.median(error)), float(np.percentile(error, 90)), unseen,
    )  # fmt: skip


def _solve(rows: Floats) -> Floats:
    """The terms, none negative, whose model is nearest to 1 in each row: the best of all subsets that may be zero."""
    seen = [index for index in range(rows.shape[1]) if rows[:, index].any()]
    ones, best, least = np.ones(len(rows)), np.zeros(rows.shape[1]), float("inf")
    for num in range(1, len(seen) + 1):
        for subset in combinations(seen, num):
            chosen = rows[:, subset]
            values, _, rank, _ = np.linalg.lstsq(chosen / _scale(chosen), ones, rcond=None)
            values = values / _scale(chosen)
            if rank < num or values.min() < 0:
                continue
            loss = float(((chosen @ values - 1) ** 2).sum())
            if loss < least * (1 - 1e-9):  # of equal ones the simplest
                least, best = loss, np.zeros(rows.shape[1])
                best[list(subset)] = values
    return best


def _scale(columns: Floats) -> Floats:
    """Of each column, so that terms of very different sizes are solved alike well."""
    found: Floats = np.abs(columns).max(axis=0)
    return found
