"""What a client without a turn is told of its place in the queue: its own share, and nothing of the others."""

import pytest

from gateway import turned_away
from gateway.outcome import Outcome
from policies.entry import Entry
from policies.lane import Lane
from policies.lane_queue import Overflow


@pytest.mark.parametrize(
    ("num_held", "says"),
    [
        (1, "the bulk lane's queue is full: every place is taken by another project"),
        (2, "this project's own share of the bulk lane's queue is full: 1 of its requests is waiting"),
        (501, "this project's own share of the bulk lane's queue is full: 500 of its requests are waiting"),
    ],
)
def test_a_refused_newcomer_is_told_whose_share_is_full(num_held, says):
    """Its own, unless it has nothing there."""
    problem = turned_away.queue_full(Overflow(Entry("a", Lane.BULK), num_held), 2.2).problem
    assert problem.message == says
    assert (problem.status, problem.code, problem.retry_after_s) == (429, "queue_full", 3)
    assert (problem.type, problem.outcome) == ("rate_limit_error", Outcome.REFUSED)


def test_who_gave_up_its_place_is_told_when_to_return_in_the_text_too():
    """A stream that has begun shows no headers any more."""
    problem = turned_away.gave_way(Overflow(Entry("a", Lane.INTERACTIVE), 8), 2.2).problem
    assert problem.message == (
        "this project's own share of the interactive lane's queue is full: 7 of its requests are waiting, "
        "and this one, the newest, gave up its place; try again in 3 s"
    )
    assert (problem.status, problem.code, problem.retry_after_s) == (429, "queue_full", 3)
    assert problem.outcome is Outcome.REFUSED
    assert b'"code":"429"' in problem.event()
    assert b'"reason":"queue_full"' in problem.event()
