"""Which tokens go into which step."""

import pytest

from engines.core.admission import RefusalReason, SchedulerSettings
from engines.core.eviction import EvictionPolicy
from engines.core.holders import SlotHolders
from engines.core.plan import Fork
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, SamplingParams
from policies.lane import Lane
from tests.engines.core.driven import GREEDY, Driven, words

LONG = SamplingParams(temperature=0, max_tokens=100)


def lengths(plan):
    """Tokens a row, in order."""
    return [len(row.tokens) for row in plan.rows]


def prefilled(driven):
    """Prompt tokens that were really computed, over all steps."""
    return sum(plan.num_prefill_tokens for plan in driven.plans)


def test_long_prompts_are_chunked_beside_decoding(driven):
    """A long prompt takes what is left of the budget; those that decode get their token in every step."""
    engine = driven(max_step_tokens=10)
    engine.add("a", words(1, 2, 3), LONG)
    engine.step()
    engine.add("b", words(*range(50, 75)), LONG)
    assert [lengths(engine.step()) for _ in range(4)] == [[1, 9], [1, 9], [1, 7], [1, 1]]


def test_only_the_last_chunk_samples(driven):
    """Logits in mid-prompt are of no use and cost a vocabulary."""
    engine = driven(max_step_tokens=8)
    engine.add("a", words(*range(10)))
    assert [[row.samples for row in engine.step().rows] for _ in range(2)] == [[False], [True]]


def test_waiting_are_seated_by_lane_then_priority_then_arrival(driven):
    """Lanes are strict; the other two only order inside one."""
    engine = driven(max_seqs=1)
    for id_, lane, priority in (
        ("bulk", Lane.BULK, 0),
        ("late", Lane.INTERACTIVE, 0),
        ("later", Lane.INTERACTIVE, 0),
        ("unimportant", Lane.INTERACTIVE, 1),
        ("standard", Lane.STANDARD, 0),
    ):
        engine.now += 1
        engine.add(id_, words(len(id_)), SamplingParams(temperature=0, max_tokens=1), lane, priority=priority)
    order = []
    while engine.step() is not None:
        order += [id_ for id_, deltas in engine.deltas.items() if deltas and id_ not in order]
    assert order == ["late", "later", "unimportant", "standard", "bulk"]


def test_a_later_turn_hits_prompt_and_output_of_the_one_before(driven):
    """Generated tokens are cached like prompt tokens: the next turn computes its own words only."""
    engine = driven()
    prompt = words(*range(20))
    engine.add("one", prompt)
    engine.run()
    said = engine.output("one")
    engine.add("two", prompt + said + words(90, 91))
    engine.run()
    assert engine.last("one").cached_tokens == 0
    assert engine.last("two").cached_tokens == 24  # 27 tokens were computed: 20 and 8 without the last said; 4 a block


def test_a_full_hit_still_computes_the_last_block(driven):
    """The last token's logits are wanted, and partial blocks are not shared."""
    engine = driven()
    for id_ in ("one", "two"):
        engine.add(id_, words(*range(8)))
        engine.run()
    assert engine.last("two").cached_tokens == 4
    assert engine.output("two") == engine.output("one")


def test_salts_never_share(driven):
    """Another tenant's prefix is neither a hit nor a wait."""
    engine = driven()
    engine.add("one", words(*range(12)), salt="a")
    engine.add("two", words(*range(12)), salt="b")
    engine.run()
    engine.add("three", words(*range(12)), salt="a")
    engine.run()
    assert [engine.last(id_).cached_tokens for id_ in ("one", "two", "three")] == [0, 0, 8]


def test_identical_prompts_are_prefilled_once(driven):
    """Thirty-two of one prompt at once: one computes it, the others wait for its blocks."""
    engine = driven(num_slots=32, max_seqs=32, kv_tokens=4096, max_step_tokens=32)
    prompt = words(*range(100))
    for index in range(32):
        engine.add(str(index), [*prompt, *words(150 + index)])
    engine.run()
    assert prefilled(engine) == 101  # the others compute their last token only, as a row of one
    assert engine.scheduler.statistics().cached_tokens == 31 * 100


