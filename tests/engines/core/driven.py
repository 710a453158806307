"""A scheduler and a fake runner driven by hand, with every invariant checked after every step."""

from collections.abc import Callable, Iterable

from engines.core.admission import SchedulerSettings
from engines.core.holders import SlotHolders
from engines.core.outlook import StepOutlook
from engines.core.plan import StepPlan
from engines.core.sampling import sample
from engines.core.scheduler import Scheduler
from engines.core.sequence import GenerateRequest, SamplingParams, SequenceDelta
from engines.fake.model import FIRST_WORD, IM_END
from engines.fake.runner import FakeRunner
from engines.step_cost import StepCost
from policies.lane import Lane

NO_TIME = StepCost()
GREEDY = SamplingParams(temperature=0, max_tokens=8)


class Driven:
    """One engine's rules and device without its thread. `style`: "slots" or "pages".

    A step lasts as long as `cost` says, or a second if that knows nothing.
    """

    def __init__(self, style="slots", *, num_slots=8, kv_tokens=512, eos_every=0, cost=NO_TIME, **settings):
        defaults = {"max_seqs": 4, "max_step_tokens": 64, "context_tokens": 256, "block_size": 4}
        defaults["max_resident"] = max(num_slots, settings.get("max_seqs", 4))
        self.cost = cost
        self.settings = SchedulerSettings(**(defaults | settings), kv_tokens=kv_tokens, eos_ids=frozenset({IM_END}))
        self.holders = SlotHolders(num_slots, self.settings.block_size) if style == "slots" else None
        self.runner = FakeRunner(
            num_slots=num_slots,
            kv_tokens=kv_tokens,
            max_step_tokens=self.settings.max_step_tokens,
            pages_by=None if style == "slots" else self.settings.block_size,
            eos_every=eos_every,
        )
        self.scheduler = Scheduler(self.settings, self.holders)
        self.deltas: dict[str, list[SequenceDelta]] = {}
        self.plans: list[StepPlan] = []
        self.outlooks: list[StepOutlook] = []
        self.finished: list[str] = []  # ids in the order of their ends
        self.now = 0.0

    def add(self, id_, prompt, sampling=GREEDY, lane=Lane.INTERACTIVE, **fields):
        refusal = self.scheduler.add(
            GenerateRequest(id_, tuple(prompt), sampling, lane=lane, arrival=self.now, **fields), self.now
        )
        if refusal is None:
            self.deltas[id_] = []
        return refusal

    def record(self, deltas: Iterable[SequenceDelta]):
        for delta in deltas:
            kept = self.deltas[delta.request_id]
            assert not kept or kept[-1].finish_reason is None, "a delta after the last"
            kept.append(delta)
            if delta.finish_reason is not None:
                self.finished.append(delta.request_id)

    def abort(self, id_):
        delta = self.scheduler.abort(id_)
        self.record([delta] if delta else [])

    def step(self, in_flight: Callable[[], None] = lambda: None) -> StepPlan | None:
        plan = self.scheduler.schedule(self.now, self.cost)
        if plan is None:
            return None
        self.plans.append(plan)
        self.outlooks.append(self.scheduler.outlook(plan))
        assert plan.num_tokens <= self.settings.max_step_tokens
        logits = self.runner.execute(plan)
        used = self.runner.num_used_cells
        blocks = self.scheduler.statistics()
        if used is not None:
            assert used <= (blocks.used_blocks + blocks.cached_blocks) * self.settings.block_size
        in_flight()
        sampled = sample(logits, self.scheduler.sampling_sequences(plan), self.settings.eos_ids)
        self.record(self.scheduler.complete(plan, sampled, self.now))
        self.scheduler.check_integrity()
        self.now += self.cost.seconds(plan.num_decode_rows, plan.num_prefill_tokens) or 1.0
        return plan

    def run(self, limit=10_000):
        for _ in range(limit):
            if self.step() is None:
                return
        raise AssertionError("not finished")

    def output(self, id_) -> list[int]:
        return [token for delta in self.deltas[id_] for token in delta.token_ids]

    def last(self, id_) -> SequenceDelta:
        return self.deltas[id_][-1]

    def fail(self, plan):
        self.record(self.scheduler.fail(plan, "it broke"))
        self.runner.clear()


def words(*numbers: int) -> list[int]:
    """Distinct word tokens."""
    return [FIRST_WORD + 20 + number % 200 for number in numbers]
