"""What a step of an engine costs in time: base + per row + per prefill token, and how to learn that online.

A leaf that schedulers, routers and the fake engine share; it imports nothing of ours. A *row* is a sequence that
decodes one token in the step, a *prefill token* any token of a sequence that computes several.
"""

from dataclasses import dataclass

Vector = tuple[float, float, float]

_AGEING = 30  # steps by which an unusual one ages the past: a hiccup halves it, three in a row all but end it; chosen


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
        self._moments = [[0.0] * 3 for _ in range(3)]
        self._products = [0.0] * 3
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
        x: Vector = (1.0, float(rows), float(prefill_tokens))
        weight = 1 / max(modelled, seconds, 1e-9) ** 2
        for i in range(3):
            for j in range(3):
                self._moments[i][j] = fade * self._moments[i][j] + weight * x[i] * x[j]
            self._products[i] = fade * self._products[i] + weight * x[i] * seconds
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
        free = _solve_subset(moments, products, [0, 1, 2])
        if free is not None and min(free) >= 0:
            return StepCost(*free)
        best: tuple[float, Vector] | None = None
        for mask in range(1, 7):
            kept = [i for i in range(3) if mask >> i & 1]
            values = _solve_subset(moments, products, kept)
            if values is None or min(values) < 0:
                continue
            loss = _loss(moments, products, values)
            if best is None or loss < best[0]:
                best = (loss, values)
        return StepCost(*best[1]) if best is not None else self._cost

    def _with_prior(self) -> tuple[list[list[float]], list[float]]:
        """The sums with a pull of each term to its prior: invisible beside a term that is seen, decisive for others."""
        moments = [row[:] for row in self._moments]
        products = self._products[:]
        pull = self._prior_weight * self._moments[0][0] / self._num_remembered
        for i in range(3):
            moments[i][i] += pull
            products[i] += pull * self._prior[i]
        return moments, products


def _loss(moments: list[list[float]], products: list[float], values: Vector) -> float:
    quadratic = sum(values[i] * moments[i][j] * values[j] for i in range(3) for j in range(3))
    return quadratic - 2 * sum(values[i] * products[i] for i in range(3))


def _solve_subset(moments: list[list[float]], products: list[float], kept: list[int]) -> Vector | None:
    """The unconstrained minimum over the terms in `kept`, the others zero; None if it is not unique."""
    rows = [[moments[i][j] for j in kept] + [products[i]] for i in kept]
    for column in range(len(kept)):
        pivot = max(range(column, len(kept)), key=lambda r: abs(rows[r][column]))
        if abs(rows[pivot][column]) < 1e-300:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for other in range(len(kept)):
            if other != column:
                factor = rows[other][column] / rows[column][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[column], strict=True)]
    values = [0.0, 0.0, 0.0]
    for index, i in enumerate(kept):
        values[i] = rows[index][-1] / rows[index][index]
    return values[0], values[1], values[2]
