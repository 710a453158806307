"""Masks of replicas by name: bits are given out once, and what nobody holds is not kept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.masks import bits_of, free_bit, unset


@given(st.sets(st.integers(0, 70)))
@settings(max_examples=100, deadline=None)
def test_the_bits_of_a_mask_are_those_it_was_made_of(places):
    """In order, more than a machine word of them too."""
    mask = sum(1 << place for place in places)
    assert list(bits_of(mask)) == [1 << place for place in sorted(places)]


@given(st.sets(st.integers(0, 70)))
@settings(max_examples=100, deadline=None)
def test_a_free_bit_is_the_lowest_that_nobody_has(places):
    """Bits of those who left are used again, so masks stay short."""
    taken = {1 << place for place in places}
    bit = free_bit(taken)
    assert bit not in taken
    assert all(lower in taken for lower in bits_of(bit - 1))


def test_a_name_that_nobody_holds_is_not_kept():
    """Else the table would grow for ever; a bit that is not set changes nothing."""
    masks = {7: 0b11}
    unset(masks, 7, 0b100)
    unset(masks, 8, 0b1)
    assert masks == {7: 0b11}
    unset(masks, 7, 0b1)
    assert masks == {7: 0b10}
    unset(masks, 7, 0b10)
    assert masks == {}
