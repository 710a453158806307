"""A worker in virtual time plans only what a device could do, and takes as long as the model says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.fake.runner import FakeRunner
from gateway.simulation.prompts import tokens_of
from gateway.simulation.replica import SimulatedReplica
from policies.lane import Lane
from tests.gateway.simulation.kit import COST, ask, engine


def test_steps_last_as_long_as_the_model_says():
    """One prompt of 64 tokens, then a row for each further token."""
    replica = SimulatedReplica("r1", engine(), speed=2.0)
    request = ask("a", answer=3)
    replica.submit(request, "alder", 0.0)
    times, tokens = [], []
    now = 0.0
    while (seconds := replica.begin_step(now)) is not None:
        times.append(seconds)
        now += seconds
        for delta in replica.end_step(now):
            tokens.extend(delta.token_ids)
    assert times == pytest.approx([2 * COST.seconds(0, 64), 2 * COST.seconds(1, 0), 2 * COST.seconds(1, 0)])
    assert tokens == list(tokens_of((request.answer,)))
    assert replica.busy_s == pytest.approx(sum(times))
    assert "open=0" in repr(replica)


def test_a_request_that_can_never_fit_is_an_error():
    """A workload for another worker must not look like a slow one."""
    with pytest.raises(ValueError, match="r1 refused a"):
        SimulatedReplica("r1", engine()).submit(ask("a", prompt=((1, 4000),)), "alder", 0.0)


def test_aborts_take_effect_between_steps():
    """Before a seat, in a step, after the end, and twice."""
    replica = SimulatedReplica("r1", engine(max_seqs=1))
    for name in ("a", "b"):
        replica.submit(ask(name), "alder", 0.0)
    replica.abort("b")
    replica.abort("b")
    seconds = replica.begin_step(0.0)
    replica.abort("a")
    assert replica.is_stepping
    (last,) = replica.end_step(seconds)
    assert last.finish_reason.value == "abort"
    replica.abort("a")
    assert replica.begin_step(1.0) is None
    assert not replica.scheduler.has_work


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200), st.integers(1, 12), st.sampled_from(Lane)), max_size=14),
    st.lists(st.integers(0, 13), max_size=3),
    st.booleans(),
)
def test_every_plan_can_be_executed(requests, aborted, by_slot):
    """The fake engine's cells raise on any mistake in sharing, truncation or position."""
    worker = engine(kv_tokens=512, num_slots=12 if by_slot else None)
    runner = FakeRunner(
        num_slots=12, kv_tokens=512, max_step_tokens=256, pages_by=None if by_slot else worker.scheduler.block_size
    )
    replica = SimulatedReplica("r1", worker)
    for number, (content, length, answer, lane) in enumerate(requests):
        replica.submit(
            ask(str(number), prompt=((content, length),), answer=answer, lane=lane), f"tenant-{content % 2}", 0.0
        )
    now, ended = 0.0, []
    for name in aborted:
        replica.abort(str(name))
    gone = {str(name) for name in aborted if name < len(requests)}
    while (seconds := replica.begin_step(now)) is not None:
        runner.execute(replica._plan)
        now += seconds
        ended += [delta.request_id for delta in replica.end_step(now) if delta.finish_reason is not None]
        replica.scheduler.check_integrity()
    assert sorted(ended) == sorted({str(number) for number in range(len(requests))} - gone)
