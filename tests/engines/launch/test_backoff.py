"""Waits between restarts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.backoff import Backoff, BackoffPolicy

POLICY = BackoffPolicy(first_s=1, cap_s=8, factor=2, stable_s=10)


def test_waits_double_up_to_the_cap_and_stay_there():
    """A process that cannot stay up must not be started in a tight loop, nor be forgotten."""
    backoff = Backoff(POLICY)
    assert [backoff.lost(now) for now in range(6)] == [1, 2, 4, 8, 8, 8]


def test_a_stable_run_forgives_what_was_before():
    """A worker that fell after an hour is back in the shortest time."""
    backoff = Backoff(POLICY)
    backoff.lost(0)
    backoff.lost(1)
    backoff.ready(2)
    assert backoff.lost(12) == 1
    assert backoff.failures == 1


def test_a_short_run_is_one_more_failure():
    """Being ready for a moment is no proof of health: the waits go on growing."""
    backoff = Backoff(POLICY)
    backoff.lost(0)
    backoff.ready(1)
    assert backoff.lost(10.9) == 2


def test_readiness_counts_for_one_loss_only():
    """An old readiness must not forgive later failed starts for ever."""
    backoff = Backoff(POLICY)
    backoff.ready(0)
    assert backoff.lost(100) == 1
    assert backoff.lost(200) == 2


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=200))
def test_every_wait_lies_between_the_first_and_the_cap(steps):
    """No history makes a wait of zero or an endless one, nor overflows."""
    backoff, now = Backoff(POLICY), 0.0
    for is_ready, passed in steps:
        now += passed
        if is_ready:
            backoff.ready(now)
        else:
            assert POLICY.first_s <= backoff.lost(now) <= POLICY.cap_s


def test_thousands_of_failures_do_not_overflow():
    """A worker that fails for a month still waits the cap."""
    backoff = Backoff(POLICY)
    assert [backoff.lost(0) for _ in range(5000)][-1] == POLICY.cap_s
