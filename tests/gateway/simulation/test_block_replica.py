"""The replica that simulations of routing use does what the engines' scheduler does, to the last step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.fake import SchedulerSettings
from engines.step_cost import StepCost
from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.block_sequence import BlockSequence
from gateway.simulation.prompts import Passage
from gateway.simulation.replica import EngineSettings, SimulatedReplica
from gateway.simulation.text_blocks import chained
from gateway.simulation.workload import SimulatedRequest
from policies.lane import Lane

BLOCK = 4


def engine(*, kv_blocks=32, max_seqs=4, max_step_tokens=24):
    """A small worker, whose steps have room for some prompt tokens beside decodes."""
    scheduler = SchedulerSettings(
        max_seqs=max_seqs, max_step_tokens=max_step_tokens, context_tokens=4096, kv_tokens=kv_blocks * BLOCK,
        block_size=BLOCK,
    )  # fmt: skip
    return EngineSettings(scheduler, StepCost(0.010, 0.001, 0.002))


def asked(number, at, contents, tail, output):
    """A request whose prompt is whole blocks of these contents and `tail` tokens of its own."""
    passages = (*(Passage(content, BLOCK) for content in contents), Passage(10_000 + number, tail))
    return SimulatedRequest(f"{number:04d}", "trace", Lane.INTERACTIVE, at, passages, Passage(20_000 + number, output))


def names_of(request):
    """Names for its full blocks, equal where prefixes are."""
    name, names = 0, []
    for passage in request.prompt[:-1]:
        name = chained(name, b"%d" % passage.content)
        names.append(name)
    return names


def on_scheduler(requests, settings, speed):
    """{number: (first token at, over at, cached tokens)}, and the replica: the engines' own scheduler."""
    replica, found, now, ends_at = SimulatedReplica("r", settings, speed=speed), {}, 0.0, None
    waiting = list(requests)
    while waiting or ends_at is not None:
        if ends_at is None or (waiting and waiting[0].arrival_s < ends_at):
            request = waiting.pop(0)
            now = request.arrival_s
            replica.submit(request, "trace", now)
        else:
            now, ends_at = ends_at, None
            for delta in replica.end_step(now):
                first, _, cached = found.get(int(delta.request_id), (now, None, delta.cached_tokens))
                found[int(delta.request_id)] = (first, now if delta.finish_reason else None, cached)
        if ends_at is None:
            seconds = replica.begin_step(now)
            ends_at = None if seconds is None else now + seconds
    return found, replica


def on_blocks(requests, settings, speed):
    """The same from the replica of blocks."""
    replica, found, now = BlockReplica("r", settings, speed=speed), {}, 0.0
    waiting = list(requests)
    while waiting or replica.stride is not None:
        stride = replica.stride
        if stride is None or (waiting and waiting[0].arrival_s < stride.ends_at):
            request = waiting.pop(0)
            now, number = request.arrival_s, int(request.id)
            replica.submit(
                BlockSequence(number, number, names_of(request), request.prompt_tokens, request.answer.num_tokens), now
            )
        else:
            now = stride.ends_at
            firsts, over = replica.end(now)
            for sequence in firsts:
                found[sequence.ticket] = (now, None, sequence.cached_tokens)
            for sequence in over:
                first, _, cached = found[sequence.ticket]
                found[sequence.ticket] = (first, now, cached)
        if replica.stride is None:
            replica.begin(now)
    return found, replica


arrivals = st.lists(
    st.tuples(
        st.floats(0.0, 0.3),  # after the one before
        st.lists(st.integers(0, 2), max_size=10),
        st.integers(1, BLOCK - 1),
        st.integers(1, 30),
    ),
    min_size=1,
    max_size=14,
)


def both(drawn, settings, speed=1.0):
    """What both make of the same requests."""
    requests, at = [], 0.0
    for number, (gap, contents, tail, output) in enumerate(drawn):
        at += gap
        requests.append(asked(number, at, contents, tail, output))
    return on_scheduler(requests, settings, speed), on_blocks(requests, settings, speed)


def assert_same(drawn, settings, speed=1.0):
    """Times, hits, steps, evictions and preemptions."""
    (expected, scheduler), (found, blocks) = both(drawn, settings, speed)
    assert found.keys() == expected.keys()
    for number, (first, over, cached) in expected.items():
        assert found[number] == (pytest.approx(first), pytest.approx(over), cached), number
    counts = scheduler.scheduler.statistics()
    assert (blocks.num_steps, blocks.cache.evictions, blocks.preemptions, blocks.hit_tokens) == (
        scheduler.num_steps, counts.evictions, counts.preemptions, counts.cached_tokens,
    )  # fmt: skip
    assert blocks.num_open == 0
    blocks.cache.check_integrity(0)
    return blocks


@settings(max_examples=150, deadline=None)
@given(arrivals, st.sampled_from([20, 24, 32, 64]), st.sampled_from([2, 4]))
def test_it_does_what_the_scheduler_does(drawn, kv_blocks, max_seqs):
    """Batch, budget, hits, waiting for a prefix, eviction and preemption: a result here is a result there."""
    assert_same(drawn, engine(kv_blocks=kv_blocks, max_seqs=max_seqs))


@settings(max_examples=40, deadline=None)
@given(arrivals, st.floats(0.7, 1.3))
def test_a_slower_replica_is_slower_by_its_factor(drawn, speed):
    """Its step rule knows its own speed, as a worker learns it; with one budget for prompts the steps are the same."""
    settings = engine(max_step_tokens=8)
    assert_same(drawn, settings, speed=speed)


def test_who_does_not_fit_gives_up_its_seat_and_goes_on_later():
    """Preemption is reached: two answers grow into blocks that are not there."""
    drawn = [(0.0, [0, 1, 2], 3, 40), (0.0, [2, 1], 3, 40)]
    blocks = assert_same(drawn, engine(kv_blocks=16))
    assert blocks.preemptions > 0


def test_gaps_are_those_between_the_tokens():
    """Of each answer all but the first token come after a gap, and a preempted one waits longer for its next."""
    drawn = [(0.0, [0, 1, 2], 3, 40), (0.0, [2, 1], 3, 40)]
    (_, _), (found, blocks) = both(drawn, engine(kv_blocks=16))
    assert sum(blocks.gaps.counts) == 2 * 39
    seconds = sum(one * num for one, num in zip(blocks.gaps.seconds, blocks.gaps.counts, strict=True))
    assert seconds == pytest.approx(sum(over - first for first, over, _ in found.values()))


def test_a_request_that_never_fits_is_refused_with_its_size():
    """A trace and a KV size that do not go together must be told, not simulated for ever."""
    replica = BlockReplica("r", engine(kv_blocks=4))
    with pytest.raises(ValueError, match="15 prompt tokens and 2 of output are more than the 16"):
        replica.submit(BlockSequence(0, 0, [1, 2, 3], 15, 2), 0.0)
    assert replica.num_open == 0


def test_whoever_comes_in_a_long_stride_is_seated_after_the_step_being_computed():
    """Steps are taken together only as long as nobody new is there."""
    replica = BlockReplica("r", engine())
    replica.submit(BlockSequence("one", 0, [], 1, 30), 0.0)
    replica.begin(0.0)
    replica.end(replica.stride.ends_at)
    stride = replica.begin(1.0)
    assert stride.num_steps > 1
    assert replica.submit(BlockSequence("two", 1, [], 1, 1), 1.0 + 1.5 * stride.step_s)
    assert stride.num_steps == 2
