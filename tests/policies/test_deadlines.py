"""Deadlines of waiting entries: exact, cheap to leave, and without memory of who left."""

from hypothesis import given, settings
from hypothesis import strategies as st

from policies.deadlines import SLOT_S, Deadlines
from policies.entry import FOREVER, Entry
from policies.lane import Lane


def entry(deadline) -> Entry:
    return Entry("a", Lane.BULK, deadline=deadline)


def test_whoever_is_due_is_returned_once():
    """Expired entries are refused once."""
    deadlines = Deadlines()
    due, later = entry(10.0), entry(10.1)
    for one in (later, due, entry(FOREVER)):
        deadlines.add(one)
    assert (deadlines.due_at, len(deadlines)) == (10.0, 2)
    assert deadlines.expire(9.99) == []
    assert deadlines.expire(10.0) == [due]
    assert deadlines.due_at == 10.1
    assert deadlines.expire(1e9) == [later]
    assert (deadlines.due_at, len(deadlines)) == (FOREVER, 0)


def test_leaving_twice_or_unwatched_is_harmless():
    """Endings come in any order."""
    deadlines = Deadlines()
    one = entry(5.0)
    for _ in range(2):
        deadlines.discard(one)
        deadlines.add(one)
        deadlines.discard(one)
        deadlines.discard(one)
    deadlines.discard(entry(FOREVER))
    assert deadlines.expire(1e9) == []


def test_those_who_left_are_not_remembered():
    """A million requests with deadlines far apart leave no million slots."""
    deadlines = Deadlines()
    for number in range(10_000):
        one = entry(number * 10 * SLOT_S)
        deadlines.add(one)
        deadlines.discard(one)
    assert len(deadlines._slots) == 0
    assert len(deadlines._order) <= 66


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["stay", "leave", "tick"])), max_size=80))
def test_expiry_is_exact(steps):
    """Against a model that looks at everybody."""
    deadlines, waiting, now = Deadlines(), [], 0.0
    for number, what in steps:
        if what == "tick":
            now += number
            due = [one for one in waiting if one.deadline <= now]
            assert deadlines.due_at <= min((one.deadline for one in due), default=FOREVER)
            assert set(deadlines.expire(now)) == set(due)
            waiting = [one for one in waiting if one.deadline > now]
        elif what == "leave" and waiting:
            deadlines.discard(waiting.pop())
        else:
            waiting.append(entry(now + number))
            deadlines.add(waiting[-1])
        assert len(deadlines) == len(waiting)
