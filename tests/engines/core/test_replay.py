"""Steps can be written down and made again."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.plan import Discard, EngineFault, Fork, Restore, Row, Save, StepPlan, Truncate
from engines.core.replay import decode_plan, encode_plan, replay
from engines.core.sequence import SamplingParams
from engines.fake.runner import FakeRunner
from policies.lane import Lane
from tests.engines.core.driven import words


def twin(driven):
    """A device like that of a driven engine, with nothing in it."""
    style = driven.runner
    return FakeRunner(
        num_slots=style.num_slots,
        kv_tokens=style.kv_tokens,
        max_step_tokens=style.max_step_tokens,
        pages_by=None if driven.holders is not None else driven.settings.block_size,
        eos_every=0,
        host_bytes_per_token=1,
    )


def busy(driven):
    """An engine that has forked, truncated, preempted, saved, restored and discarded."""
    engine = driven(kv_tokens=80, host_tokens=120, watermark_ratio=0.0)
    sampling = SamplingParams(temperature=0, max_tokens=20)
    for index in range(8):
        lane = Lane.BULK if index % 3 == 0 else Lane.INTERACTIVE
        engine.add(str(index), words(*range(30 * (index % 3), 30 * (index % 3) + 30), index), sampling, lane)
        engine.step()
    engine.run()
    engine.idle()
    return engine


def test_made_again_the_steps_leave_the_same_kv(driven):
    """A day's log is enough to have the device of that day."""
    engine = busy(driven)
    kinds = {type(operation) for plan in engine.plans for operation in plan.memory}
    assert {Save, Restore, Discard} <= kinds
    again = twin(engine)
    logits = replay(again, [decode_plan(encode_plan(plan)) for plan in engine.plans])
    assert again.kv_state() == engine.runner.kv_state()
    assert [len(rows) for rows in logits] == [sum(row.num_samples for row in plan.rows) for plan in engine.plans]


def test_one_step_left_out_leaves_other_kv(driven):
    """The comparison can fail."""
    engine = busy(driven)
    again = twin(engine)
    try:
        replay(again, engine.plans[1:])
    except EngineFault:
        return
    assert again.kv_state() != engine.runner.kv_state()


def test_a_clear_is_part_of_the_record(driven):
    """After a fault everything starts from nothing, in the replay as well."""
    engine = driven()
    engine.add("a", words(1, 2, 3))
    engine.step()
    first = list(engine.plans)
    engine.fail(engine.scheduler.schedule(engine.now))
    engine.add("b", words(4, 5, 6))
    engine.run()
    again = twin(engine)
    replay(again, [*first, None, *engine.plans[1:]])
    assert again.kv_state() == engine.runner.kv_state()


def test_logits_are_those_of_then():
    """And each step keeps its own, though a runner may use its array again."""
    plans = [StepPlan(n, (), (Row(0, n, (300 + n,), num_samples=1),)) for n in range(3)]
    runner = FakeRunner(num_slots=1, kv_tokens=8)
    logits = replay(runner, plans)
    fresh = FakeRunner(num_slots=1, kv_tokens=8)
    assert all((one == fresh.execute(plan)).all() for one, plan in zip(logits, plans, strict=True))
    assert not np.array_equal(logits[0], logits[1])


SMALL = st.integers(0, 1000)
TUPLES = st.lists(SMALL, max_size=4).map(tuple)
OPERATIONS = st.one_of(
    st.builds(Fork, SMALL, SMALL, SMALL),
    st.builds(Truncate, SMALL, SMALL),
    st.builds(Save, SMALL, SMALL, SMALL, TUPLES),
    st.builds(Restore, SMALL, SMALL, SMALL, TUPLES),
    st.builds(Discard, SMALL),
)
PLANS = st.builds(
    StepPlan,
    SMALL,
    st.lists(OPERATIONS, max_size=4).map(tuple),
    st.lists(st.builds(Row, SMALL, SMALL, TUPLES, SMALL, TUPLES), max_size=3).map(tuple),
)


@given(PLANS)
@settings(deadline=None, max_examples=100)
def test_a_written_plan_is_read_as_it_was(plan):
    """One line, whatever is in it."""
    line = encode_plan(plan)
    assert b"\n" not in line
    assert decode_plan(line) == plan


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff",
        json.dumps({"number": 1, "memory": [{"operation": "Nothing"}], "rows": []}).encode(),
        json.dumps({"number": 1, "memory": [{"operation": "Fork", "source": 1}], "rows": []}).encode(),
        json.dumps({"number": 1, "memory": [{}], "rows": []}).encode(),
        json.dumps({"number": 1, "memory": [], "rows": [{"slot": 1}]}).encode(),
        json.dumps({"number": 1, "memory": [], "rows": [5]}).encode(),
    ],
)
def test_what_is_no_plan_is_refused(line):
    """A file cut off in mid-line is a ValueError and nothing else."""
    with pytest.raises(ValueError, match=r"plan|char|decode"):
        decode_plan(line)