@pytest.mark.parametrize("ending", ["abort", "fail"])
def test_waiting_for_a_prefix_ends_with_its_owner(driven, ending):
    """If the one who computes it leaves, the next computes it: nobody waits in vain."""
    engine = driven(max_step_tokens=8)
    engine.add("owner", words(*range(30)))
    engine.add("waiter", words(*range(30)))
    engine.step()
    assert lengths(engine.step()) == [8]
    if ending == "abort":
        engine.abort("owner")
    else:
        engine.fail(engine.scheduler.schedule(engine.now))
    engine.run()
    assert engine.last("waiter").finish_reason is FinishReason.LENGTH
    assert engine.last("waiter").cached_tokens == (16 if ending == "abort" else 0)


@pytest.mark.parametrize(("lane", "num_rows"), [(Lane.BULK, 1), (Lane.INTERACTIVE, 2)])
def test_an_urgent_request_does_not_wait_for_a_bulk_prefill(driven, lane, num_rows):
    """Waiting for a lower lane could take long; computing twice does not."""
    engine = driven(max_step_tokens=8)
    engine.add("bulk", words(*range(30)), lane=Lane.BULK)
    engine.step()
    engine.add("other", words(*range(30)), lane=lane)
    plans = [engine.step() for _ in range(3)]  # the last chunk leaves two tokens of the budget
    assert len(plans[-1].rows) == num_rows


def test_preemption_takes_the_last_in_order_and_changes_no_output(driven):
    """When blocks run out, bulk goes before interactive and the young before the old."""
    engine = driven(kv_tokens=80, max_seqs=3, max_step_tokens=64, watermark_ratio=0.0)
    ample = driven(kv_tokens=4096)
    sampling = SamplingParams(temperature=0, max_tokens=30)
    for each in (engine, ample):
        each.add("bulk", words(*range(20)), sampling, Lane.BULK)
        each.add("old", words(*range(50, 70)), sampling)
        each.now += 1
        each.add("young", words(*range(100, 120)), sampling)
        each.run()
    assert engine.scheduler.statistics().preemptions > 0
    assert engine.finished == ["old", "young", "bulk"]
    for id_ in ("old", "young", "bulk"):
        assert engine.output(id_) == ample.output(id_)
        assert engine.last(id_).cached_tokens == 0, "own preemption looks like luck"


def test_nobody_is_seated_in_a_step_that_preempts(driven):
    """Admit, preempt, admit would thrash: what a preemption frees is for those still seated."""
    engine = driven(kv_tokens=32, max_seqs=3, watermark_ratio=0.0)
    engine.add("a", words(*range(12)), SamplingParams(temperature=0, max_tokens=9))
    engine.add("b", words(*range(20, 35)), SamplingParams(temperature=0, max_tokens=9), Lane.STANDARD)
    engine.step()
    engine.add("c", words(*range(40, 47)), SamplingParams(temperature=0, max_tokens=1))
    assert lengths(engine.step()) == [1, 1]
    assert engine.scheduler.statistics().preemptions == 0
    assert lengths(engine.step()) == [1]
    assert engine.scheduler.statistics().preemptions == 1
    assert lengths(engine.step()) == [1, 7]


def test_watermark_keeps_blocks_for_those_running(driven):
    """A newcomer that would take the last blocks waits, unless it is alone."""
    engine = driven(kv_tokens=40, watermark_ratio=0.5)
    engine.add("a", words(*range(8)), GREEDY)
    engine.step()
    engine.add("b", words(*range(50, 62)), GREEDY)
    assert len(engine.step().rows) == 1
    engine.run()
    assert engine.last("b").finish_reason is FinishReason.LENGTH


def test_a_large_request_is_not_overtaken(driven):
    """The first without room ends admission, else small ones would starve it."""
    engine = driven(kv_tokens=40)
    engine.add("a", words(*range(20)), GREEDY)
    engine.step()
    engine.add("large", words(*range(50, 75)), GREEDY)
    engine.add("small", words(99), GREEDY)
    assert len(engine.step().rows) == 1


