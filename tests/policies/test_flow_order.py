"""The ready flows in order: the few least are always in front, whatever is added, dropped and moved."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.flow import Flow
from policies.flow_order import FlowOrder


def flow(counter, name="f") -> Flow:
    return Flow(name, 1.0, counter)


def counters(order) -> list[float]:
    return [counter for counter, _, _ in order.front]


def test_the_least_are_in_front_and_equals_keep_their_order():
    """The least counter has its turn, and among equals who came first."""
    order = FlowOrder(2)
    flows = [flow(counter) for counter in (5, 1, 5, 1, 0)]
    for one in flows:
        order.add(one)
    assert [one for _, _, one in order.front] == [flows[4], flows[1]]
    order.discard(flows[4])
    assert [one for _, _, one in order.front] == [flows[1], flows[3]]
    assert len(order) == 4


def test_dropping_what_is_not_ready_changes_nothing():
    """Endings come in any order."""
    order = FlowOrder(2)
    order.discard(flow(1))
    assert (len(order), order.front) == (0, [])


def test_virtual_time_never_goes_back():
    """A refund to the least must not give those who come later a credit."""
    order = FlowOrder(2)
    one = flow(100)
    assert order.advance() == 0.0
    order.add(one)
    assert order.advance() == 100
    one.counter = 10
    order.rekey(one)
    assert (order.advance(), counters(order)) == (100, [10])


def test_outdated_items_are_bounded():
    """Flows behind the front that come and go leave their items in the heap, but not for ever."""
    order = FlowOrder(1)
    order.add(flow(0))
    for number in range(10_000):
        behind = flow(number + 1)
        order.add(behind)
        order.discard(behind)
    assert len(order._behind) < 100


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=120))
def test_the_front_is_what_sorting_would_give(size, steps):
    """Against a model that sorts everything."""
    order, flows = FlowOrder(size), [flow(0.0, str(number)) for number in range(10)]
    for number, counter in steps:
        one = flows[number]
        if one.item is None:
            one.counter = float(counter)
            order.add(one)
        elif counter % 3 == 0:
            order.discard(one)
        else:
            one.counter = float(counter)
            order.rekey(one)
        ready = sorted(one.item for one in flows if one.item is not None)
        assert order.front == ready[:size]
        assert len(order) == len(ready)
