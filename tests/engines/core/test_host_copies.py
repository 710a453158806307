"""When prefixes go to host memory and come back, seen from a whole scheduler."""

import pytest

from engines.core.host_tier import HostSettings
from engines.core.latency_guard import LatencySettings
from engines.core.plan import Discard, Fork, Restore, Save, Truncate
from engines.core.sequence import SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.driven import Driven, words

ONE = SamplingParams(temperature=0, max_tokens=1)
FAST = StepCost(base_s=0.01, per_row_s=0.001, per_prefill_token_s=0.0001)


def asked(engine, id_, start, length=40, lane=Lane.INTERACTIVE, **fields):
    """A request with a prompt of its own, served."""
    assert engine.add(id_, words(*range(start, start + length)), ONE, lane, **fields) is None
    engine.run()
    return engine.last(id_)


def operations(engine, kind):
    return [operation for plan in engine.plans for operation in plan.memory if isinstance(operation, kind)]


@pytest.fixture
def cramped(driven):
    """Makes engines whose device holds one prompt of 40 tokens and a bit."""
    return lambda **options: driven(**({"kv_tokens": 64, "host_tokens": 400, "context_tokens": 64} | options))


def test_a_prefix_that_was_evicted_comes_back_without_being_computed(cramped):
    """The point of it all: a conversation that had to go is hit when it goes on."""
    engine, ample = cramped(), cramped(kv_tokens=512, host_tokens=0)
    for each in (engine, ample):
        asked(each, "first", 0)
        asked(each, "other", 60)
        each.add("again", words(*range(40), 150), SamplingParams(temperature=0, max_tokens=8))
        each.run()
    assert engine.last("again").cached_tokens == ample.last("again").cached_tokens == 40
    assert engine.output("again") == ample.output("again")
    assert [save.num_tokens for save in operations(engine, Save)][:1] == [40]
    assert [restore.num_tokens for restore in operations(engine, Restore)] == [40]
    statistics = engine.scheduler.statistics().host
    assert (statistics.restored_tokens, statistics.max_tokens) == (40, 400)
    assert engine.runner.num_host_tokens == statistics.used_tokens


def test_without_host_memory_nothing_is_copied(cramped):
    """Off by default."""
    engine = cramped(host_tokens=0)
    for index in range(3):
        asked(engine, str(index), 50 * index)
    engine.idle()
    assert not engine.scheduler.has_upkeep
    assert not operations(engine, Save)


def test_a_longer_hit_on_the_device_is_preferred(cramped):
    """A fork costs nothing."""
    engine = cramped(kv_tokens=256)
    asked(engine, "first", 0)
    asked(engine, "second", 0)
    assert not operations(engine, Restore)
    assert engine.last("second").cached_tokens == 36


def test_others_hit_what_was_just_restored(cramped):
    """Two newcomers with the saved prefix: one restores it, the other shares it in the same step."""
    engine = cramped(kv_tokens=128, context_tokens=128)
    asked(engine, "first", 0)
    asked(engine, "flood", 60, 120)
    engine.add("one", words(*range(40), 150), ONE)
    engine.add("two", words(*range(40), 151), ONE)
    plan = engine.step()
    assert len(plan.rows) == 2
    assert [row.start for row in plan.rows] == [40, 40]
    assert len([operation for operation in plan.memory if isinstance(operation, Restore)]) == 1
    engine.run()


def test_a_tenant_never_gets_anothers_copy(cramped):
    """Names contain the salt, in host memory as everywhere."""
    engine = cramped()
    asked(engine, "first", 0, salt="a")
    asked(engine, "other", 60, salt="a")
    assert asked(engine, "thief", 0, salt="b").cached_tokens == 0
    assert asked(engine, "owner", 0, salt="a").cached_tokens == 36


def test_short_prefixes_and_small_gains_are_not_copied(cramped):
    """A copy must be worth it."""
    engine = cramped(host=HostSettings(max_tokens=400, min_tokens=48))
    asked(engine, "first", 0)
    asked(engine, "other", 60)
    assert not operations(engine, Save)


