"""How busy an engine is, as numbers that others may read at any time. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Counts of one scheduler. Now: those up to `num_blocks`. Since the start, only growing: the others.

    `waiting` includes the `preempted`. `used_blocks`: of seated sequences; `cached_blocks`: of nobody, but still to be
    hit. `prompt_tokens`, `cached_tokens`: of sequences seated for the first time; the second is what the cache held.
    """

    running: int
    waiting: int
    preempted: int
    used_blocks: int
    cached_blocks: int
    num_blocks: int
    evictions: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """A snapshot of an engine, as of its last step; counters (from `num_steps` on) only grow.

    `kv_used_ratio`: 0..1, blocks of seated sequences; `kv_cached_ratio`: what can be hit besides. `step_s`: smoothed
    seconds of a step. `prefix_query_tokens`, `prefix_hit_tokens`: prompt tokens looked up in the cache, and found, by
    sequences seated for the first time.
    """

    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    kv_cached_ratio: float = 0.0
    step_s: float = 0.0
    is_draining: bool = False
    num_steps: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    faults: int = 0
