"""Sequences stay in order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.queue import URGENT_LANES, OrderedSequences
from engines.core.sequence import GenerateRequest, Sequence
from policies.lane import Lane


def sequence(*order):
    return Sequence(GenerateRequest("r", (1,)), max_length=9, seed=0, order=order)


@given(orders=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 9)), max_size=20), data=st.data())
@settings(max_examples=60, deadline=None)
def test_order_holds_through_adding_and_removing(orders, data):
    """Lane, priority, arrival, and at last the number, whatever came first."""
    queue, kept = OrderedSequences(), []
    for number, order in enumerate(orders):
        kept.append(sequence(*order, number))
        queue.add(kept[-1])
        if data.draw(st.booleans()):
            queue.remove(kept.pop(data.draw(st.integers(0, len(kept) - 1))))
    kept.sort(key=lambda each: each.order)
    assert list(queue) == kept
    assert len(queue) == len(kept)
    assert not kept or queue.last() is kept[-1]
    for lane in Lane:
        assert list(queue.in_lane(lane)) == [each for each in kept if each.order[0] == lane.rank]
        assert queue.num_in(lane) == len(queue.in_lane(lane))
    assert list(queue.nums_by_rank()) == [queue.num_in(lane) for lane in Lane]
    assert list(queue.urgent()) == [each for lane in URGENT_LANES for each in queue.in_lane(lane)]
    assert queue.num_urgent == len(queue.urgent())


def test_iteration_is_a_snapshot():
    """Sequences are moved while the queue is walked."""
    queue = OrderedSequences()
    for number in range(3):
        queue.add(sequence(0, 0, 0.0, number))
    for each in queue:
        queue.remove(each)
    assert len(queue) == 0


def test_removing_a_stranger_is_a_bug():
    """Two sequences of one order would hide each other."""
    queue = OrderedSequences()
    queue.add(sequence(0, 0, 0.0, 1))
    with pytest.raises(AssertionError, match="not where it belongs"):
        queue.remove(sequence(0, 0, 0.0, 1))
