"""The slow loop: moves on enough evidence only, by small steps up and large ones down, and not on noise."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.itl_correction import CorrectionSettings, ItlCorrection, SeenGaps


def seen(now: float, gap: float, num: int = 20, bulk: float = 2.0, since: float | None = None) -> SeenGaps:
    """One request with equal gaps, in units of an objective of 1 s."""
    return SeenGaps(now - 0.5 if since is None else since, now, (gap,) * num, 1.0, bulk)


def feed(
    one: ItlCorrection, gap: float, requests: int, *, at: float = 0.0, bulk: float = 2.0, fixed: bool = True
) -> float:
    """Requests of 20 gaps each second; the time of the last."""
    for _ in range(requests):
        at += 1.0
        one.observe(seen(at, gap, bulk=bulk), 1.0, 1.0 if fixed else 1.15, is_fixed=fixed)
    return at


def test_fewer_than_200_gaps_move_nothing():
    """A p95 of few samples says nothing."""
    one = ItlCorrection(CorrectionSettings())
    feed(one, 5.0, 9)
    assert (one.room, one.num_moves) == (0.5, 0)
    feed(one, 5.0, 1, at=9.0)
    assert one.room == pytest.approx(0.35)


def test_one_long_answer_is_not_enough():
    """200 gaps of one request are one observation of the rows beside it."""
    one = ItlCorrection(CorrectionSettings())
    one.observe(seen(1.0, 5.0, num=1000), 1.0, 1.0, is_fixed=True)
    assert one.num_moves == 0


def test_stays_within_its_bounds_and_recovers():
    """Narrowed to the least by long gaps, it comes back when they are short again, and no further than the most."""
    one = ItlCorrection(CorrectionSettings())
    at = feed(one, 3.0, 400)
    assert one.room == one.settings.least
    at = feed(one, 0.5, 100, at=at)
    assert one.room > 0.5
    feed(one, 0.5, 1000, at=at)
    assert one.room == one.settings.most


def test_only_the_tail_counts():
    """4% of long gaps are within a p95, 8% are not."""
    for share, moves_down in ((0.04, False), (0.08, True)):
        one, rng = ItlCorrection(CorrectionSettings()), random.Random(3)
        for number in range(200):
            sample = tuple(4.0 if rng.random() < share else 0.8 for _ in range(50))
            one.observe(SeenGaps(number - 0.5, float(number), sample, 1.0, 2.0), 1.0, 1.0, is_fixed=True)
        assert (one.room < 0.5) == moves_down


def test_near_the_objective_noise_moves_nothing():
    """Between the two thresholds it stands still: no hunting."""
    one, rng = ItlCorrection(CorrectionSettings()), random.Random(5)
    for number in range(500):
        sample = tuple(rng.uniform(0.9, 1.0) for _ in range(20))
        one.observe(SeenGaps(number - 0.5, float(number), sample, 1.0, 2.0), 1.0, 1.0, is_fixed=True)
    assert one.num_moves == 0


def test_what_began_under_another_setting_says_nothing_of_this_one():
    """Else one bad minute would narrow the room again and again."""
    one = ItlCorrection(CorrectionSettings())
    at = feed(one, 3.0, 10)
    for _ in range(100):
        one.observe(seen(at + 1.0, 3.0, since=at - 0.1), 1.0, 1.0, is_fixed=True)
    assert one.num_moves == 1


def test_gaps_that_are_long_without_bulk_are_not_its_fault():
    """Without a fixed objective bulk answers only for what it adds to what people see without it."""
    one = ItlCorrection(CorrectionSettings())
    at = feed(one, 2.0, 20, bulk=0.0, fixed=False)
    assert one.p95_alone == pytest.approx(2.0, rel=0.03)
    feed(one, 2.2, 20, at=at, fixed=False)
    assert one.room == pytest.approx(0.5 + 0.0, abs=0.2)
    assert one.room >= 0.5
    fixed = ItlCorrection(CorrectionSettings())
    at = feed(fixed, 2.0, 20, bulk=0.0)
    feed(fixed, 2.2, 10, at=at)
    assert fixed.room < 0.5


def test_a_narrowing_is_forgotten_where_nobody_can_see_any_more():
    """With bulk kept away no gap beside it is ever seen: then the room comes back by itself, to where it began."""
    one = ItlCorrection(CorrectionSettings())
    at = feed(one, 3.0, 60)
    narrowed = one.room
    for _ in range(20):
        at += one.settings.window_s
        one.expire(at)
    assert narrowed < one.settings.first == one.room


def test_old_gaps_do_not_add_up_over_hours():
    """Nine requests a day are no evidence of now."""
    one = ItlCorrection(CorrectionSettings())
    at = 0.0
    for _ in range(10):
        at = feed(one, 3.0, 5, at=at) + one.settings.window_s
    assert one.num_moves == 0


def test_answers_without_gaps_or_objective_teach_nothing():
    """A model that knows nothing gives no objective."""
    one = ItlCorrection(CorrectionSettings())
    one.observe(seen(1.0, 1.0, num=0), 1.0, 1.0, is_fixed=True)
    one.observe(seen(1.0, 1.0), 0.0, 1.0, is_fixed=True)
    assert repr(one) == "<ItlCorrection room=0.50 moves=0 gaps=0>"


@given(st.lists(st.tuples(st.floats(0, 400), st.floats(0, 100), st.integers(0, 300), st.floats(0, 3)), max_size=80))
@settings(max_examples=80, deadline=None)
def test_room_is_always_within_its_bounds(requests):
    """Whatever gaps are reported in whatever time."""
    one, now = ItlCorrection(CorrectionSettings(min_requests=1)), 0.0
    for pause, gap, num, bulk in requests:
        now += pause
        one.observe(seen(now, gap, num=num, bulk=bulk), 1.0, 1.15, is_fixed=False)
        assert one.settings.least <= one.room <= one.settings.most


@pytest.mark.parametrize(
    "changes",
    [
        {"least": 0.0},
        {"first": 3.0},
        {"narrow": 1.0},
        {"widen": 0.0},
        {"min_gaps": 199},
        {"window_s": 0.0},
        {"short_until": 2.0},
    ],
)
def test_senseless_settings_are_refused(changes):
    """Among them a p95 of fewer than 200 gaps."""
    with pytest.raises(ValueError, match=r"room|p95|short"):
        CorrectionSettings(**changes)