def test_a_tail_of_a_long_saved_prefix_is_not_worth_a_copy_of_it_all(driven):
    """Below an eighth of the whole."""
    engine = driven(kv_tokens=128, context_tokens=128, host_tokens=1000, num_slots=2, max_seqs=2)
    engine.add("long", words(*range(80)), ONE)
    engine.run()
    asked(engine, "flood", 90, 110)
    engine.add("next", words(*range(88)), ONE)
    engine.run()
    saved = engine.scheduler.statistics().host.saved_tokens
    asked(engine, "again", 90, 110)
    assert engine.scheduler.statistics().host.saved_tokens - saved <= 112, "the first one anew, for eight tokens"


def test_where_urgent_sequences_decode_no_step_is_longer_for_a_save(cramped):
    """What is lost then is computed again by who asks for it; nobody's next token waits for a copy."""
    engine = cramped(kv_tokens=96, cost=FAST, context_tokens=96)
    asked(engine, "first", 0)
    engine.add("decoding", words(*range(60, 80)), SamplingParams(temperature=0, max_tokens=70))
    engine.run()
    assert engine.scheduler.statistics().evictions > 0
    assert not operations(engine, Save)


def test_the_objective_leaves_time_for_saves_if_there_is_one(cramped):
    """An operator who allows 100 ms between tokens allows a copy of a millisecond."""
    latency = LatencySettings(itl_p95_s=0.1)
    engine = cramped(kv_tokens=96, cost=FAST, context_tokens=96, latency=latency)
    asked(engine, "first", 0)
    engine.add("decoding", words(*range(60, 80)), SamplingParams(temperature=0, max_tokens=70))
    engine.run()
    assert [save.num_tokens for save in operations(engine, Save)][:1] == [40]
    assert all(outlook.modelled_s <= 0.1 for outlook in engine.outlooks)


def test_a_copy_that_takes_longer_than_it_may_is_not_made(cramped):
    """A little time for saves is not time for any save."""
    host = HostSettings(max_tokens=400, min_tokens=1, save_s_per_token=0.001)
    engine = cramped(kv_tokens=96, cost=FAST, context_tokens=96, latency=LatencySettings(itl_p95_s=0.1), host=host)
    asked(engine, "first", 0)
    engine.add("decoding", words(*range(60, 80)), SamplingParams(temperature=0, max_tokens=70))
    engine.run()
    assert engine.scheduler.statistics().evictions > 0
    assert max((save.num_tokens for save in operations(engine, Save)), default=0) <= 25


def test_saves_take_of_the_time_of_prompts(cramped):
    """A step with a save has fewer prompt tokens and is no longer than it may be."""
    slow_copies = HostSettings(max_tokens=400, min_tokens=1, save_s_per_token=0.0002)
    cost = StepCost(base_s=0.01, per_row_s=0.001, per_prefill_token_s=0.002)
    engine = cramped(kv_tokens=128, context_tokens=128, cost=cost, host=slow_copies, max_step_tokens=128)
    asked(engine, "first", 0)
    engine.add("decoding", words(*range(60, 70)), SamplingParams(temperature=0, max_tokens=40))
    engine.step()
    engine.add("prompt", words(*range(100, 180)), ONE)
    plan, outlook = engine.step(), engine.outlooks[-1]
    assert [operation.num_tokens for operation in plan.memory if isinstance(operation, Save)] == [40]
    tokens = max(len(row.tokens) for row in plan.rows)
    assert tokens == 32
    assert outlook.modelled_s == pytest.approx(cost.seconds(1, tokens) + 40 * 0.0002)
    engine.run()


def test_an_idle_engine_saves_ahead_what_would_go_next(cramped):
    """While nothing is open there is time; then eviction itself costs none."""
    engine = cramped(kv_tokens=128, context_tokens=128, cost=FAST)
    asked(engine, "first", 0)
    asked(engine, "second", 60, 80)
    assert not operations(engine, Save)
    assert engine.scheduler.has_upkeep
    engine.idle()
    saves = operations(engine, Save)
    assert sum(save.num_tokens for save in saves) >= 40
    assert not engine.scheduler.has_upkeep
    engine.idle()
    assert operations(engine, Save) == saves, "saved twice"


