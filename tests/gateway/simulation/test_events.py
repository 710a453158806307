"""The timeline is what makes a run repeatable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.simulation.events import Timeline


@given(st.lists(st.integers(0, 5), max_size=30))
def test_events_come_by_time_and_in_the_order_added(times):
    """Ties must not depend on what the events are."""
    timeline = Timeline()
    for number, at in enumerate(times):
        timeline.add(float(at), number)
    taken = []
    while len(timeline):
        event = timeline.take()
        taken.append((timeline.now, event))
    assert taken == sorted((float(at), number) for number, at in enumerate(times))


def test_nothing_happens_in_the_past():
    """An event that comes too late would make time run backwards."""
    timeline = Timeline()
    timeline.add(2.0, "late")
    timeline.take()
    with pytest.raises(AssertionError, match=r"1\.0"):
        timeline.add(1.0, "early")
    assert "now=2.0" in repr(timeline)
