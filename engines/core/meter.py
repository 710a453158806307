"""What an engine knows of its own pace: it learns from each step, and keeps the snapshot that others read."""

from engines.core.load import EngineLoad, SchedulerStatistics, with_statistics
from engines.core.outlook import StepRecord
from engines.core.plan import Restore, Save
from engines.step_cost import StepCost, StepCostFitter

_SMOOTHING = 0.1  # of the step time shown: about the last ten steps; chosen
_SHOWN_FOR_S = 0.1  # far less than gateways and scrapers wait between two looks; chosen


class StepMeter:
    """Written by the engine thread only; `load` may be read by any, in one go.

    `fitter`: learns what steps cost; None: nothing is known. `host_bytes_per_token`: of what is saved.
    """

    def __init__(self, fitter: StepCostFitter | None, host_bytes_per_token: int) -> None:
        self._fitter = fitter
        self._host_bytes_per_token = host_bytes_per_token
        self._statistics: SchedulerStatistics | None = None
        self._shown_at = 0.0
        self._num_steps = self._num_faults = 0
        self._step_s = 0.0

    def __repr__(self) -> str:
        return f"<StepMeter steps={self._num_steps} step_s={self._step_s:.3g}>"

    @property
    def load(self) -> EngineLoad:
        """The snapshot, put together by whoever asks: steps come far more often."""
        pace = EngineLoad(step_s=self._step_s, step_cost=self.cost, num_steps=self._num_steps, faults=self._num_faults)
        statistics = self._statistics
        return pace if statistics is None else with_statistics(pace, statistics, self._host_bytes_per_token)

    @property
    def cost(self) -> StepCost:
        """What steps are believed to cost now."""
        return self._fitter.cost if self._fitter is not None else StepCost()

    def count_step(self, record: StepRecord) -> None:
        """Learn from a step; not what rows cost if it had copies to or from host memory, which take time too."""
        plan, seconds, before = record.plan, record.seconds, self._step_s
        has_copies = any(isinstance(operation, Save | Restore) for operation in plan.memory)
        if self._fitter is not None and not has_copies:
            self._fitter.observe(*plan.counts(), seconds)
        self._step_s = before + _SMOOTHING * (seconds - before) if before else seconds
        self._num_steps = plan.number

    def count_fault(self) -> None:
        """A step, or what surrounds it, failed."""
        self._num_faults += 1

    def is_stale(self, population: tuple[int, int], now: float) -> bool:
        """Whether others should be shown the scheduler anew: as its sequences are others, or after a tenth of a second.

        `population`: how many it has seated, and how many wait. Between two steps of the same sequences only some
        counters differ, and to gather all of them would cost each step.
        """
        shown = self._statistics
        if shown is None or now - self._shown_at >= _SHOWN_FOR_S:
            return True
        return (shown.running, shown.waiting) != population

    def refresh(self, statistics: SchedulerStatistics, now: float) -> None:
        """Show what the scheduler says now."""
        self._statistics = statistics
        self._shown_at = now