def test_an_idle_engine_with_room_saves_nothing(cramped):
    """Copies of what nobody is about to lose would be work for nothing."""
    engine = cramped(kv_tokens=512)
    asked(engine, "first", 0)
    engine.idle()
    assert not operations(engine, Save)


def test_bulk_alone_saves_ahead_within_its_steps(cramped):
    """A worker that is never idle must not lose all that people had."""
    engine = cramped(kv_tokens=128, context_tokens=128, cost=FAST, max_seqs=1)
    asked(engine, "people", 0, 60)
    engine.add("bulk", words(*range(80, 120)), SamplingParams(temperature=0, max_tokens=20), Lane.BULK)
    engine.run()
    asked(engine, "more", 130, 40, Lane.BULK)
    assert operations(engine, Save)
    for outlook in engine.outlooks:
        assert outlook.modelled_s <= 0.03 + 0.03 / 4 or outlook.objective_s is not None


def test_where_slots_are_few_the_one_that_gives_itself_up_is_saved():
    """Slots run out before blocks on devices that keep few sequences apart."""
    engine = Driven(num_slots=1, max_seqs=1, kv_tokens=512, host_tokens=400)
    asked(engine, "first", 0)
    asked(engine, "other", 60)
    assert operations(engine, Save) == [Save(0, 1, 40)]
    assert asked(engine, "again", 0).cached_tokens == 36
    assert operations(engine, Restore) == [Restore(1, 0, 36)]
    kinds = [type(operation) for operation in engine.plans[-1].memory]
    assert kinds == [Truncate, Save, Truncate, Restore], "a slot is cut to whole blocks, saved, emptied, filled"


def test_a_slot_whose_prefix_others_share_is_not_saved_for_it():
    """What is lost is its own tail only."""
    engine = Driven(num_slots=2, max_seqs=2, kv_tokens=512, host_tokens=400)
    engine.add("a", words(*range(40), 100), SamplingParams(temperature=0, max_tokens=30))
    engine.step()
    engine.add("b", words(*range(40), 101), ONE)
    engine.step()
    engine.add("c", words(*range(150, 160)), ONE)
    engine.step()
    assert operations(engine, Fork)
    assert not operations(engine, Save)
    engine.run()


def test_a_saved_path_too_long_for_the_free_cells_is_left_where_it_is():
    """It comes whole and is then cut: the device must have room for all of it."""
    engine = Driven(num_slots=4, max_seqs=2, kv_tokens=96, host_tokens=400, context_tokens=96)
    asked(engine, "long", 0, 80)
    asked(engine, "other", 90, 93)
    assert engine.scheduler.statistics().host.used_tokens >= 80
    assert asked(engine, "short", 0, 12).cached_tokens == 0
    assert not operations(engine, Restore)


def test_a_fault_forgets_what_was_saved_too(cramped):
    """Handles of before are not spoken of any more."""
    engine = cramped()
    asked(engine, "first", 0)
    asked(engine, "other", 60)
    engine.add("lost", words(1), ONE)
    engine.fail(engine.scheduler.schedule(engine.now))
    assert engine.scheduler.statistics().host.used_tokens == engine.runner.num_host_tokens == 0
    assert asked(engine, "again", 0).cached_tokens == 0
    asked(engine, "more", 60)
    assert operations(engine, Save)[-1].handle > operations(engine, Save)[0].handle


def test_memory_that_is_full_gives_up_the_oldest(cramped):
    """Each handle is discarded once, and what the device says it keeps is what is counted."""
    engine = cramped(host_tokens=84)
    for index in range(5):
        asked(engine, str(index), 40 * index)
    discarded = [discard.handle for discard in operations(engine, Discard)]
    assert discarded == sorted(set(discarded))
    assert discarded
    assert engine.runner.num_host_tokens == engine.scheduler.statistics().host.used_tokens <= 84
