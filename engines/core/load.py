"""How busy an engine is, as numbers that others may read at any time. Values only."""

from dataclasses import dataclass, replace

from engines.core.host_tier import HostStatistics
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
    hit. `prompt_tokens`, `cached_tokens`, `restored_tokens`: of sequences seated for the first time; the second is what
    the cache held, the third what of that lay in host memory.
    `bulk_rows_left_out`: rows that seated bulk would have had in steps but for urgent ones. `bulk_lifts`: steps with
    bulk in spite of the objective. `drafted_tokens`, `accepted_tokens`: guessed ahead, and found right. `host`: what is
    kept in host memory.
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
    restored_tokens: int
    generation_tokens: int
    preemptions: int
    bulk_rows_left_out: int
    bulk_lifts: int
    drafted_tokens: int
    accepted_tokens: int
    host: HostStatistics


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot of an engine, as of its last step; counters (from `num_steps` on) only grow.

    `kv_used_ratio`: 0..1, blocks of seated sequences; `kv_cached_ratio`: what can be hit besides. `step_s`: smoothed
    seconds of a step; `step_cost`: what the model has learned. Lanes' counts are those of the last step: they lack
    requests that came since. `prefix_query_tokens`, `prefix_hit_tokens`: prompt tokens looked up in the cache, and
    found, by sequences seated for the first time; `prefix_host_hit_tokens`: of these, found in host memory.
    `kv_host_bytes` of `kv_host_max_bytes`: in use for saved KV. `kv_saved_tokens`, `kv_restored_tokens`,
    `kv_discarded_tokens`: copied to host memory, back, and given up there. `bulk_rows_left_out`,
    `bulk_lifts`, `drafted_tokens`, `accepted_tokens`: as in `SchedulerStatistics`.
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
    is_paused: bool = False
    kv_host_bytes: int = 0
    kv_host_max_bytes: int = 0
    num_steps: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prefix_host_hit_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    bulk_rows_left_out: int = 0
    bulk_lifts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    evictions: int = 0
    kv_saved_tokens: int = 0
    kv_restored_tokens: int = 0
    kv_discarded_tokens: int = 0
    faults: int = 0


def with_statistics(load: EngineLoad, now: SchedulerStatistics, host_bytes_per_token: int) -> EngineLoad:
    """`load` with what its scheduler says now."""
    return replace(
        load,
        running=now.running,
        waiting=now.waiting,
        running_by_lane=now.running_by_lane,
        waiting_by_lane=now.waiting_by_lane,
        kv_used_ratio=now.used_blocks / now.num_blocks,
        kv_cached_ratio=now.cached_blocks / now.num_blocks,
        kv_host_bytes=now.host.used_tokens * host_bytes_per_token,
        kv_host_max_bytes=now.host.max_tokens * host_bytes_per_token,
        prefix_query_tokens=now.prompt_tokens,
        prefix_hit_tokens=now.cached_tokens,
        prefix_host_hit_tokens=now.restored_tokens,
        generation_tokens=now.generation_tokens,
        preemptions=now.preemptions,
        bulk_rows_left_out=now.bulk_rows_left_out,
        bulk_lifts=now.bulk_lifts,
        drafted_tokens=now.drafted_tokens,
        accepted_tokens=now.accepted_tokens,
        evictions=now.evictions,
        kv_saved_tokens=now.host.saved_tokens,
        kv_restored_tokens=now.host.restored_tokens,
        kv_discarded_tokens=now.host.discarded_tokens,
    )
