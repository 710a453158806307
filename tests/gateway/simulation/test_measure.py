"""Numbers of a run."""

import pytest

from gateway.simulation.measure import Occupancy, Percentiles, Window
from policies.lane import Lane


def test_percentiles():
    """Nothing observed is zero, and says so by its count."""
    assert Percentiles.of([]) == Percentiles(0.0, 0.0, 0.0, 0.0, 0)
    found = Percentiles.of([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99, found.mean, found.count) == (50, 95, 99, 50, 101)


def test_a_window_is_half_open():
    """Two windows side by side count nothing twice."""
    window = Window(1.0, 2.0)
    assert [window.holds(at) for at in (0.9, 1.0, 1.9, 2.0)] == [False, True, True, False]
    assert [window.overlap_s(*span) for span in ((0, 3), (1.5, 9), (0, 1), (2, 3))] == [1.0, 0.5, 0.0, 0.0]


def test_occupancy_is_the_time_with_any_urgent_request():
    """Overlapping ones count once, bulk never, standard as interactive, and only within the window."""
    occupancy = Occupancy(Window(1.0, 10.0))
    occupancy.enter(Lane.INTERACTIVE, 0.0)
    occupancy.enter(Lane.STANDARD, 1.0)
    occupancy.leave(Lane.INTERACTIVE, 2.0)
    assert occupancy.is_held
    occupancy.leave(Lane.STANDARD, 3.0)
    occupancy.enter(Lane.BULK, 3.0)
    assert not occupancy.is_held
    occupancy.leave(Lane.BULK, 4.0)
    occupancy.enter(Lane.INTERACTIVE, 9.5)
    occupancy.close(20.0)
    occupancy.close(21.0)
    assert occupancy.held_s == pytest.approx(2.5)
