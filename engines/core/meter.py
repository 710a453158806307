"""What an engine knows of its own pace: it learns from each step, and keeps the snapshot that others read."""

from dataclasses import replace

from engines.core.load import EngineLoad, SchedulerStatistics, with_statistics
from engines.core.outlook import StepRecord
from engines.core.plan import Restore, Save
from engines.step_cost import StepCost, StepCostFitter

_SMOOTHING = 0.1  # of the step time shown: about the last ten steps; chosen


class StepMeter:
    """Written by the engine thread only; `load` may be read by any, in one go.

    `fitter`: learns what steps cost; None: nothing is known. `host_bytes_per_token`: of what is saved.
    """

    def __init__(self, fitter: StepCostFitter | None, host_bytes_per_token: int) -> None:
        self._fitter = fitter
        self._host_bytes_per_token = host_bytes_per_token
        self.load = EngineLoad(step_cost=self.cost)

    def __repr__(self) -> str:
        return f"<StepMeter steps={self.load.num_steps} step_s={self.load.step_s:.3g}>"

    @property
    def cost(self) -> StepCost:
        """What steps are believed to cost now."""
        return self._fitter.cost if self._fitter is not None else StepCost()

    def count_step(self, record: StepRecord) -> None:
        """Learn from a step; not what rows cost if it had copies to or from host memory, which take time too."""
        plan, seconds, before = record.plan, record.seconds, self.load.step_s
        has_copies = any(isinstance(operation, Save | Restore) for operation in plan.memory)
        if self._fitter is not None and not has_copies:
            self._fitter.observe(plan.num_decode_rows, plan.num_prefill_tokens, seconds)
        step_s = before + _SMOOTHING * (seconds - before) if before else seconds
        self.load = replace(self.load, step_s=step_s, step_cost=self.cost, num_steps=plan.number)

    def count_fault(self) -> None:
        """A step, or what surrounds it, failed."""
        self.load = replace(self.load, faults=self.load.faults + 1)

    def refresh(self, statistics: SchedulerStatistics) -> None:
        """Show what the scheduler says now."""
        self.load = with_statistics(self.load, statistics, self._host_bytes_per_token)