def test_queue_is_bounded_and_ids_are_unique(driven):
    """What cannot be taken is refused by a value and leaves no trace."""
    engine = driven(max_waiting=2)
    assert engine.add("a", words(1)) is None
    assert engine.add("a", words(1)).reason is RefusalReason.DUPLICATE_ID
    assert engine.add("b", words(1)) is None
    assert engine.add("c", words(1)).reason is RefusalReason.QUEUE_FULL
    assert engine.add("d", []).reason is RefusalReason.EMPTY_PROMPT
    engine.step()
    assert engine.add("c", words(1)) is None, "seats are not the queue"
    engine.run()
    assert all(deltas[-1].finish_reason for deltas in engine.deltas.values())


def test_a_full_bulk_queue_refuses_nobody_else(driven):
    """Interactive and standard have a bound of their own, and it is one for both."""
    engine = driven(max_waiting=2)
    for id_ in "ab":
        assert engine.add(id_, words(1), lane=Lane.BULK) is None
    assert engine.add("c", words(1), lane=Lane.BULK).reason is RefusalReason.QUEUE_FULL
    assert engine.add("d", words(1)) is None
    assert engine.add("e", words(1), lane=Lane.STANDARD) is None
    assert engine.add("f", words(1)).reason is RefusalReason.QUEUE_FULL
    engine.abort("a")
    assert engine.add("c", words(1), lane=Lane.BULK) is None
    engine.run()


def test_end_and_stop_tokens_end_with_stop_and_are_named(driven):
    """The last token is counted, and told apart so that its text can be left out."""
    engine = driven()
    engine.add("a", words(1))
    engine.run()
    second = engine.output("a")[1]
    engine.add("b", words(1), SamplingParams(temperature=0, max_tokens=8, stop_token_ids=frozenset({second})))
    engine.run()
    last = engine.last("b")
    assert (last.finish_reason, last.stop_token, last.token_ids) == (FinishReason.STOP, second, (second,))
    assert last.num_output == 2


def test_ignored_end_token_is_just_a_token(driven):
    """Load tests need fixed lengths."""
    engine = driven(eos_every=1)
    engine.add("a", words(1))
    engine.add("b", words(2), SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    engine.run()
    assert (len(engine.output("a")), engine.last("a").finish_reason) == (1, FinishReason.STOP)
    assert (len(engine.output("b")), engine.last("b").finish_reason) == (8, FinishReason.LENGTH)


def test_min_tokens_bars_the_end(driven):
    """An end before it is not drawn at all."""
    engine = driven(eos_every=1)
    engine.add("a", words(1), SamplingParams(temperature=0, max_tokens=8, min_tokens=5))
    engine.run()
    assert len(engine.output("a")) == 6


def test_logprobs_come_with_each_token_if_asked(driven):
    """One a token, also for the last; none if not asked."""
    engine = driven()
    engine.add("a", words(1), SamplingParams(temperature=0, max_tokens=3, logprobs=2))
    engine.add("b", words(2))
    engine.run()
    for delta in engine.deltas["a"]:
        assert [entry.token for entry in delta.logprobs] == list(delta.token_ids)
        assert len(delta.logprobs[0].top) == 2
    assert all(delta.logprobs is None for delta in engine.deltas["b"])


def test_abort_of_unknown_or_finished_is_harmless(driven):
    """Clients leave at any time, also twice."""
    engine = driven()
    engine.add("a", words(1))
    engine.run()
    for id_ in ("a", "a", "never"):
        assert engine.scheduler.abort(id_) is None


def test_abort_in_flight_is_booked_with_the_step(driven):
    """The device may still be writing into its cells."""
    engine = driven()
    engine.add("a", words(1))
    engine.step(in_flight=lambda: engine.abort("a"))
    assert engine.last("a").finish_reason is FinishReason.ABORT
    assert engine.scheduler.schedule(0.0) is None


def test_failed_step_ends_its_own_and_restarts_the_others():
    """A fault costs the sequences of its step and the others' KV, nothing more."""
    engine = Driven(max_seqs=2, max_step_tokens=2)
    engine.add("a", words(*range(4)))
    engine.step()
    engine.add("b", words(50, 51), lane=Lane.BULK)
    plan = engine.scheduler.schedule(0.0)
    engine.fail(plan)
    assert engine.last("a").finish_reason is FinishReason.ERROR
    assert engine.last("a").error == "it broke"
    engine.run()
    assert engine.last("b").finish_reason is FinishReason.LENGTH


def test_fail_all_ends_everything_open_even_in_mid_step(driven):
    """After a bug of ours nothing may be relied on, but everybody gets an end."""
    engine = driven()
    engine.add("a", words(1))
    engine.scheduler.schedule(0.0)
    engine.add("b", words(2))
    engine.record(engine.scheduler.fail_all("bug"))
    assert {engine.last(id_).finish_reason for id_ in "ab"} == {FinishReason.ERROR}
    engine.runner.clear()
    engine.add("c", words(3))
    engine.run()
    assert engine.last("c").finish_reason is FinishReason.LENGTH


def test_steps_must_be_booked_before_the_next():
    """One plan at a time, and only the one that runs can be booked."""
    engine = Driven()
    engine.add("a", words(1))
    plan = engine.scheduler.schedule(0.0)
    with pytest.raises(AssertionError, match="another runs"):
        engine.scheduler.schedule(0.0)
    engine.fail(plan)
    with pytest.raises(AssertionError, match="no step is running"):
        engine.scheduler.complete(plan, [], 0.0)


def test_paged_plans_have_tables_and_slot_plans_have_forks():
    """Both kinds of engine are served by one scheduler."""
    plans = {}
    for style in ("slots", "pages"):
        engine = Driven(style)
        engine.add("a", words(*range(10)), LONG)
        engine.step()
        engine.add("b", words(*range(10)))
        plans[style] = engine.step()
    assert plans["slots"].memory == (Fork(0, 1, 8),)
    assert plans["pages"].memory == ()
    first, second = plans["pages"].rows
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]


