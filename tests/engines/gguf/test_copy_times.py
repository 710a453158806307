"""What copies to host memory take, measured before the first request."""

import pytest

from engines.fake.runner import FakeRunner
from engines.gguf.copy_times import CopyTimes, measure_copies


class Clock:
    """Every reading is a millisecond after the one before."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


def test_copies_are_measured_and_leave_nothing():
    """A millisecond for 16 tokens, each way."""
    runner = FakeRunner(num_slots=2, host_bytes_per_token=8)
    times = measure_copies(runner, Clock())
    assert times.save_s_per_token == pytest.approx(0.001 / 16)
    assert times.restore_s_per_token == pytest.approx(0.001 / 16)
    assert (runner.num_used_cells, runner.num_host_tokens) == (0, 0)


@pytest.mark.parametrize("sizes", [{"num_slots": 2}, {"num_slots": 1, "host_bytes_per_token": 8}])
def test_without_copies_or_a_second_sequence_nothing_is_measured(sizes):
    """The runner makes no step for it."""
    assert measure_copies(FakeRunner(**sizes, failing_steps=frozenset({0})), Clock()) == CopyTimes()


def test_a_small_runner_is_measured_with_what_it_has():
    """No more tokens than a step, or half the cache, holds."""
    times = measure_copies(FakeRunner(num_slots=2, kv_tokens=8, max_step_tokens=8, host_bytes_per_token=8), Clock())
    assert times.save_s_per_token == pytest.approx(0.001 / 4)
