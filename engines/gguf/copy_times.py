"""What copies of KV to host memory and back take, measured once before serving."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from engines.core.plan import Discard, MemoryOperation, Restore, Row, Runner, Save, StepPlan, Truncate

# Chosen. A step of so few tokens is cheap even for a large model. What a copy costs at all counts in, so that a token
# of a long path is thought dearer than it is: saves then take less of a step than they may, not more.
_NUM_TOKENS = 16
_REPEATS = 3  # into fresh memory each time, as real saves are


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """Seconds a token."""

    save_s_per_token: float = 0.0
    restore_s_per_token: float = 0.0


def measure_copies(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> CopyTimes:
    """The median of some copies; nothing where the runner cannot copy, or tells no two sequences apart.

    The runner must be empty and is left so. Raises `EngineFault` if a step fails.
    """
    num_tokens = min(_NUM_TOKENS, runner.max_step_tokens, runner.kv_tokens // 2)
    if not runner.host_bytes_per_token or runner.num_slots < 2 or num_tokens < 1:
        return CopyTimes()

    def seconds(*operations: MemoryOperation) -> float:
        started = clock()
        runner.execute(StepPlan(0, operations, ()))
        return clock() - started

    runner.execute(StepPlan(0, (), (Row(0, 0, (0,) * num_tokens, num_samples=1),)))
    handles = range(1, _REPEATS + 1)
    saves = [seconds(Save(0, handle, num_tokens)) for handle in handles]
    restores = []
    for handle in handles:
        restores.append(seconds(Restore(handle, 1, num_tokens)))
        seconds(Truncate(1, 0), Discard(handle))
    runner.clear()
    return CopyTimes(sorted(saves)[_REPEATS // 2] / num_tokens, sorted(restores)[_REPEATS // 2] / num_tokens)
