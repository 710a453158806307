"""Bulk seats beside people: by the model, within bounds, and all of them when nobody is there."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.step_cost import StepCost
from policies.bulk_controller import BulkController, BulkSettings, ReplicaLoad, most_rows
from policies.itl_correction import SeenGaps

COST = StepCost(base_s=0.010, per_row_s=0.0002, per_prefill_token_s=0.00005)
CPU = StepCost(base_s=0.008, per_row_s=0.004, per_prefill_token_s=0.0023)  # no row has room beside others


def controller(room: float = 1.0, **changes) -> BulkController:
    """A controller whose correction neither adds nor takes."""
    made = BulkController(BulkSettings(**changes))
    made.correction.room = room
    return made


def come_and_go(one: BulkController, at: float) -> None:
    """One interactive request was there until then."""
    one.plan(ReplicaLoad(seats=8, interactive=1), CPU, at)
    one.plan(ReplicaLoad(seats=8), CPU, at)


costs = st.builds(StepCost, st.floats(0, 0.1), st.floats(0, 0.02), st.floats(0, 0.001))
loads = st.builds(
    ReplicaLoad,
    seats=st.integers(0, 64), interactive=st.integers(0, 40), standard=st.integers(0, 40), bulk=st.integers(0, 40),
    urgent_reading=st.integers(0, 3), bulk_unread_tokens=st.integers(0, 4000), bulk_reading_s=st.floats(0, 1),
    leaves_bulk_out=st.booleans(), has_priority=st.booleans(),
)  # fmt: skip


def test_bulk_beside_people_is_the_most_that_keeps_the_step_within_the_objective():
    """The inner loop, by hand: 1.15 x 10.4 ms leaves 1.56 ms, which is 7 rows of 0.2 ms."""
    plan = controller().plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0)
    assert plan.bulk == 7
    assert COST.seconds(2 + 7, 0) <= 1.15 * COST.seconds(2, 0) < COST.seconds(2 + 8, 0)


def test_an_objective_of_its_own_replaces_the_factor():
    """`itl_p95_s` is what an operator promises, whatever the step takes without bulk."""
    plan = controller(itl_p95_s=0.012).plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0)
    assert plan.bulk == 8
    assert controller(itl_p95_s=0.0104).plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0).bulk == 0


def test_standard_is_bounded_only_by_an_objective_of_its_own():
    """Standard is urgent work, too; it may hold all seats unless a fixed gap would be broken, and never less than one."""
    assert controller().plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0).standard == 32
    assert controller(itl_p95_s=0.012).plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0).standard == 8
    assert controller(itl_p95_s=0.001).plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0).standard == 1


def test_an_engine_that_leaves_bulk_out_gets_all_seats():
    """A resident bulk sequence costs nobody anything in our own workers."""
    plan = controller().plan(ReplicaLoad(seats=8, interactive=7, urgent_reading=2, leaves_bulk_out=True), COST, 0.0)
    assert (plan.standard, plan.bulk, plan.bulk_now(3)) == (8, 8, 4)


def test_seats_open_one_after_the_other_while_people_are_away():
    """People come back, and meet what was begun in a pause: few in a short one, all seats in a long one."""
    one = controller()
    assert one.plan(ReplicaLoad(seats=8), CPU, 0.0).bulk == 8
    come_and_go(one, 1.0)
    times = (1.49, 1.51, 3.01, 4.01, 8.01, 9.01)
    assert [one.plan(ReplicaLoad(seats=8), CPU, at).bulk for at in times] == [0, 1, 2, 3, 7, 8]


def test_a_pause_opens_no_seat_while_a_prompt_of_people_waits_to_be_read():
    """It is no pause: somebody arrived."""
    one = controller()
    assert one.plan(ReplicaLoad(seats=8, urgent_reading=1), CPU, 9.0).bulk == 0


def test_a_pause_takes_no_seat_that_was_open_beside_people():
    """Where rows are cheap more of them stand beside people than a short pause would open."""
    one = controller()
    come_and_go(one, 0.0)
    beside = one.plan(ReplicaLoad(seats=32), COST, 0.1).bulk
    assert [one.plan(ReplicaLoad(seats=32), COST, at).bulk for at in (0.6, 1.6, 2.6)] == [beside, beside, 10]
    assert beside == 7


def test_even_one_seat_opens_in_a_pause():
    """A replica with few seats has its first one open at once and not in its part of the time."""
    one = controller()
    come_and_go(one, 0.0)
    assert [one.plan(ReplicaLoad(seats=1), CPU, at).bulk for at in (0.49, 0.51, 9.0)] == [0, 1, 1]


def test_seats_open_more_slowly_where_people_were_hurt():
    """The correction acts on pauses as well: their bulk is what an arrival meets. Its first room is no hurt."""
    narrow, first = controller(room=0.1), BulkController(BulkSettings())
    for one, slower in ((narrow, 5.0), (first, 1.0)):
        come_and_go(one, 0.0)
        times = (0.49 * slower, 0.51 * slower, 7.99 * slower, 8.01 * slower)
        assert [one.plan(ReplicaLoad(seats=8), CPU, at).bulk for at in times] == [0, 1, 7, 8]


def test_a_narrow_room_takes_from_the_slack_and_not_from_the_step():
    """Half the room is half the rows."""
    assert controller(room=0.5).plan(ReplicaLoad(seats=32, interactive=2), COST, 0.0).bulk == 3


def test_no_bulk_prompt_starts_while_people_wait_to_be_read_unless_the_engine_has_priorities():
    """Without priorities the engine would read it first."""
    load = ReplicaLoad(seats=32, bulk=3, urgent_reading=1, interactive=1)
    assert controller().plan(load, COST, 0.0).bulk_now(3) == 3
    ordered = ReplicaLoad(seats=32, bulk=3, urgent_reading=1, interactive=1, has_priority=True)
    assert controller().plan(ordered, COST, 0.0).bulk_now(3) == 4


def test_bulk_prompts_are_given_one_after_the_other():
    """A full batch of prompts at once would stand before the next arrival."""
    one = controller()
    assert not one.plan(
        ReplicaLoad(seats=32, bulk=1, bulk_unread_tokens=900, bulk_reading_s=0.06), COST, 0.0
    ).may_start_bulk
    assert one.plan(ReplicaLoad(seats=32, bulk=1, bulk_unread_tokens=20, bulk_reading_s=0.01), COST, 0.0).may_start_bulk


def test_starts_beside_people_spoil_at_most_their_share_of_gaps():
    """Each start costs as many gaps as it has chunks; the share is earned by the gaps that pass."""
    one, load = controller(spoilt_share=0.02), ReplicaLoad(seats=32, interactive=1, bulk=1)
    num_spoilt = 0
    for number in range(4000):
        if one.plan(load, COST, number * 0.0102).may_start_bulk:
            one.started(load, 800, COST)
            num_spoilt += 2
    assert 0.015 * 4000 < num_spoilt <= 0.02 * 4000 + 2


def test_a_short_prompt_spoils_nothing():
    """A cached prompt of some tokens fits into the slack of a step."""
    one, load = controller(), ReplicaLoad(seats=32, interactive=1, bulk=1)
    for number in range(10):
        assert one.plan(load, COST, number * 0.001).may_start_bulk
        one.started(load, 10, COST)


def test_prompts_that_an_arrival_meets_count_as_spoiling():
    """They will be read beside its first tokens."""
    one = controller()
    one.plan(ReplicaLoad(seats=32, bulk=2, bulk_unread_tokens=2000), COST, 0.0)
    assert not one.plan(
        ReplicaLoad(seats=32, interactive=1, bulk=2, bulk_unread_tokens=2000, has_priority=True), COST, 0.01
    ).may_start_bulk


def test_cold_it_lets_little_in_beside_people_and_widens_when_gaps_are_short():
    """Nothing is known at first; the room grows step by step to what the model allows and beyond."""
    one, load, now = BulkController(BulkSettings()), ReplicaLoad(seats=32, interactive=2), 0.0
    first = one.plan(load, COST, now).bulk
    assert first <= 4
    for _ in range(100):
        now += 10.0
        one.observe(SeenGaps(now - 5, now, (0.0108,) * 40, 2.0, 2.0), COST)
    assert one.plan(load, COST, now).bulk > 7


@given(load=loads, cost=costs, itl=st.one_of(st.none(), st.floats(0.001, 0.5)), now=st.floats(0, 1e6))
@settings(max_examples=150, deadline=None)
def test_never_more_than_the_seats_and_never_less_than_nothing(load, cost, itl, now):
    """Whatever is learned and held."""
    one = controller(itl_p95_s=itl)
    for at in (now, now + 0.5, now + 100.0):
        plan = one.plan(load, cost, at)
        assert 0 <= plan.bulk <= load.seats
        assert 0 <= plan.standard <= load.seats
        assert plan.bulk_now(load.bulk) <= min(plan.bulk, load.bulk + 1)


@given(cost=costs, interactive=st.integers(1, 30), itl=st.floats(0.001, 0.5), more=st.floats(1.0, 3.0))
@settings(max_examples=150, deadline=None)
def test_monotone_in_the_objective_the_cost_and_people(cost, interactive, itl, more):
    """A longer objective never takes seats away, dearer rows and more people never add some."""

    def bulk(cost=cost, interactive=interactive, itl=itl):
        return controller(itl_p95_s=itl).plan(ReplicaLoad(seats=64, interactive=interactive), cost, 0.0).bulk

    assert bulk(itl=itl * more) >= bulk()
    assert bulk(interactive=interactive + 1) <= bulk()
    dearer = StepCost(cost.base_s, cost.per_row_s * more, cost.per_prefill_token_s)
    assert bulk(cost=dearer) <= bulk()


@given(cost=costs, beside=st.integers(0, 20), limit=st.floats(0, 0.5), most=st.integers(0, 64))
@settings(max_examples=100, deadline=None)
def test_most_rows_is_the_largest_that_fits(cost, beside, limit, most):
    """The bisection against the definition."""
    fitting = [num for num in range(most + 1) if cost.seconds(beside + num, 0) <= limit]
    assert most_rows(cost, beside, limit, most=most) == max(fitting, default=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"itl_p95_s": 0.0},
        {"itl_p95_s": inf},
        {"growth": 0.9},
        {"spoilt_share": 1.0},
        {"chunk_tokens": 0},
        {"hold_off_s": -1.0},
        {"hold_off_s": 9.0},
    ],
)
def test_senseless_settings_are_refused(changes):
    """At the start and not at night."""
    with pytest.raises(ValueError, match=r"least|more than"):
        BulkSettings(**changes)


def test_repr_says_where_it_stands():
    """What a person sees in a debugger."""
    assert repr(controller()) == "<BulkController <ItlCorrection room=1.00 moves=0 gaps=0> spoilable=1.00>"