def test_the_eviction_policy_is_that_of_slots_too():
    """One setting for blocks and for the slots that hold them."""
    engine = Driven(num_slots=6, max_seqs=1, eviction=EvictionPolicy.SLRU)
    one = SamplingParams(temperature=0, max_tokens=1)
    for number in (0, 0, 1, 2, 3, 4, 5, 6, 7):
        engine.add("r", words(*range(20 * number, 20 * number + 8)), one)
        engine.run()
    engine.add("r", words(*range(8)), one)
    engine.run()
    assert engine.last("r").cached_tokens == 4


def test_holders_must_match_the_settings():
    """Blocks or seats that differ would corrupt KV silently."""
    settings = SchedulerSettings(max_seqs=4, max_step_tokens=8, context_tokens=64, kv_tokens=64)
    with pytest.raises(ValueError, match="blocks of 16"):
        Scheduler(settings, SlotHolders(4, 8))
    with pytest.raises(ValueError, match="4 seats"):
        Scheduler(settings, SlotHolders(3))


def test_repr_and_statistics_tell_the_state(driven):
    """Operators and tests look here, never at privates."""
    engine = driven(max_seqs=1)
    engine.add("a", words(*range(9)))
    engine.add("b", words(50))
    engine.step()
    assert repr(engine.scheduler) == "<Scheduler running=1 waiting=1 steps=1>"
    statistics = engine.scheduler.statistics()
    assert (statistics.used_blocks, statistics.num_blocks, statistics.preempted) == (3, 128, 0)
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (9, 1)


def test_an_identical_prefix_of_a_thousand_tokens_is_computed_once_for_thirty_two(driven):
    """By the step log: each position of the prefix is in one row, and the others start behind it."""
    engine = driven(num_slots=32, max_seqs=32, kv_tokens=8192, max_step_tokens=128, context_tokens=2048, block_size=16)
    prefix = [*words(*range(1000))]
    for index in range(32):
        assert engine.add(str(index), [*prefix, *words(*range(index, index + 5))], GREEDY) is None
    engine.run()
    whole_blocks = 1000 - 1000 % 16
    positions = [
        position
        for plan in engine.plans
        for row in plan.rows
        for position in range(row.start, row.start + len(row.tokens))
        if position < whole_blocks
    ]
    assert sorted(positions) == list(range(whole_blocks))
    assert [engine.last(str(index)).cached_tokens for index in range(32)] == [0] + [whole_blocks] * 31
