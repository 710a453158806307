"""How long a tenant's answers are expected to be: a guess, then what was seen, and bounded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.output_estimate import FIRST_GUESS_TOKENS, OutputEstimates


def test_an_unknown_flow_is_guessed():
    """Never more than the request itself allows."""
    outputs = OutputEstimates()
    assert outputs.expected("a", Lane.BULK) == FIRST_GUESS_TOKENS
    assert outputs.expected("a", Lane.BULK, 5) == 5
    assert outputs.expected("a", Lane.BULK, 100_000) == FIRST_GUESS_TOKENS
    assert len(outputs) == 0, "asking is not remembered"


def test_the_mean_follows_what_was_seen():
    """Within a few dozen answers, and in this lane of this tenant alone."""
    outputs = OutputEstimates()
    for _ in range(60):
        outputs.observe("a", Lane.BULK, 1000)
    assert outputs.expected("a", Lane.BULK) == pytest.approx(1000, rel=0.01)
    assert outputs.expected("a", Lane.STANDARD) == FIRST_GUESS_TOKENS
    assert outputs.expected("b", Lane.BULK) == FIRST_GUESS_TOKENS


def test_each_model_is_learned_by_itself():
    """A tenant's small model may chatter while its large one answers in a word."""
    outputs = OutputEstimates()
    for _ in range(60):
        outputs.observe("a", Lane.BULK, 1000, "small-a")
    assert outputs.expected("a", Lane.BULK, model="small-a") == pytest.approx(1000, rel=0.01)
    assert outputs.expected("a", Lane.BULK, model="small-b") == FIRST_GUESS_TOKENS


def test_beyond_the_bound_the_flow_that_was_quiet_longest_is_forgotten():
    """The bound is reached and never passed."""
    outputs = OutputEstimates(max_flows=3)
    for tenant in ("a", "b", "c", "a", "d"):
        outputs.observe(tenant, Lane.BULK, 0)
        assert len(outputs) <= 3
    assert len(outputs) == 3
    assert outputs.expected("b", Lane.BULK) == FIRST_GUESS_TOKENS
    assert outputs.expected("a", Lane.BULK) < FIRST_GUESS_TOKENS


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 100_000), max_size=50), st.integers(0, 1000))
def test_an_estimate_stays_within_what_was_seen(lengths, most):
    """No sequence of answers leads outside of the guess and the lengths themselves."""
    outputs = OutputEstimates()
    for length in lengths:
        outputs.observe("a", Lane.BULK, length)
    expected = outputs.expected("a", Lane.BULK, most)
    seen = [*lengths, FIRST_GUESS_TOKENS]
    assert 0 <= expected <= max(seen)
    assert expected >= min(seen) or expected == most
    assert not most or expected <= most
