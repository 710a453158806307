"""A scheduler and a fake runner driven by hand, with every invariant checked after every step.

KV events are followed all the time: what they tell must be what is cached.
"""

from collections.abc import Callable, Iterable

from engines.core.admission import SchedulerSettings
from engines.core.decoding import decode
from engines.core.events import Medium
from engines.core.grammar import mask_words
from engines.core.holders import SlotHolders
from engines.core.host_tier import HostSettings
from engines.core.masking import fill_row
from engines.core.outlook import StepOutlook
from engines.core.plan import StepPlan
from engines.core.scheduler import Scheduler
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams, SequenceDelta
from engines.fake.model import FIRST_WORD, IM_END
from engines.fake.runner import FakeRunner
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.event_index import EventIndex

NO_TIME = StepCost()
GREEDY = SamplingParams(temperature=0, max_tokens=8)


class Driven:
    """One engine's rules and device without its thread. `style`: "slots" or "pages".

    A step lasts as long as `cost` says, or a second if that knows nothing. `host_tokens`: room in host memory, into
    which whatever is one block longer than what is there is worth saving.
    """

    def __init__(
        self, style="slots", *, num_slots=8, kv_tokens=512, eos_every=0, cost=NO_TIME, host_tokens=0, **settings
    ):
        defaults = {"max_seqs": 4, "max_step_tokens": 64, "context_tokens": 256, "block_size": 4}
        defaults["max_resident"] = max(num_slots, settings.get("max_seqs", 4))
        defaults["host"] = HostSettings(max_tokens=host_tokens, min_tokens=1)
        self.cost = cost
        self.settings = SchedulerSettings(**(defaults | settings), kv_tokens=kv_tokens, eos_ids=frozenset({IM_END}))
        self.holders = SlotHolders(num_slots, self.settings.block_size) if style == "slots" else None
        self.runner = FakeRunner(
            num_slots=num_slots,
            kv_tokens=kv_tokens,
            max_step_tokens=self.settings.max_step_tokens,
            pages_by=None if style == "slots" else self.settings.block_size,
            eos_every=eos_every,
            host_bytes_per_token=1,
        )
        self.scheduler = Scheduler(self.settings, self.holders)
        self.scheduler.events.gather()
        self.index = EventIndex()
        self.deltas: dict[str, list[SequenceDelta]] = {}
        self.plans: list[StepPlan] = []
        self.outlooks: list[StepOutlook] = []
        self.finished: list[str] = []  # ids in the order of their ends
        self.now = 0.0
        self.num_faults = 0

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
        rows = self.scheduler.sampling_rows(plan)
        masks = masks_of(rows, self.runner.vocab_size)
        logits = self.runner.execute(plan)
        used = self.runner.num_used_cells
        blocks = self.scheduler.statistics()
        if used is not None:
            assert used <= (blocks.used_blocks + blocks.cached_blocks) * self.settings.block_size
        in_flight()
        decoded = decode(logits, rows, masks, self.settings.eos_ids)
        self.record(self.scheduler.complete(plan, decoded, self.now))
        self.check()
        self.now += self.cost.seconds(plan.num_decode_rows, plan.num_prefill_tokens) or 1.0
        return plan

    def idle(self):
        """Do what there is to do while nothing is open."""
        while (plan := self.scheduler.plan_upkeep(self.cost)) is not None:
            assert not plan.rows
            self.plans.append(plan)
            self.runner.execute(plan)
            self.record(self.scheduler.complete(plan, [], self.now))
            self.check()
        assert not self.scheduler.has_upkeep or self.scheduler.has_work

    def check(self):
        """Every invariant that must hold between steps."""
        self.scheduler.check_integrity()
        self.index.apply(self.scheduler.take_events())
        for medium in Medium:
            assert self.index.hashes(medium) == self.scheduler.events.copies(medium).keys()
        host = self.scheduler.statistics().host
        assert host.used_tokens == host.saved_tokens - host.discarded_tokens or self.num_faults
        assert host.used_tokens <= self.settings.host.max_tokens

    def run(self, limit=10_000):
        for _ in range(limit):
            if self.step() is None:
                return
        raise AssertionError("not finished")

    def output(self, id_) -> list[int]:
        return [token for delta in self.deltas[id_] for token in delta.token_ids]

    def answer(self, id_) -> tuple[list[int], FinishReason | None]:
        """What a user gets: the tokens, and why they end."""
        return self.output(id_), self.last(id_).finish_reason

    def last(self, id_) -> SequenceDelta:
        return self.deltas[id_][-1]

    def fail(self, plan):
        self.record(self.scheduler.fail(plan, "it broke"))
        self.runner.clear()
        self.num_faults += 1
        self.check()


def masks_of(rows, vocab_size):
    """What a `MaskFiller` would fill, without its thread."""
    return [row.sequence.grammar and fill_row(row.sequence.grammar, row.drafts, mask_words(vocab_size)) for row in rows]


def words(*numbers: int) -> list[int]:
    """Distinct word tokens."""
    return [FIRST_WORD + 20 + number % 200 for number in numbers]
