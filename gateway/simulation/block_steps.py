"""What steps of a block replica hold and how long they take: the latency guard's rule for one lane, as a table.

`engines.core.latency_guard` works it out anew for every step; here it depends on the rows alone, so it is kept. Tested
against it.
"""

from dataclasses import dataclass
from math import ceil

from engines.fake import LatencyGuard, SchedulerSettings, StepCounts
from engines.step_cost import StepCost


class StepRule:
    """One kind of worker. `speed`: factor on every step's time, known to the worker and to nobody else.

    `cost`: of its steps, as they are.
    """

    def __init__(self, settings: SchedulerSettings, cost: StepCost, speed: float) -> None:
        self.cost = StepCost(cost.base_s * speed, cost.per_row_s * speed, cost.per_prefill_token_s * speed)
        self._settings = settings
        self._guard = LatencyGuard(settings.latency, self.cost)
        self._prompt_tokens: dict[int, int] = {}

    def prompt_tokens(self, num_rows: int) -> int:
        """How many prompt tokens go into a step beside so many that decode."""
        found = self._prompt_tokens.get(num_rows)
        if found is None:
            left = self._settings.max_step_tokens - num_rows
            found = self._guard.urgent_prompt_tokens(StepCounts(num_rows), left)
            self._prompt_tokens[num_rows] = found
        return found


@dataclass(slots=True)
class Stride:
    """Equal steps that are computed one after the other. `num_rows`: sequences that decode in each of them.

    `is_open`: whoever arrives may have a seat after the step that is being computed.
    """

    started_at: float
    step_s: float
    num_steps: int
    num_rows: int
    is_open: bool

    @property
    def ends_at(self) -> float:
        """When the last of them is done."""
        return self.started_at + self.step_s * self.num_steps

    def cut(self, now: float) -> None:
        """End with the step that is being computed now."""
        passed = ceil((now - self.started_at) / self.step_s - 1e-9)
        self.num_steps = max(1, min(self.num_steps, passed))
