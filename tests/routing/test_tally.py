"""What is counted of a replica's last attempts, and how its failures are kept from using up all retries."""

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.breaker import Breaker, Verdict
from routing.tally import FREE_RETRIES, STRETCH_S, Tally


def test_a_new_tally_is_blank_until_something_is_counted():
    """That tells a replica that has worked from one that nobody has asked yet."""
    breaker = Breaker()
    assert breaker.tally.is_blank
    breaker.report(Verdict.BACKPRESSURE, 1.0)
    breaker.report(Verdict.NEUTRAL, 1.0)
    assert breaker.tally.is_blank
    breaker.report(Verdict.FINE, 1.0)
    assert not breaker.tally.is_blank
    assert repr(breaker.tally) == "<Tally 0 faults and 0 late of 1>"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(Verdict), st.floats(0.0, 20.0)), max_size=60))
def test_what_is_counted_is_one_to_three_stretches_old_and_no_busy_answer(steps):
    """Only engine faults and good answers count; nothing is forgotten before a stretch or kept longer than three."""
    breaker, now, seen = Breaker(), 100.0, []
    for verdict, later in steps:
        now += later
        breaker.report(verdict, now)
        seen.append((verdict, now))
    tally = breaker.tally
    tally.move_on(now)
    counted = [(verdict, at) for verdict, at in seen if verdict in {Verdict.FINE, Verdict.FAULT}]
    least = sum(at > now - STRETCH_S for _, at in counted)
    most = sum(at >= now - 3 * STRETCH_S - 0.001 for _, at in counted)
    assert least <= tally.num_attempts <= most
    assert tally.num_faults <= sum(verdict is Verdict.FAULT for verdict, _ in counted)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.0, 1.0), st.integers(0, 300))
def test_retries_of_one_replica_are_a_share_of_its_attempts(ratio, attempts):
    """However often it fails, and some for a quiet one."""
    tally = Tally()
    tally.move_on(1.0)
    tally.faults = attempts
    granted = sum(tally.spend_retry(ratio, 1.0) for _ in range(attempts + 20))
    assert granted <= FREE_RETRIES + ratio * attempts + 1
    assert granted >= min(attempts + 20, FREE_RETRIES)


def test_a_used_up_budget_comes_back_with_time():
    """No state without exit."""
    tally = Tally()
    while tally.spend_retry(0.0, 1.0):
        pass
    assert not tally.spend_retry(0.0, 1.0 + STRETCH_S)
    assert tally.spend_retry(0.0, 1.0 + 3 * STRETCH_S)
