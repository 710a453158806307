"""The sliding window against a plain list of arrival times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.request_window import WINDOW_S, RequestWindow

GAPS = st.lists(st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 200)), min_size=1, max_size=60)


def counted(times: list[float], now: float) -> int:
    """What the documentation says: whole seconds, the current one and the sixty before it."""
    return sum(int(now) - int(time) <= WINDOW_S for time in times)


def test_a_request_leaves_after_60_to_61_seconds():
    """The window may be stricter than a minute, never looser."""
    window = RequestWindow()
    window.admit(1000.9)
    assert window.num_admitted(1060.99) == 1
    assert window.num_admitted(1061.0) == 0


def test_taking_back_forgets_exactly_one():
    """An undone request must not use up the minute of others."""
    window = RequestWindow()
    first = window.admit(5.0)
    window.admit(5.5)
    window.take_back(first)
    assert window.num_admitted(6.0) == 1


def test_taking_back_what_has_left_changes_nothing():
    """A request refused a minute later must not take another's place away."""
    window = RequestWindow()
    old = window.admit(5.0)
    window.admit(5.0 + 61 * 3)
    window.take_back(old)
    assert window.num_admitted(5.0 + 61 * 3) == 1


def test_a_clock_that_steps_back_lets_nothing_more_in():
    """A monotonic clock should not do this, but if it does the count must stay."""
    window = RequestWindow()
    window.admit(100.0)
    window.admit(40.0)
    assert window.num_admitted(40.0) == 2
    assert window.num_admitted(100.0) == 2
    assert window.num_admitted(161.0) == 0


def test_advice_on_waiting_for_a_limit_of_0_is_none():
    """No wait helps against a limit of 0."""
    assert RequestWindow().below_in_s(0, 1.0) is None


def test_an_unused_window_is_below_and_empty_now():
    """Advice must not tell anybody to wait for nothing."""
    window = RequestWindow()
    assert window.below_in_s(1, 50.0) == 0.0
    assert window.empty_in_s(50.0) == 0.0


@settings(deadline=None, max_examples=150)
@given(GAPS, st.floats(0, 130))
def test_the_count_is_that_of_a_plain_list(gaps, later):
    """The ring of buckets must never drift from what came."""
    window, times, now = RequestWindow(), [], 1000.0
    for gap in gaps:
        now += gap
        window.admit(now)
        times.append(now)
        assert window.num_admitted(now) == counted(times, now)
    assert window.num_admitted(now + later) == counted(times, now + later)


@settings(deadline=None, max_examples=150)
@given(GAPS, st.integers(1, 5), st.floats(0, 100))
def test_the_advice_on_waiting_is_exact(gaps, limit, later):
    """A client that waits as told is let in, and one that waits less is not."""
    window, now = RequestWindow(), 1000.0
    for gap in gaps:
        now += gap
        window.admit(now)
    now += later
    wait_s = window.below_in_s(limit, now)
    assert window.num_admitted(now + wait_s + 1e-6) < limit
    if wait_s:
        assert window.num_admitted(now + wait_s - 1e-6) >= limit
    empty_s = window.empty_in_s(now)
    assert window.num_admitted(now + empty_s + 1e-6) == 0
    if empty_s:
        assert window.num_admitted(now + empty_s - 1e-6) > 0
        assert 0 < empty_s <= 61


@pytest.mark.parametrize("step", [1, 59, 60, 61, 62, 10_000])
def test_advancing_by_any_step_keeps_what_is_inside(step):
    """The edges of the ring are where a bucket could be counted twice or lost."""
    window = RequestWindow()
    window.admit(1000.0)
    window.admit(1000.0 + step)
    assert window.num_admitted(1000.0 + step) == (2 if step <= WINDOW_S else 1)
