"""Retries are a share of the requests, so that failing engines are not failed harder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.retry import MIN_RETRIES, RetryBudget


@settings(deadline=None, max_examples=300)
@given(st.lists(st.booleans(), max_size=400), st.floats(0, 1))
def test_retries_never_exceed_their_share_over_any_stretch(history, ratio):
    """P29: from any moment to any later one."""
    budget = RetryBudget(ratio)
    made = []  # (requests, retries) so far
    requests = retries = 0
    for is_request in history:
        if is_request:
            budget.earn()
            requests += 1
        else:
            retries += budget.spend()
        made.append((requests, retries))
    for start_requests, start_retries in [(0, 0), *made[::7]]:
        assert retries - start_retries <= ratio * (requests - start_requests) + MIN_RETRIES + 1e-6


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_in_steady_failure_the_share_is_used_in_full(ratio):
    """Every request fails and asks for one retry."""
    budget = RetryBudget(ratio)
    retries = 0
    for _ in range(10_000):
        budget.earn()
        retries += budget.spend()
    assert retries == pytest.approx(ratio * 10_000, abs=MIN_RETRIES + 1)


def test_a_quiet_gateway_may_retry_a_few_times():
    """Before its share has built up."""
    budget = RetryBudget(0.1)
    assert [budget.spend() for _ in range(12)] == [True] * 10 + [False] * 2


def test_a_ratio_of_zero_means_no_retries():
    """As documented: an operator may switch them off."""
    budget = RetryBudget(0.0)
    for _ in range(1000):
        budget.earn()
    assert not budget.spend()


def test_what_is_saved_is_bounded():
    """A good night does not buy a bad morning."""
    budget = RetryBudget(1.0)
    for _ in range(1_000_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) == MIN_RETRIES


def test_the_budget_says_what_it_holds():
    """For whoever debugs."""
    assert repr(RetryBudget(0.1)) == "<RetryBudget saved=10.00 ratio=0.1>"
