"""In which order cached things go, by each policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.eviction import EvictionOrder, EvictionPolicy, line_of

LRU, SLRU = EvictionPolicy.LRU, EvictionPolicy.SLRU


def emptied(order):
    """All numbers as they go."""
    return [order.pop() for _ in range(len(order))]


@pytest.mark.parametrize("policy", list(EvictionPolicy))
def test_the_line_never_falls_as_uses_grow(policy):
    """A parent block has at least its children's uses: it must never go before them."""
    for is_urgent in (False, True):
        lines = [line_of(policy, uses, is_urgent=is_urgent) for uses in range(1, 10)]
        assert lines == sorted(lines)
    assert line_of(policy, 99, is_urgent=False) < line_of(policy, 1, is_urgent=True)


def test_least_recently_used_goes_first_whatever_its_uses():
    """The plain policy looks at the last use only."""
    order = EvictionOrder(LRU)
    order.add(1, 5, is_urgent=True)
    order.add(2, 1, is_urgent=True)
    order.add(3, 9, is_urgent=False)
    assert list(order) == emptied(order) == [3, 1, 2]


def test_what_was_hit_again_outlives_a_scan():
    """A stream of prompts that nobody asks twice pushes out itself."""
    order = EvictionOrder(SLRU, range(5))
    order.add(10, 2, is_urgent=True)
    for number in range(11, 16):
        order.add(number, 1, is_urgent=True)
    order.add(20, 3, is_urgent=False)
    assert emptied(order) == [0, 1, 2, 3, 4, 20, 11, 12, 13, 14, 15, 10]


def test_protection_is_bounded():
    """What was popular long ago must not keep everything new out for ever."""
    order = EvictionOrder(SLRU)
    for number in range(10):
        order.add(number, 2, is_urgent=True)
    order.add(10, 1, is_urgent=True)
    order.add(11, 2, is_urgent=True)
    assert emptied(order) == [0, 1, 10, *range(2, 10), 11]
    roomy = EvictionOrder(SLRU, capacity=10)
    for number in range(9):
        roomy.add(number, 2, is_urgent=True)
    roomy.add(9, 1, is_urgent=True)
    assert emptied(roomy) == [0, 9, *range(1, 9)]


def test_nothing_worth_keeping_goes_before_all_others():
    """A blank block costs nobody anything."""
    order = EvictionOrder(SLRU, [1])
    order.add(2, 1, is_urgent=False)
    order.add_first(3)
    assert emptied(order) == [3, 1, 2]


def test_only_what_is_in_can_be_taken_out():
    """Accounting that is off must be loud."""
    with pytest.raises(KeyError):
        EvictionOrder().remove(1)


@given(
    st.sampled_from(list(EvictionPolicy)),
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "pop", "first"]), st.integers(0, 8), st.integers(1, 3), st.booleans()
        )
    ),
)
@settings(deadline=None, max_examples=200)
def test_every_number_is_in_once_and_comes_out_once(policy, script):
    """Whatever is put in, taken out of the middle or popped: nothing is lost, nothing is twice, bulk goes first."""
    order, urgent = EvictionOrder(policy), {}
    for action, number, uses, is_urgent in script:
        if action == "pop" and urgent:
            popped = order.pop()
            assert not urgent.pop(popped) or all(urgent.values())
        elif action == "remove" and number in urgent:
            order.remove(number)
            del urgent[number]
        elif action == "add" and number not in urgent:
            order.add(number, uses, is_urgent=is_urgent)
            urgent[number] = is_urgent
        elif action == "first" and number not in urgent:
            order.add_first(number)
            urgent[number] = False
            assert next(iter(order)) == number
        assert sorted(order) == sorted(urgent)
        assert len(order) == len(urgent)
        assert all((number in order) == (number in urgent) for number in range(9))
