"""When a second attempt is worth it: the learned wait, its budget, and the room that it needs."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.retry import MIN_RETRIES
from routing.hedge import LEAST_WAIT_S, MIN_SEEN, HedgeBudget, Patience, has_spare_seat
from tests.routing.fleet import Fleet


@pytest.mark.parametrize("quantile", [0.8, 0.95])
def test_about_as_many_streams_take_longer_than_the_learned_wait_as_should(quantile):
    """Whatever the predictions are worth: 5% of streams take longer than their 95% quantile."""
    rng, patience, num_longer = random.Random(1), Patience(), 0
    for number in range(6000):
        predicted_s = rng.choice([0.05, 0.2, 1.0])
        took_s = predicted_s * rng.lognormvariate(0.5, 0.6)
        num_longer += number >= 1000 and took_s > predicted_s * patience.factor
        patience.observe(predicted_s, took_s, quantile)
    assert num_longer / 5000 == pytest.approx(1 - quantile, abs=0.03)


def test_whoever_was_outrun_teaches_as_much_as_who_took_longer():
    """It is enough to know that it took longer than the wait."""
    outrun, waited = Patience(), Patience()
    for _ in range(200):
        outrun.observe(1.0, outrun.factor * 1.001, 0.95)
        waited.observe(1.0, waited.factor * 50.0, 0.95)
    assert outrun.factor == waited.factor == pytest.approx(1000.0)


def test_nothing_is_waited_for_before_enough_was_seen():
    """And never less than a person notices."""
    patience = Patience()
    for _ in range(MIN_SEEN):
        assert patience.wait_s(1.0) is None
        patience.observe(1.0, 1.0, 0.95)
    assert patience.wait_s(1.0) == pytest.approx(patience.factor)
    assert patience.wait_s(0.0) == LEAST_WAIT_S
    assert repr(patience).endswith("50 seen>")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.floats(-1.0, 1e6), st.floats(-1.0, 1e6)), max_size=100), st.floats(0.5, 0.999))
def test_the_wait_is_bounded_whatever_is_observed(seen, quantile):
    """Nonsense moves it little."""
    patience = Patience()
    for predicted_s, took_s in seen:
        before = patience.factor
        patience.observe(predicted_s, took_s, quantile)
        assert patience.factor * 1.001 >= 0.1
        assert patience.factor <= 1000.1
        assert 0.9 <= patience.factor / before <= 1.11


@settings(deadline=None, max_examples=60)
@given(st.floats(0.0, 0.5), st.lists(st.booleans(), max_size=300))
def test_second_attempts_are_a_share_of_the_requests(share, asked):
    """However many are slow at once."""
    budget, num_made = HedgeBudget(), 0
    for number, is_slow in enumerate(asked, start=1):
        budget.earn(share)
        if is_slow and budget.can_spend():
            budget.spend()
            num_made += 1
        assert num_made <= 1.0 + share * number + 1e-6
    for _ in range(1000):
        budget.earn(0.5)
    assert repr(budget) == f"<HedgeBudget saved={MIN_RETRIES:.2f}>"


def test_a_replica_with_few_free_seats_gets_no_second_attempt():
    """The last quarter is for requests that have no other."""
    fleet = Fleet(1, seats=8)
    replica = fleet.pool.get("r1")
    spare = []
    for held in range(9):
        replica.num_in_flight = held
        spare.append(has_spare_seat(replica, Lane.INTERACTIVE))
    assert spare == [True] * 7 + [False] * 2
