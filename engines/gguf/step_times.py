"""What steps of a warm runner take, measured once before it serves, so that lanes are kept from the start."""

import time
from collections.abc import Callable

from engines.core.plan import Row, Runner, StepPlan
from engines.step_cost import StepCost, StepCostFitter

# Rows of one token, or one row of several; chosen: what CPUs are nonlinear in shows between 1 and 8.
_SHAPES = ((1, 1), (4, 1), (1, 16), (2, 1), (1, 32), (8, 1))
_NUM_NEEDED = 3  # one of each kind of cost
_REPEATS = 3  # the shortest counts: others were disturbed
_PATIENCE_S = 1.0  # then only the needed ones are measured, once each; a large model on a small machine takes seconds


def measure_step_cost(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> StepCost:
    """The step-cost model that fits some short steps. The runner must be empty and is left so.

    Raises `EngineFault` if a step fails.
    """
    started = clock()
    alone_s = _measure(runner, 1, 1, clock)
    # What a CPU's steps look like; only believed for what is not measured.
    fitter = StepCostFitter(StepCost(alone_s / 2, alone_s / 2, alone_s / 2), forgetting=1.0)
    for index, (num_rows, num_tokens) in enumerate(_SHAPES):
        if num_rows > runner.num_slots or num_rows * num_tokens > runner.max_step_tokens:
            continue
        is_late = clock() - started > _PATIENCE_S
        if is_late and index >= _NUM_NEEDED:
            break
        repeats = 1 if is_late else _REPEATS
        seconds = min(_measure(runner, num_rows, num_tokens, clock) for _ in range(repeats))
        rows, prefill_tokens = (num_rows, 0) if num_tokens == 1 else (0, num_rows * num_tokens)
        fitter.observe(rows, prefill_tokens, seconds)
    return fitter.cost


def _measure(runner: Runner, num_rows: int, num_tokens: int, clock: Callable[[], float]) -> float:
    rows = tuple(Row(slot, 0, (0,) * num_tokens, num_samples=1) for slot in range(num_rows))
    started = clock()
    runner.execute(StepPlan(0, (), rows))
    seconds = clock() - started
    runner.clear()
    return seconds
