"""Drain rates learned from dispatches, and refusals that follow: in order, in time, with a Retry-After that is true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lane import Lane
from policies.saturation import LEAST_SEEN, DrainRate, Load, Saturation, SaturationSettings, Shed, TooLate

FULL = 1.0
IDLE = Load(0.5, 0.2, dict.fromkeys(Lane, 0.0))
LANE = Lane.STANDARD


def steady(rate: DrainRate, per_s: float, num=60, start=0.0) -> float:
    """Dispatches at a steady rate from a lane that never empties; the moment of the last."""
    rate.arrived(start)
    for number in range(1, num + 1):
        rate.dispatched(5.0, 3, start + number / per_s)
    return start + num / per_s


def busy(per_s=10.0, **more) -> tuple[Saturation, float]:
    saturation = Saturation(SaturationSettings(**more))
    return saturation, steady(saturation.rate(LANE), per_s)


def test_before_anything_was_seen_the_cold_rate_is_believed():
    """An estimate must exist from the first request on."""
    assert DrainRate(30.0, 2.0).per_s(100.0) == 2.0


@pytest.mark.parametrize("per_s", [0.05, 1.0, 20.0, 1000.0])
def test_a_steady_drain_is_learned(per_s):
    """Whatever its speed, and although the first belief was another."""
    rate = DrainRate(30.0, 1.0)
    now = steady(rate, per_s)
    assert rate.per_s(now) == pytest.approx(per_s, rel=0.01)


def test_several_dispatches_in_one_moment_are_counted():
    """A batch that ends frees many seats at once."""
    rate = DrainRate(30.0, 1.0)
    rate.arrived(0.0)
    for second in range(1, 20):
        for _ in range(5):
            rate.dispatched(2.0, 9, float(second))
    assert rate.per_s(19.0) == pytest.approx(5.0, rel=0.05)


def test_a_changed_drain_is_followed():
    """Half the replicas are gone: a memory later the rate has halved."""
    rate = DrainRate(10.0, 1.0)
    now = steady(rate, 20.0, num=600)
    now = steady(rate, 10.0, num=400, start=now)
    assert rate.per_s(now) == pytest.approx(10.0, rel=0.05)


def test_a_lane_that_stands_still_drains_ever_more_slowly():
    """Nothing dispatched for a minute is news, though no event says so."""
    rate = DrainRate(30.0, 1.0)
    now = steady(rate, 10.0)
    assert rate.per_s(now + 0.1) == pytest.approx(rate.per_s(now), rel=0.01)
    assert rate.per_s(now + 60) < 1.1
    assert rate.per_s(now + 600) < rate.per_s(now + 60)


def test_an_empty_lane_does_not_slow_down():
    """Nobody waited, so nothing was slow; who found a seat at once says nothing either."""
    rate = DrainRate(30.0, 1.0)
    now = steady(rate, 10.0)
    rate.dispatched(5.0, 0, now + 0.1)
    learned = rate.per_s(now + 0.1)
    rate.arrived(now + 500)
    rate.dispatched(0.0001, 0, now + 500)
    assert rate.per_s(now + 1000) == learned
    rate.arrived(now + 1000)
    rate.emptied()
    assert rate.per_s(now + 2000) == learned


def test_the_wait_grows_with_the_place():
    """What a waiting stream is told."""
    saturation, now = busy(10.0)
    assert saturation.wait_s(LANE, 20, now) == pytest.approx(2.0, rel=0.1)
    assert saturation.wait_s(LANE, 1, now) < saturation.wait_s(LANE, 2, now)


def test_retry_after_is_when_a_place_comes_free():
    """Refused clients are given places one after the other, and no later than when all have drained."""
    saturation, now = busy(0.5)
    waits = [saturation.retry_after_s(LANE, 4, now) for _ in range(6)]
    assert waits[:4] == pytest.approx([2.0, 4.0, 6.0, 8.0], rel=0.1)
    assert waits[4:] == pytest.approx([8.0, 8.0], rel=0.1)
    assert saturation.retry_after_s(LANE, 4, now + 1000) >= 1.0


def test_retry_after_has_a_floor_and_a_ceiling():
    """Whole seconds at least, and nothing beyond what can be known."""
    fast, now = busy(100.0)
    assert fast.retry_after_s(LANE, 1, now) == 1.0
    slow, now = busy(0.001)
    assert slow.retry_after_s(LANE, 1, now) == 600.0


def refusal(saturation, load, now, *, lane=LANE, in_lane=1, deadline=float("inf")):
    return saturation.refusal(lane, load, in_lane=in_lane, deadline=deadline, now=now)


def test_a_deadline_that_cannot_be_met_is_refused_at_once():
    """With 10 a second, the 50th waits 5 s: 4 s are too few, 6 s are enough."""
    saturation, now = busy(10.0)
    assert isinstance(refusal(saturation, IDLE, now, in_lane=50, deadline=now + 4), TooLate)
    assert refusal(saturation, IDLE, now, in_lane=50, deadline=now + 6) is None
    late = refusal(saturation, IDLE, now, in_lane=50, deadline=now + 4)
    assert (late.lane, late.wait_s) == (LANE, pytest.approx(5.0, rel=0.1))


def test_a_deadline_in_the_past_is_refused_whatever_is_known():
    """Even by a queue that has seen nothing."""
    assert isinstance(refusal(Saturation(), IDLE, 10.0, deadline=10.0), TooLate)


def test_an_estimate_from_too_little_refuses_nobody():
    """A guess must not turn clients away."""
    saturation = Saturation(SaturationSettings(cold_per_s=0.01))
    steady(saturation.rate(LANE), 0.01, num=LEAST_SEEN - 1)
    assert refusal(saturation, IDLE, 700.0, in_lane=50, deadline=701.0) is None


def test_who_finds_a_free_seat_does_not_wait():
    """A slow drain in the past is no reason while seats are free and nobody waits."""
    saturation, now = busy(0.1)
    assert refusal(saturation, IDLE, now, in_lane=1, deadline=now + 1) is None
    full = Load(FULL, 0.2, IDLE.oldest_wait_s)
    assert isinstance(refusal(saturation, full, now, in_lane=1, deadline=now + 1), TooLate)


def waits(**seconds) -> dict[Lane, float]:
    return {lane: seconds.get(lane.value, 0.0) for lane in Lane}


@pytest.mark.parametrize(
    ("oldest_s", "shed"),
    [(10.0, []), (40.0, ["bulk"]), (50.0, ["standard", "bulk"]), (60.0, ["interactive", "standard", "bulk"])],
)
def test_lanes_are_shed_in_order_as_interactive_waits_longer(oldest_s, shed):
    """Bulk first; interactive only when it could not be served in time anyway."""
    load = Load(FULL, 0.2, waits(interactive=oldest_s))
    refused = [lane.value for lane in Lane if isinstance(refusal(Saturation(), load, 0.0, lane=lane), Shed)]
    assert refused == shed


def test_a_lower_lanes_backlog_sheds_nobody_above():
    """A bulk queue of hours is normal; interactive must not notice."""
    load = Load(FULL, 0.2, waits(bulk=1e6))
    assert refusal(Saturation(), load, 0.0, lane=Lane.INTERACTIVE) is None
    assert isinstance(refusal(Saturation(), load, 0.0, lane=Lane.BULK), Shed)


def test_waiting_while_seats_are_free_is_no_saturation():
    """Who waits then waits for a cap of its own."""
    assert refusal(Saturation(), Load(0.9, 0.2, waits(bulk=1e6)), 0.0, lane=Lane.BULK) is None


@pytest.mark.parametrize(("kv", "shed"), [(0.9, []), (0.96, ["bulk"]), (0.985, ["standard", "bulk"])])
def test_kv_pressure_sheds_lower_lanes_first(kv, shed):
    """Before engines preempt what they run."""
    load = Load(0.5, kv, waits())
    assert [lane.value for lane in Lane if refusal(Saturation(), load, 0.0, lane=lane)] == shed


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.fixed_dictionaries({lane: st.floats(0, 1e4) for lane in Lane}))
def test_no_lane_is_shed_before_a_lower_one(seats, kv, oldest):
    """The order holds for every load."""
    saturation, load = Saturation(), Load(seats, kv, oldest)
    refused = [refusal(saturation, load, 0.0, lane=lane) is not None for lane in Lane]
    assert refused == sorted(refused)


@pytest.mark.parametrize(
    "bad",
    [
        {"shed_at": {Lane.INTERACTIVE: 0.5, Lane.STANDARD: 0.8, Lane.BULK: 0.5}},
        {"kv_pressed_from": 1.0},
        {"memory_s": 0.0},
        {"cold_per_s": 0.0},
    ],
)
def test_senseless_settings_are_refused(bad):
    """At start-up, not at the first refusal."""
    with pytest.raises(ValueError, match=r"shed|pressure"):
        SaturationSettings(**bad)


def test_statistics_and_repr_tell_the_rates():
    """For the gauge, and for a person."""
    saturation, now = busy(10.0)
    assert saturation.statistics(now)["standard"] == pytest.approx(10.0, rel=0.1)
    assert repr(saturation) == "<Saturation dispatches seen: interactive=0 standard=60 bulk=0>"
