"""What steps take, measured before the first request."""

from dataclasses import astuple

import pytest

from engines.fake.runner import FakeRunner
from engines.gguf.step_times import measure_step_cost
from engines.step_cost import StepCost

TRUE = StepCost(base_s=0.010, per_row_s=0.002, per_prefill_token_s=0.0005)


class Device:
    """A fake runner whose steps move a clock. `factor` makes it slow."""

    def __init__(self, factor=1.0, **sizes):
        self.now = 0.0
        self.num_steps = 0
        self._factor = factor
        self.runner = FakeRunner(cost=TRUE, sleep=self._spend, **sizes)

    def _spend(self, seconds):
        self.num_steps += 1
        self.now += seconds * self._factor

    def measure(self):
        return measure_step_cost(self.runner, lambda: self.now)


def test_the_three_costs_are_found():
    """From a handful of short steps; the runner is empty afterwards."""
    device = Device()
    assert astuple(device.measure()) == pytest.approx(astuple(TRUE), rel=0.05)
    assert device.runner.num_used_cells == 0


def test_a_slow_device_is_not_measured_for_long():
    """Once each of what is needed, however long it takes; the costs are right all the same."""
    device = Device(factor=100.0)
    cost = device.measure()
    assert device.num_steps <= 6
    assert cost.per_row_s == pytest.approx(100 * TRUE.per_row_s, rel=0.1)
    assert cost.per_prefill_token_s == pytest.approx(100 * TRUE.per_prefill_token_s, rel=0.1)


@pytest.mark.parametrize("sizes", [{"num_slots": 1}, {"num_slots": 2, "max_step_tokens": 2}])
def test_small_runners_are_measured_as_far_as_they_go(sizes):
    """What cannot be seen is believed to be as on other CPUs: nothing costs nothing."""
    cost = Device(**sizes).measure()
    assert min(cost.base_s + cost.per_row_s, cost.per_prefill_token_s) > 0
    assert cost.seconds(1, 0) == pytest.approx(TRUE.seconds(1, 0), rel=0.1)
