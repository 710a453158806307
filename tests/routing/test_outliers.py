"""Who stands out among the replicas of a model, and for how long it is left out then."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.outliers import MIN_ATTEMPTS, Because, Ejections, OutlierSettings, outlier
from routing.tally import Tally


def tally(attempts, faults=0, late=0):
    """A tally with these counts."""
    made = Tally()
    made.move_on(1.0)
    made.fine, made.faults, made.late = attempts - faults, faults, late
    return made


def test_who_fails_far_more_often_than_the_others_stands_out():
    """Although no breaker opens for every third attempt."""
    assert outlier([tally(60), tally(60, faults=20), tally(60)]) == (1, Because.FAILURES)


def test_who_answers_late_far_more_often_stands_out():
    """Its attempts end well, and nobody waits for them gladly."""
    assert outlier([tally(60), tally(60), tally(60, late=50)]) == (2, Because.LATE)


@pytest.mark.parametrize(
    "tallies",
    [
        [tally(60, faults=20)] * 4,
        [tally(60, late=60)] * 4,
        [tally(MIN_ATTEMPTS - 1, faults=MIN_ATTEMPTS - 1), tally(60), tally(60)],
        [tally(60, faults=60), tally(5), tally(5)],
        [tally(60, faults=6), tally(60), tally(60)],
        [tally(60, late=20), tally(60), tally(60)],
        [],
        [tally(60, faults=60)],
    ],
    ids=["all fail", "all late", "too few of it", "too few others", "few faults", "few late", "none", "alone"],
)
def test_nobody_stands_out_by_what_all_share_or_what_may_be_chance(tallies):
    """Trouble of all alike ejects nobody; neither do few attempts or small differences."""
    assert outlier(tallies) is None


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200)), max_size=8))
def test_whoever_stands_out_is_worse_than_the_others_by_a_margin(counts):
    """Whatever the numbers are; an attempt that was outrun is late without having ended well."""
    tallies = [tally(fine + faults, faults, late) for fine, faults, late in counts]
    found = outlier(tallies)
    if found is None:
        return
    index, because = found
    others = [one for number, one in enumerate(tallies) if number != index]
    if because is Because.FAILURES:
        mine = tallies[index].num_faults / tallies[index].num_attempts
        theirs = sum(one.num_faults for one in others) / sum(one.num_attempts for one in others)
    else:
        mine = tallies[index].num_late / max(tallies[index].fine, tallies[index].late)
        theirs = sum(one.num_late for one in others) / sum(max(one.fine, one.late) for one in others)
    assert mine - theirs >= 0.2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.0, 200.0), min_size=1, max_size=30))
def test_ejections_grow_are_bounded_and_forgiven(waits):
    """Each in a row lasts twice as long, never above the bound; long enough without one starts anew."""
    rules, ejections, now = OutlierSettings(first_s=10.0, max_s=100.0), Ejections(), 0.0
    for wait in waits:
        before, came_back = ejections.times, ejections.until
        now = max(now, came_back) + wait
        ejections.eject(Because.LATE, rules, now)
        assert 9.99 <= ejections.until - now <= 100.01
        assert 1 <= ejections.times <= before + 1
        if wait < 60.0:
            assert ejections.times == before + 1
        assert ejections.until - now == pytest.approx(min(100.0, 10.0 * 2 ** (ejections.times - 1)))


@pytest.mark.parametrize(
    ("share", "counts"),
    [(0.25, {1: 0, 2: 0, 3: 1, 4: 1, 7: 1, 8: 2, 64: 16}), (0.01, {2: 0, 3: 1, 64: 1}), (0.0, {3: 0, 64: 0})],
)
def test_no_more_than_a_share_may_be_out(share, counts):
    """One of three at least, unless it is switched off; none of a pair."""
    rules = OutlierSettings(max_share=share)
    assert {number: rules.most_out(number) for number in counts} == counts
