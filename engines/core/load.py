"""How busy an engine is, as numbers that others may read at any time. Values only."""

from dataclasses import dataclass

from engines.step_cost import StepCost
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """Sequences of each lane."""

    interactive: int = 0
    standard: int = 0
    bulk: int = 0

    def of(self, lane: Lane) -> int:
        """One lane's."""
        return (self.interactive, self.standard, self.bulk)[lane.rank]


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Counts of one scheduler. Now: those up to `num_blocks`. Since the start, only growing: the others.

    `waiting` includes the `preempted`. `used_blocks`: of seated sequences; `cached_blocks`: of nobody, but still to be
    hit. `prompt_tokens`, `cached_tokens`: of sequences seated for the first time; the second is what the cache held.
    `bulk_rows_left_out`: rows that seated bulk would have had in steps but for urgent ones. `bulk_lifts`: steps with
    bulk in spite of the objective.
    """

    running: int
    waiting: int
    running_by_lane: LaneCounts
    waiting_by_lane: LaneCounts
    preempted: int
    used_blocks: int
    cached_blocks: int
    num_blocks: int
    evictions: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    preemptions: int
    bulk_rows_left_out: int
    bulk_lifts: int


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot of an engine, as of its last step; counters (from `num_steps` on) only grow.

    `kv_used_ratio`: 0..1, blocks of seated sequences; `kv_cached_ratio`: what can be hit besides. `step_s`: smoothed
    seconds of a step; `step_cost`: what the model has learned. Lanes' counts are those of the last step: they lack
    requests that came since. `prefix_query_tokens`, `prefix_hit_tokens`: prompt tokens looked up in the cache, and
    found, by sequences seated for the first time. `bulk_rows_left_out`, `bulk_lifts`: as in `SchedulerStatistics`.
    """

    running: int = 0
    waiting: int = 0
    running_by_lane: LaneCounts = LaneCounts()  # frozen
    waiting_by_lane: LaneCounts = LaneCounts()
    kv_used_ratio: float = 0.0
    kv_cached_ratio: float = 0.0
    step_s: float = 0.0
    step_cost: StepCost = StepCost()  # noqa: RUF009
    is_draining: bool = False
    num_steps: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    bulk_rows_left_out: int = 0
    bulk_lifts: int = 0
    evictions: int = 0
    faults: int = 0
