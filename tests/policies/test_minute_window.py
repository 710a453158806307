"""The sliding window against a plain list of what came and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.minute_window import WINDOW_S, MinuteWindow

GAPS = st.lists(
    st.tuples(st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 200)), st.integers(1, 50)), min_size=1, max_size=60
)


def counted(came: list[tuple[float, int]], now: float) -> int:
    """What the documentation says: whole seconds, the current one and the sixty before it."""
    return sum(amount for time, amount in came if int(now) - int(time) <= WINDOW_S)


def test_an_amount_leaves_after_60_to_61_seconds():
    """The window may be stricter than a minute, never looser."""
    window = MinuteWindow()
    window.add(7, 1000.9)
    assert window.used(1060.99) == 7
    assert window.used(1061.0) == 0


def test_giving_back_forgets_exactly_that_much():
    """An undone request must not use up the minute of others."""
    window = MinuteWindow()
    first = window.add(3, 5.0)
    window.add(4, 5.5)
    window.give_back(2, first)
    assert window.used(6.0) == 5


def test_giving_back_what_has_left_changes_nothing():
    """A request refused a minute later must not take another's place away."""
    window = MinuteWindow()
    old = window.add(1, 5.0)
    window.add(1, 5.0 + 61 * 3)
    window.give_back(1, old)
    assert window.used(5.0 + 61 * 3) == 1


def test_a_clock_that_steps_back_lets_nothing_more_in():
    """A monotonic clock should not do this, but if it does the count must stay."""
    window = MinuteWindow()
    window.add(1, 100.0)
    window.add(1, 40.0)
    assert window.used(40.0) == 2
    assert window.used(100.0) == 2
    assert window.try_add(1, 2, 40.0) is None
    assert window.used(161.0) == 0


def test_an_amount_above_the_limit_is_never_let_in():
    """No wait helps, so none is advised."""
    window = MinuteWindow()
    assert window.try_add(11, 10, 1.0) is None
    assert window.at_most_in_s(10 - 11, 1.0) is None


def test_an_unused_window_is_below_and_empty_now():
    """Advice must not tell anybody to wait for nothing."""
    window = MinuteWindow()
    assert window.at_most_in_s(0, 50.0) == 0.0
    assert window.empty_in_s(50.0) == 0.0


def test_restoring_twice_counts_once_and_leaves_in_time():
    """A ledger may tell the same again; what is older than the window is nobody's any more."""
    window = MinuteWindow()
    for _ in range(2):
        window.restore(5, 970, 1000.0)
        window.restore(9, 900, 1000.0)
    assert window.used(1000.0) == 5
    assert window.used(1031.0) == 0


@settings(deadline=None, max_examples=150)
@given(GAPS, st.floats(0, 130))
def test_the_count_is_that_of_a_plain_list(gaps, later):
    """The ring of buckets must never drift from what came."""
    window, came, now = MinuteWindow(), [], 1000.0
    for gap, amount in gaps:
        now += gap
        window.add(amount, now)
        came.append((now, amount))
        assert window.used(now) == counted(came, now)
    assert window.used(now + later) == counted(came, now + later)


@settings(deadline=None, max_examples=150)
@given(GAPS, st.integers(0, 100), st.floats(0, 100))
def test_the_advice_on_waiting_is_exact(gaps, most, later):
    """A client that waits as told is let in, and one that waits less is not."""
    window, now = MinuteWindow(), 1000.0
    for gap, amount in gaps:
        now += gap
        window.add(amount, now)
    now += later
    wait_s = window.at_most_in_s(most, now)
    assert window.used(now + wait_s + 1e-6) <= most
    if wait_s:
        assert window.used(now + wait_s - 1e-6) > most
    empty_s = window.empty_in_s(now)
    assert window.used(now + empty_s + 1e-6) == 0
    if empty_s:
        assert window.used(now + empty_s - 1e-6) > 0
        assert 0 < empty_s <= 61


@pytest.mark.parametrize("step", [1, 59, 60, 61, 62, 10_000])
def test_advancing_by_any_step_keeps_what_is_inside(step):
    """The edges of the ring are where a bucket could be counted twice or lost."""
    window = MinuteWindow()
    window.add(1, 1000.0)
    window.add(1, 1000.0 + step)
    assert window.used(1000.0 + step) == (2 if step <= WINDOW_S else 1)


class WindowMachine(RuleBasedStateMachine):
    """Adding, trying and giving back in any order, with a clock that also steps back, against a list."""

    @initialize()
    def begin(self):
        self.window = MinuteWindow()
        self.now, self.latest = 1000.0, 0.0
        self.came: list[tuple[int, int]] = []  # (second, amount)

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 130), st.floats(-30, 0)))
    def wait(self, seconds):
        self.now = max(0.0, self.now + seconds)

    @rule(amount=st.integers(1, 50), most=st.integers(0, 100))
    def try_add(self, amount, most):
        before = self.window.used(self.now)
        second = self.window.try_add(amount, most, self.now)
        self.latest = max(self.latest, self.now)
        assert (second is None) == (before + amount > most)
        if second is not None:
            assert second == int(self.latest)
            self.came.append((second, amount))

    @precondition(lambda self: self.came)
    @rule(data=st.data())
    def give_back(self, data):
        place = data.draw(st.integers(0, len(self.came) - 1))
        second, amount = self.came[place]
        part = data.draw(st.integers(0, amount))
        self.window.give_back(part, second)
        self.came[place] = (second, amount - part)

    @invariant()
    def agrees(self):
        if hasattr(self, "came"):
            at = max(int(self.now), int(self.latest))
            expected = sum(amount for second, amount in self.came if at - second <= WINDOW_S)
            assert self.window.used(self.now) == expected
            assert min(self.window.buckets) >= 0


WindowMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)
TestWindowMachine = WindowMachine.TestCase
