"""Canaries get their weight, a conversation stays where it is, and a part is a part."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.traffic import Share, Variants

homes = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("weights", [{"a": 95, "b": 5}, {"a": 1, "b": 1, "c": 2}, {"a": 0, "b": 3}, {"a": 0.2}])
def test_each_variant_gets_its_weight(weights):
    """Over many conversations, within what chance allows."""
    variants, num = Variants(weights), 20_000
    drawn = [variants.of(number * 0x9E3779B97F4A7C15 % 2**64) for number in range(num)]
    for name, weight in weights.items():
        assert drawn.count(name) / num == pytest.approx(weight / sum(weights.values()), abs=0.012)
        assert weight or name not in drawn


@given(st.lists(homes, min_size=1, max_size=50), st.floats(0, 50), st.floats(0, 50))
@settings(max_examples=60, deadline=None)
def test_raising_a_canary_moves_conversations_to_it_and_none_away(sample, before, more):
    """Else a step from 5 to 10 percent would cool the caches of everybody."""
    old, new = Variants({"a": 100, "b": before}), Variants({"a": 100, "b": before + more})
    for home in sample:
        assert old.of(home) == Variants({"a": 100, "b": before}).of(home)
        assert (old.of(home), new.of(home)) in {("a", "a"), ("b", "b"), ("a", "b")}


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": -1, "b": 2}])
def test_weights_that_say_nothing_are_refused(weights):
    """Nobody would get the traffic."""
    with pytest.raises(ValueError, match="weights"):
        Variants(weights)


@given(st.floats(0, 1), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_a_share_is_exact_at_every_moment(part, num):
    """Never off by more than one."""
    share = Share(part)
    taken = sum(share.is_next() for _ in range(num))
    assert abs(taken - part * num) <= 1 + 1e-6
