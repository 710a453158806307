"""What a step of an engine costs in time: base + per row + per prefill token, and how to learn that online.

A leaf that schedulers, routers and the fake engine share; it imports nothing of ours. A *row* is a sequence that
decodes one token in the step, a *prefill token* any token of a sequence that computes several.
"""

from collections.abc import Iterator
from dataclasses import dataclass

Vector = tuple[float, float, float]
Symmetric = tuple[float, float, float, float, float, float]  # 00, 01, 02, 11, 12, 22

_AGEING = 30  # steps by which an unusual one ages the past: a hiccup halves it, three in a row all but end it; chosen
_TINY = 1e-300  # of a pivot: less is none


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds; none is negative."""

    base_s: float = 0.0
    per_row_s: float = 0.0
    per_prefill_token_s: float = 0.0

    def seconds(self, rows: float, prefill_tokens: float) -> float:
        """Modelled duration of a step; fractions are means over several."""
        return self.base_s + self.per_row_s * rows + self.per_prefill_token_s * prefill_tokens


class StepCostFitter:
    """Recursive least squares with forgetting, kept as normal equations so that a non-negative solution is exact.

    `prior`: believed when cold, and for terms that the traffic does not show (no prefill for an hour); it weighs as
    much as `prior_weight` recent steps and does not fade. `forgetting`: weight of the past per step; 0.98 remembers
    about 50 steps. Errors count relative to the step's modelled time, else long prefills drown decodes.
    A step further off than `tolerance` times the usual deviation is pulled in to there, and ages the past: one hiccup
    (a page fault, a garbage collection) moves little, a lasting change is believed within some tens of steps.
    """

    def __init__(
        self, prior: StepCost, *, forgetting: float = 0.98, prior_weight: float = 1e-3, tolerance: float = 4.0
    ) -> None:
        if not 0 < forgetting <= 1:
            raise ValueError("forgetting must be in (0, 1]")
        self._prior: Vector = (prior.base_s, prior.per_row_s, prior.per_prefill_token_s)
        self._forgetting = forgetting
        self._prior_weight = prior_weight
        self._tolerance = tolerance
        self._cost = prior
        # Sums of w x x' (symmetric) and w x y over past steps, with x = (1, rows, prefill tokens) and y seconds.
        self._moments: Symmetric = (0.0,) * 6
        self._products: Vector = (0.0,) * 3
        self._deviation = 1.0  # relative; 1 means that nothing is known, and nothing is an outlier below 5 times
        self._num_observations = 0
        self._num_remembered = 0.0  # faded like the sums

    @property
    def cost(self) -> StepCost:
        """The best estimate now."""
        return self._cost

    @property
    def num_observations(self) -> int:
        """Steps seen."""
        return self._num_observations

    def observe(self, rows: float, prefill_tokens: float, seconds: float) -> None:
        """Learn from one step, or the mean of several. Without rows and tokens, or with a senseless time: nothing."""
        if rows + prefill_tokens <= 0 or not 0 < seconds < float("inf"):
            return
        modelled = self._cost.seconds(rows, prefill_tokens)
        fade = self._forgetting
        if self._num_observations and modelled > 0:
            usual = self._pull_in(seconds, modelled)
            fade = fade if usual == seconds else fade**_AGEING
            seconds = usual
        weight = 1 / max(modelled, seconds, 1e-9) ** 2
        by_rows, by_tokens, by_time = weight * rows, weight * prefill_tokens, weight * seconds
        m00, m01, m02, m11, m12, m22 = self._moments
        self._moments = (
            fade * m00 + weight,
            fade * m01 + by_rows,
            fade * m02 + by_tokens,
            fade * m11 + by_rows * rows,
            fade * m12 + by_rows * prefill_tokens,
            fade * m22 + by_tokens * prefill_tokens,
        )
        p0, p1, p2 = self._products
        self._products = (fade * p0 + by_time, fade * p1 + by_time * rows, fade * p2 + by_time * prefill_tokens)
        self._num_observations += 1
        self._num_remembered = fade * self._num_remembered + 1
        self._cost = self._solve()

    def _pull_in(self, seconds: float, modelled: float) -> float:
        """`seconds`, or the edge of what is usual; learns what is usual from the pulled-in error, so it can widen."""
        error = seconds / modelled - 1
        edge = self._tolerance * max(self._deviation, 0.02)  # 2%: timers and rounding are never better; chosen
        pulled = max(-edge, min(edge, error))
        self._deviation += 0.1 * (abs(pulled) - self._deviation)
        return seconds if pulled == error else max(modelled * (1 + pulled), 0.0)

    def _solve(self) -> StepCost:
        """The non-negative minimum: of the subsets of terms that may be zero, the feasible one with the least error."""
        moments, products = self._with_prior()
        free = _minimum(moments, products)
        if free is not None and min(free) >= 0:
            return StepCost(*free)
        p0, p1, p2 = products
        best, most = None, 0.0
        for values in _minima_of_subsets(moments, products):
            # At the minimum of a subset the error is less by this than with all terms zero.
            gain = p0 * values[0] + p1 * values[1] + p2 * values[2]
            if min(values) >= 0 and (best is None or gain > most):
                best, most = values, gain
        return StepCost(*best) if best is not None else self._cost

    def _with_prior(self) -> tuple[Symmetric, Vector]:
        """The sums with a pull of each term to its prior: invisible beside a term that is seen, decisive for others."""
        m00, m01, m02, m11, m12, m22 = self._moments
        pull = self._prior_weight * m00 / self._num_remembered
        (p0, p1, p2), (prior0, prior1, prior2) = self._products, self._prior
        moments = (m00 + pull, m01, m02, m11 + pull, m12, m22 + pull)
        return moments, (p0 + pull * prior0, p1 + pull * prior1, p2 + pull * prior2)


# Written out for three terms: a general elimination took a tenth of all that a step costs besides the model.


def _minimum(moments: Symmetric, products: Vector) -> Vector | None:
    """The unconstrained minimum, by the factors of a symmetric matrix; None if it is not unique."""
    m00, m01, m02, m11, m12, m22 = moments
    p0, p1, p2 = products
    if m00 < _TINY:
        return None
    l10, l20 = m01 / m00, m02 / m00
    d1 = m11 - l10 * m01
    if d1 < _TINY:
        return None
    between = m12 - l10 * m02
    l21 = between / d1
    d2 = m22 - l20 * m02 - l21 * between
    if d2 < _TINY:
        return None
    y1 = p1 - l10 * p0
    x2 = (p2 - l20 * p0 - l21 * y1) / d2
    x1 = y1 / d1 - l21 * x2
    return p0 / m00 - l10 * x1 - l20 * x2, x1, x2


def _minima_of_subsets(moments: Symmetric, products: Vector) -> Iterator[Vector]:
    """The unconstrained minima with one or two of the terms zero, where they are unique."""
    m00, m01, m02, m11, m12, m22 = moments
    p0, p1, p2 = products
    if m00 >= _TINY:
        yield p0 / m00, 0.0, 0.0
    if m11 >= _TINY:
        yield 0.0, p1 / m11, 0.0
    if m22 >= _TINY:
        yield 0.0, 0.0, p2 / m22
    if (pair := _minimum_of_pair(m00, m01, m11, p0, p1)) is not None:
        yield pair[0], pair[1], 0.0
    if (pair := _minimum_of_pair(m00, m02, m22, p0, p2)) is not None:
        yield pair[0], 0.0, pair[1]
    if (pair := _minimum_of_pair(m11, m12, m22, p1, p2)) is not None:
        yield 0.0, pair[0], pair[1]


def _minimum_of_pair(m00: float, m01: float, m11: float, p0: float, p1: float) -> tuple[float, float] | None:
    if m00 < _TINY:
        return None
    factor = m01 / m00
    rest = m11 - factor * m01
    if rest < _TINY:
        return None
    second = (p1 - factor * p0) / rest
    return p0 / m00 - factor * second, second
