"""What was thought of a step before it was made, and what came of it: values for logs and tests."""

from dataclasses import dataclass

from engines.core.plan import StepPlan
from engines.step_cost import StepCost
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class StepOutlook:
    """What a step was believed to cost when it was planned, and why bulk is in it or not.

    `lanes`: of its rows, in order. `modelled_s`: the step; `modelled_urgent_s`: the same without its bulk rows.
    `objective_s`: what it may take with bulk, None without urgent rows. `bulk_left_out`: seated bulk sequences that
    urgent ones keep out of it. `is_lifted`: bulk is in it in spite of the objective, having been left out for too long.
    `copy_s`: of all these seconds, those that copies to and from host memory take.
    """

    lanes: tuple[Lane, ...]
    cost: StepCost
    modelled_s: float
    modelled_urgent_s: float
    objective_s: float | None
    bulk_left_out: int
    is_lifted: bool
    copy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that was made, what was thought of it before, and how long it took (forward and sampling)."""

    plan: StepPlan
    outlook: StepOutlook
    seconds: float
