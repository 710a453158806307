"""Lanes inside the batch: who is in the next step, who sits, who gives up a seat."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.admission import SchedulerSettings
from engines.core.holders import SlotHolders
from engines.core.latency_guard import LatencySettings
from engines.core.load import LaneCounts
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.driven import Driven, words

LONG = SamplingParams(temperature=0, max_tokens=100)
DEAR_ROWS = StepCost(base_s=0.010, per_row_s=0.005, per_prefill_token_s=0.001)  # no bulk row is within the objective
CHEAP_ROWS = StepCost(base_s=0.010, per_row_s=0.0005, per_prefill_token_s=0.00004)  # one or two are
PATIENT = LatencySettings(bulk_patience_s=1e9)
LANES = {"interactive": Lane.INTERACTIVE, "standard": Lane.STANDARD, "bulk": Lane.BULK}


def add(engine, name, num_prompt=3, max_tokens=100, **fields):
    """A request of the lane that begins its name, with a prompt of its own."""
    salt = fields.pop("salt", name)
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    refusal = engine.add(name, words(*range(num_prompt)), sampling, LANES[name.split("-")[0]], salt=salt, **fields)
    assert refusal is None
    return name


def step(engine):
    """Tokens by request of the next step, in its order."""
    slots = {}
    plan = engine.step(lambda: slots.update({s.slot: s.id for s in engine.scheduler._step.sequences}))
    return [(slots[row.slot], len(row.tokens)) for row in plan.rows]


def test_the_order_of_a_step_is_that_of_the_lanes(driven):
    """Decodes, then prompts: interactive ones seated, then newcomers, then standard ones; bulk last."""
    engine = driven(max_step_tokens=40, num_slots=16, max_seqs=8)
    for lane in ("bulk", "standard", "interactive"):
        add(engine, f"{lane}-decodes")
    engine.step()
    for lane in ("bulk", "standard", "interactive"):
        add(engine, f"{lane}-prompt", 50)
    assert step(engine)[-1] == ("interactive-prompt", 38)
    add(engine, "interactive-newcomer", 8)
    assert step(engine) == [
        ("interactive-decodes", 1),
        ("standard-decodes", 1),
        ("interactive-prompt", 12),
        ("interactive-newcomer", 8),
        ("standard-prompt", 18),
    ]
    assert step(engine) == [
        ("interactive-decodes", 1),
        ("interactive-prompt", 1),
        ("interactive-newcomer", 1),
        ("standard-decodes", 1),
        ("standard-prompt", 32),
        ("bulk-decodes", 1),
        ("bulk-prompt", 3),
    ]


def test_a_newcomer_does_not_wait_for_a_seated_bulk_prompt(driven):
    """The bulk prompt keeps its KV and waits."""
    engine = driven(max_step_tokens=16, kv_tokens=1024)
    add(engine, "bulk", 100)
    assert step(engine) == [("bulk", 16)]
    add(engine, "interactive", 30)
    assert step(engine) == [("interactive", 16)]
    assert step(engine) == [("interactive", 14), ("bulk", 2)]


def test_bulk_is_left_out_and_resumes_with_its_kv(driven):
    """It costs its rows, not its seat: nothing is preempted, nothing computed twice."""
    engine = driven(cost=DEAR_ROWS, latency=PATIENT, num_slots=8)
    for number in range(3):
        add(engine, f"bulk-{number}", 8, 20)
    engine.step()
    add(engine, "interactive", 3, 10)
    for _ in range(10):
        assert {name for name, _ in step(engine)} == {"interactive"}
    engine.run()
    statistics = engine.scheduler.statistics()
    assert statistics.bulk_rows_left_out == 30
    assert (statistics.preemptions, statistics.bulk_lifts) == (0, 0)
    assert sum(plan.num_prefill_tokens for plan in engine.plans) == 3 * 8 + 3


def test_bulk_that_fits_only_in_part_takes_turns(driven):
    """The longest left out goes first, so no stream stands still while another runs."""
    engine = driven(cost=CHEAP_ROWS, latency=PATIENT, num_slots=8)
    for number in range(3):
        add(engine, f"bulk-{number}", 3, 40)
    while len(step(engine)) < 3:
        pass
    add(engine, "interactive", 3, 30)
    engine.step()
    bulk = [[name for name, _ in step(engine) if name != "interactive"] for _ in range(6)]
    assert bulk == [["bulk-0"], ["bulk-1"], ["bulk-2"]] * 2


def test_standard_counts_as_urgent(driven):
    """Its decodes are in every step, and bulk gives way to it."""
    engine = driven(cost=DEAR_ROWS, latency=PATIENT)
    add(engine, "bulk")
    engine.step()
    add(engine, "standard")
    assert [step(engine)[0][0] for _ in range(5)] == ["standard"] * 5


def test_bulk_left_out_for_too_long_gets_the_smallest_share(driven):
    """One row of one step each time its patience is over, and the record says so."""
    engine = driven(cost=DEAR_ROWS, latency=LatencySettings(bulk_patience_s=0.1), num_slots=8)
    add(engine, "bulk-0")
    add(engine, "bulk-1")
    engine.step()
    add(engine, "interactive", 3, 60)
    steps = [step(engine) for _ in range(40)]
    with_bulk = [names for names in steps if len(names) > 1]
    assert 3 <= len(with_bulk) <= 7
    assert {len(names) for names in with_bulk} == {2}
    assert {name for names in with_bulk for name, _ in names} == {"interactive", "bulk-0", "bulk-1"}
    assert engine.scheduler.statistics().bulk_lifts == len(with_bulk)
    assert [outlook.is_lifted for outlook in engine.outlooks].count(True) == len(with_bulk)


def test_a_lift_may_seat_a_waiting_bulk_request(driven):
    """Bulk that never got a seat waits no longer than bulk that has one."""
    engine = driven(cost=DEAR_ROWS, latency=LatencySettings(bulk_patience_s=0.05, min_chunk_tokens=4))
    add(engine, "interactive", 3, 60)
    engine.step()
    add(engine, "bulk", 30)
    steps = [step(engine) for _ in range(8)]
    assert [("interactive", 1), ("bulk", 4)] in steps


def test_newcomers_find_a_seat_though_bulk_holds_all(driven):
    """A seat of bulk is no seat less for others; only the places in a step are `max_seqs`."""
    engine = driven(num_slots=8, max_seqs=4)
    for number in range(4):
        add(engine, f"bulk-{number}")
    engine.step()
    for number in range(5):
        add(engine, f"interactive-{number}", max_tokens=6)
    names = [name for name, _ in step(engine)]
    assert names == [f"interactive-{number}" for number in range(4)]
    assert engine.scheduler.statistics().running_by_lane == LaneCounts(4, 0, 4)
    assert engine.scheduler.statistics().waiting_by_lane == LaneCounts(1, 0, 0)
    assert engine.scheduler.statistics().preemptions == 0
    engine.run()
    assert engine.scheduler.statistics().preemptions == 0


def test_bulk_takes_no_seat_that_others_hold(driven):
    """Seats beyond `max_seqs` are only for urgent ones."""
    engine = driven(num_slots=8, max_seqs=2)
    add(engine, "interactive-0")
    add(engine, "interactive-1")
    add(engine, "bulk")
    engine.step()
    assert engine.scheduler.statistics().waiting_by_lane == LaneCounts(0, 0, 1)


@pytest.mark.parametrize("short_of", ["slots", "blocks"])
def test_only_where_memory_is_short_does_a_newcomer_cost_bulk_a_seat(driven, short_of):
    """The one with the least output gives way, and goes on later as if nothing had been."""
    scarce = {"num_slots": 2, "max_seqs": 2} if short_of == "slots" else {"kv_tokens": 64}
    engine = driven(**scarce, watermark_ratio=0.0)
    add(engine, "bulk-0", 12, 16)
    for _ in range(4):
        engine.step()
    add(engine, "bulk-1", 12, 16)
    engine.step()
    add(engine, "interactive", 30, 4)
    assert step(engine)[0] == ("interactive", 30)
    assert engine.scheduler.statistics().preempted == 1
    assert engine.scheduler.statistics().running_by_lane == LaneCounts(1, 0, 1)
    engine.run()
    assert engine.finished == ["interactive", "bulk-0", "bulk-1"]
    ample = driven(kv_tokens=4096, num_slots=8)
    for name, prompt, tokens in (("bulk-0", 12, 16), ("bulk-1", 12, 16), ("interactive", 30, 4)):
        add(ample, name, prompt, tokens)
    ample.run()
    assert all(engine.output(name) == ample.output(name) for name in engine.finished)


def test_nobody_loses_a_seat_for_a_newcomer_that_would_not_fit_anyway(driven):
    """Half a sacrifice is a waste."""
    engine = driven(kv_tokens=64, watermark_ratio=0.0)
    add(engine, "interactive-old", 30, 4)
    add(engine, "bulk", 12, 8)
    engine.step()
    add(engine, "interactive-new", 50, 4)
    engine.step()
    assert engine.scheduler.statistics().preemptions == 0
    assert engine.scheduler.statistics().waiting_by_lane == LaneCounts(1, 0, 0)
    engine.run()
    assert engine.finished[0] == "interactive-old"


def test_a_bulk_sequence_is_preempted_three_times_at_most(driven):
    """Then it is pinned, and newcomers wait until it is over."""
    engine = driven(kv_tokens=64, watermark_ratio=0.0)
    add(engine, "bulk", 20, 40)
    for number in range(5):
        engine.step()
        engine.step()
        add(engine, f"interactive-{number}", 50, 2)
        engine.step()
    assert engine.scheduler.statistics().preemptions == 3
    engine.run()
    assert engine.scheduler.statistics().preemptions == 3
    assert engine.finished[:3] == ["interactive-0", "interactive-1", "interactive-2"]
    assert engine.finished.index("bulk") == 3


def test_bulk_runs_while_urgent_ones_wait_for_the_memory_it_holds(driven):
    """Pinned bulk that were left out as well would never give it back."""
    engine = driven(kv_tokens=64, watermark_ratio=0.0, cost=DEAR_ROWS, latency=PATIENT)
    add(engine, "bulk", 20, 30)
    for number in range(4):
        engine.step()
        add(engine, f"interactive-{number}", 50, 2)
        engine.run() if number == 3 else [engine.step() for _ in range(4)]
    assert all(engine.last(name).finish_reason is FinishReason.LENGTH for name in engine.deltas)


def test_slots_of_holders_bound_the_residents():
    """The smaller of what the rules want and what the device has."""
    settings = SchedulerSettings(max_seqs=4, max_step_tokens=8, context_tokens=64, kv_tokens=64)
    assert Scheduler(settings).num_slots == 8
    assert Scheduler(settings, SlotHolders(6)).num_slots == 6
    assert Scheduler(settings, SlotHolders(20)).num_slots == 8
    with pytest.raises(ValueError, match="max_resident 3 is less than max_seqs 4"):
        SchedulerSettings(max_seqs=4, max_step_tokens=8, context_tokens=64, kv_tokens=64, max_resident=3)


ARRIVALS = st.lists(
    st.tuples(st.sampled_from(sorted(LANES)), st.integers(1, 40), st.integers(1, 12), st.integers(0, 4)), max_size=14
)
COSTS = st.sampled_from([DEAR_ROWS, CHEAP_ROWS, StepCost(0.01, 0.02, 0.0001), StepCost()])


@given(
    arrivals=ARRIVALS,
    cost=COSTS,
    style=st.sampled_from(["slots", "pages"]),
    sizes=st.tuples(st.sampled_from([64, 128, 1024]), st.sampled_from([1, 2, 4])),
    itl_p95_s=st.sampled_from([None, 0.025]),
)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_when_arrivals_stop_and_no_step_breaks_the_objective(
    arrivals, cost, style, sizes, itl_p95_s
):
    """Without any lift: leaving out bulk starves nobody once the others are served, and is never forgotten."""
    kv_tokens, max_seqs = sizes
    engine = Driven(
        style,
        cost=cost,
        kv_tokens=kv_tokens,
        max_seqs=max_seqs,
        num_slots=max_seqs + 2,
        latency=LatencySettings(itl_p95_s=itl_p95_s, bulk_patience_s=1e9, min_chunk_tokens=4),
    )
    for number, (lane, num_prompt, max_tokens, num_steps) in enumerate(arrivals):
        add(engine, f"{lane}-{number}", num_prompt, max_tokens, salt=str(number % 2))
        for _ in range(num_steps):
            engine.step()
    engine.run()
    assert all(engine.last(name).finish_reason is FinishReason.LENGTH for name in engine.deltas)
    for plan, outlook in zip(engine.plans, engine.outlooks, strict=True):
        assert len(plan.rows) <= max_seqs
        assert not outlook.is_lifted
        if Lane.BULK in outlook.lanes and outlook.objective_s is not None:
            assert outlook.modelled_s <= outlook.objective_s


@given(
    bulk=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=5),
    num_urgent=st.integers(1, 3),
    room=st.sampled_from([(StepCost(), 1e9), (CHEAP_ROWS, 1e9), (CHEAP_ROWS, 0.05), (DEAR_ROWS, 0.05)]),
)
@settings(max_examples=40, deadline=None)
def test_under_endless_interactive_load_bulk_ends_where_there_is_room(bulk, num_urgent, room):
    """Room: the objective leaves some, or patience ends; a place in the step and KV are free."""
    cost, patience_s = room
    latency = LatencySettings(bulk_patience_s=patience_s, min_chunk_tokens=4)
    engine = Driven(cost=cost, kv_tokens=2048, max_seqs=4, latency=latency)
    for number, (num_prompt, max_tokens) in enumerate(bulk):
        add(engine, f"bulk-{number}", num_prompt, max_tokens, salt="")
    names = set(engine.deltas)
    for number in range(5000):
        if engine.scheduler.statistics().running_by_lane.interactive < num_urgent:
            add(engine, f"interactive-{number}", 1 + number % 9, 10)
        engine.step()
        if names <= set(engine.finished):
            break
    assert names <= set(engine.finished), "bulk was starved"
