"""Everything at once, in any order: what is cached, where, and what others are told of it stays right."""

import functools

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.core.eviction import EvictionPolicy
from engines.core.latency_guard import LatencySettings
from engines.core.sequence import FinishReason, SamplingParams
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.crowd import alone, assert_nothing_is_held
from tests.engines.core.driven import NO_TIME, Driven, words
from tests.engines.core.event_index import EventIndex


@functools.lru_cache(maxsize=4096)
def expected(prompt, sampling, eos_every):
    """The answer to a request that has the engine to itself."""
    return alone(prompt, sampling, eos_every).answer("alone")


PROMPTS = st.builds(
    lambda stem, cut, tail: tuple(words(*stem[:cut], *tail)),
    st.sampled_from([tuple(range(40)), tuple(range(60, 100)), (7,) * 40]),
    st.integers(10, 40),
    st.lists(st.integers(0, 2), max_size=5),
)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 1.0]),
    seed=st.integers(0, 2),
    max_tokens=st.sampled_from([1, 2, 12, 30, 30]),
)


LANES = st.sampled_from([Lane.INTERACTIVE, Lane.INTERACTIVE, Lane.STANDARD, Lane.BULK, Lane.BULK])
SALTS = st.sampled_from(["", "", "", "tenant"])


class MemoryMachine(RuleBasedStateMachine):
    """One scheduler on a fake device whose cells tell the truth. Pausing is not stepping: aborts come at any point."""

    @initialize(
        style=st.sampled_from(["slots", "pages"]),
        block_size=st.sampled_from([1, 2, 4, 8]),
        max_seqs=st.sampled_from([1, 3, 6]),
        spare_slots=st.integers(0, 4),
        kv_tokens=st.integers(80, 120),
        host_tokens=st.sampled_from([0, 40, 100, 300]),
        max_step_tokens=st.sampled_from([6, 16, 64]),
        eos_every=st.sampled_from([0, 9]),
        cost=st.sampled_from([NO_TIME, StepCost(0.01, 0.001, 0.0002), StepCost(0.01, 0.005, 0.002)]),
        itl_p95_s=st.sampled_from([None, 0.03]),
        patience_s=st.sampled_from([0.0, 0.1, 1e9]),
        eviction=st.sampled_from(list(EvictionPolicy)),
        max_drafts=st.sampled_from([0, 0, 4]),
        watermark_ratio=st.sampled_from([0.0, 0.1]),
        mixes_prompts=st.booleans(),
    )
    def make(self, style, max_seqs, spare_slots, itl_p95_s, patience_s, **sizes):
        self.eos_every = sizes["eos_every"]
        latency = LatencySettings(itl_p95_s=itl_p95_s, bulk_patience_s=patience_s)
        self.driven = Driven(style, num_slots=max_seqs + spare_slots, max_seqs=max_seqs, latency=latency, **sizes)
        self.requests = {}

    @rule(
        arrivals=st.lists(st.tuples(PROMPTS, SAMPLINGS, LANES, SALTS), min_size=1, max_size=6), steps=st.integers(0, 6)
    )
    def arrive(self, arrivals, steps):
        for arrival in arrivals:
            self.add(*arrival)
            self.step(steps)

    def add(self, prompt, sampling, lane, salt):
        id_ = str(len(self.requests))
        if self.driven.add(id_, prompt, sampling, lane, salt=salt) is None:
            self.requests[id_] = (prompt, sampling)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def ask_again(self, data):
        """The next turn of a conversation: prompt and answer so far, and a word."""
        id_ = data.draw(st.sampled_from(sorted(self.requests)))
        prompt, sampling = self.requests[id_]
        self.add((*prompt, *self.driven.output(id_), *words(5))[:60], sampling, Lane.INTERACTIVE, "")

    @rule(count=st.integers(1, 20))
    def step(self, count):
        for _ in range(count):
            self.driven.step()

    @rule()
    def finish(self):
        self.driven.run()
        self.driven.idle()

    @rule(number=st.integers(0, 30))
    def abort(self, number):
        self.driven.abort(str(number))

    @rule(number=st.integers(0, 30))
    def abort_in_flight(self, number):
        self.driven.step(lambda: self.driven.abort(str(number)))

    @rule()
    def fail(self):
        plan = self.driven.scheduler.schedule(self.driven.now, self.driven.cost)
        if plan is not None:
            self.driven.fail(plan)

    @rule()
    def lose_track(self):
        """Somebody who comes late, or lost events, learns all from a snapshot."""
        driven = self.driven
        assert EventIndex(driven.scheduler.events.snapshot()) == driven.index
        driven.scheduler.events.resend()
        driven.check()

    @invariant()
    def is_sound(self):
        if hasattr(self, "driven"):
            self.driven.check()

    def teardown(self):
        if not hasattr(self, "driven"):
            return
        self.finish()
        for id_, (prompt, sampling) in self.requests.items():
            if self.driven.last(id_).finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                assert self.driven.answer(id_) == expected(prompt, sampling, self.eos_every)
        statistics = self.driven.scheduler.statistics()
        assert_nothing_is_held(self.driven)
        event(f"preempted: {statistics.preemptions > 0}")
        event(f"saved: {statistics.host.saved_tokens > 0}")
        event(f"restored: {statistics.host.restored_tokens > 0}")
        event(f"discarded: {statistics.host.discarded_tokens > 0}")
        event(f"bulk left out: {statistics.bulk_rows_left_out > 0}")


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
