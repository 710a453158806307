"""The life of a request between its arrival and its last delta, step after step.

Pure: no clock (`now` is passed in), no device, no thread. What goes into a step is decided in composition.py, who has a
seat in seats.py; here plans are made of it, booked, failed and ended.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from engines.core.admission import Refusal, RefusalReason, SchedulerSettings, check_size, open_sequence, queue_full
from engines.core.booking import book
from engines.core.budget import StepBudget
from engines.core.bulk_patience import BulkPatience
from engines.core.composition import compose
from engines.core.decoding import Decoded
from engines.core.delta import delta_of, end_of
from engines.core.drafting import Drafter
from engines.core.event_log import KvEventLog
from engines.core.events import KvEvent
from engines.core.holders import SlotHolders
from engines.core.latency_guard import LatencyGuard
from engines.core.load import LaneCounts, SchedulerStatistics
from engines.core.outlook import StepOutlook
from engines.core.plan import Row, StepPlan
from engines.core.sampling import SamplingRow
from engines.core.seats import Seats
from engines.core.sequence import FinishReason, GenerateRequest, Sequence, SequenceDelta, SequenceState
from engines.step_cost import StepCost
from policies.lane import Lane

_UNKNOWN_COST = StepCost()
_UPKEEP_S = 0.1  # of a step without rows, made when nothing is open: whoever arrives waits it out; chosen


@dataclass(frozen=True, slots=True)
class _Step:
    """The step being run; `sequences` of its rows, in order."""

    plan: StepPlan
    sequences: list[Sequence]
    outlook: StepOutlook


class Scheduler:
    """Seats, a waiting queue and one token budget per step. Used from one thread.

    `holders`: for engines whose KV is by slot; without, plans carry block tables and no memory operations.
    """

    def __init__(self, settings: SchedulerSettings, holders: SlotHolders | None = None) -> None:
        self.settings = settings
        self._seats = Seats(settings, holders)
        self._has_blocks = holders is None  # rows name them
        self._open: dict[str, Sequence] = {}
        self._step: _Step | None = None
        self._num_added = 0
        self._num_steps = 0
        self._generation_tokens = 0
        self._drafter = Drafter(settings, self._seats.memory.grow)
        self._bulk_patience = BulkPatience(settings.latency.bulk_patience_s)

    def __repr__(self) -> str:
        running, waiting = len(self._seats.running), len(self._seats.waiting)
        return f"<Scheduler running={running} waiting={waiting} steps={self._num_steps}>"

    @property
    def has_work(self) -> bool:
        """Whether any sequence is open."""
        return bool(self._open)

    @property
    def has_upkeep(self) -> bool:
        """Whether `plan_upkeep` may have something to do."""
        return not self._open and self._seats.memory.copies.has_more_ahead

    @property
    def population(self) -> tuple[int, int]:
        """Sequences that hold a seat, and those that wait for one."""
        return len(self._seats.running), len(self._seats.waiting)

    def num_new_beside(self, lane: Lane) -> int:
        """Requests that wait for their first seat, urgent or bulk as this lane is: what `max_waiting` bounds."""
        return self._seats.num_new_beside(lane)

    @property
    def num_slots(self) -> int:
        """Sequences that can be seated at once, hence slots that plans name."""
        return self._seats.memory.num_slots

    def statistics(self) -> SchedulerStatistics:
        """Counts as of now."""
        seats = self._seats
        pool = seats.memory.statistics()
        return SchedulerStatistics(
            running=len(seats.running),
            waiting=len(seats.waiting),
            running_by_lane=LaneCounts(*seats.running.nums_by_rank()),
            waiting_by_lane=LaneCounts(*seats.waiting.nums_by_rank()),
            preempted=len(seats.waiting) - seats.num_new,
            used_blocks=pool.used,
            cached_blocks=pool.cached,
            num_blocks=self.settings.num_blocks,
            evictions=pool.evictions,
            prompt_tokens=seats.prompt_tokens,
            cached_tokens=seats.cached_tokens,
            restored_tokens=seats.restored_tokens,
            generation_tokens=self._generation_tokens,
            preemptions=seats.preemptions,
            bulk_rows_left_out=self._bulk_patience.num_left_out,
            bulk_lifts=self._bulk_patience.num_lifts,
            drafted_tokens=self._drafter.num_drafted,
            accepted_tokens=self._drafter.num_accepted,
            host=seats.memory.host_statistics(),
        )

    @property
    def events(self) -> KvEventLog:
        """What can be hit in which medium, and what became of it."""
        return self._seats.memory.events

    def take_events(self) -> tuple[KvEvent, ...]:
        """KV events since the last call, in order; none unless `events.gather` was called."""
        return self.events.take()

    def add(self, request: GenerateRequest, now: float) -> Refusal | None:
        """Let a request wait for a seat; a `Refusal`, and nothing changed, if it can never fit or not be taken now.

        `now` stands in for an arrival that is later than it.
        """
        refusal = check_size(request, self.settings)
        if refusal is not None:
            return refusal
        if request.id in self._open:
            return Refusal(RefusalReason.DUPLICATE_ID, f"Request {request.id} is already open.")
        num_waiting = self.num_new_beside(request.lane)
        if num_waiting >= self.settings.max_waiting:
            return queue_full(num_waiting, request.lane)
        self._num_added += 1
        sequence = open_sequence(request, self.settings, now, self._num_added)
        sequence.added_step = self._num_steps
        self._open[request.id] = sequence
        self._seats.add(sequence)
        return None

    def abort(self, request_id: str) -> SequenceDelta | None:
        """End a sequence with ABORT. None if it is unknown, or in the step being run (`complete` then returns it)."""
        sequence = self._open.get(request_id)
        if sequence is None:
            return None
        if sequence.is_in_step:
            sequence.is_aborting = True
            return None
        return self._end(sequence, FinishReason.ABORT)

    def abort_all(self) -> list[SequenceDelta]:
        """End everything open with ABORT. Between steps only."""
        assert self._step is None, "everything is aborted in mid-step"
        return [self._end(sequence, FinishReason.ABORT) for sequence in tuple(self._open.values())]

    def schedule(self, now: float, cost: StepCost = _UNKNOWN_COST) -> StepPlan | None:
        """The next step, or None when no sequence is open. Exactly one of complete and fail must follow a plan.

        `cost`: what steps are believed to cost now; unknown, bulk goes into every step that has room.
        """
        assert self._step is None, "a step is planned while another runs"
        if not self._open:
            return None
        settings, seats = self.settings, self._seats
        budget = StepBudget(LatencyGuard(settings.latency, cost), settings.max_step_tokens, settings.max_seqs)
        last_step = None if settings.mixes_prompts else self._num_steps
        compose(budget, seats, self._drafter, last_step, is_bulk_overdue=self._bulk_patience.is_overdue(now))
        assert budget.grants, "sequences are open, but none can go on"
        self._num_steps += 1
        rows = tuple([grant.row(has_blocks=self._has_blocks) for grant in budget.grants])
        plan = StepPlan(self._num_steps, seats.memory.take_operations(), rows)
        outlook = budget.outlook(seats.running.num_in(Lane.BULK))
        self._step = _Step(plan, [grant.sequence for grant in budget.grants], outlook)
        for sequence in self._step.sequences:
            sequence.is_in_step = True
            sequence.last_step = plan.number
        self._bulk_patience.note(outlook, now, is_in_step=budget.has_bulk, is_there=seats.has_bulk)
        return plan

    def plan_upkeep(self, cost: StepCost = _UNKNOWN_COST) -> StepPlan | None:
        """A step without rows that saves what will soon be evicted; None if there is nothing to do.

        Only while no sequence is open. `complete` or `fail` must follow, as after `schedule`.
        """
        assert self._step is None, "a step is planned while another runs"
        copies = self._seats.memory.copies
        copies.allow(_UPKEEP_S)
        if self._open or not copies.save_ahead():
            return None
        self._num_steps += 1
        plan = StepPlan(self._num_steps, self._seats.memory.take_operations(), ())
        copy_s = copies.take_spent_s()
        outlook = StepOutlook((), cost, copy_s, 0.0, None, 0, is_lifted=False, copy_s=copy_s)
        self._step = _Step(plan, [], outlook)
        return plan

    def outlook(self, plan: StepPlan) -> StepOutlook:
        """What was thought of the step being run when it was planned."""
        return self._running_step(plan).outlook

    def sampling_rows(self, plan: StepPlan) -> list[SamplingRow]:
        """The sequences of the plan's sampling rows, in order, with their drafts. The sampler only reads them."""
        sequences = self._running_step(plan).sequences
        return [
            SamplingRow(sequence, row.drafts)
            for row, sequence in zip(plan.rows, sequences, strict=True)
            if row.num_samples
        ]

    def complete(self, plan: StepPlan, decoded: SequenceOf[Decoded], now: float) -> list[SequenceDelta]:  # noqa: ARG002
        """Book a finished step: one delta for each sequence that got a token or ended.

        `decoded` comes in the order of sampling rows.
        """
        sequences = self._running_step(plan).sequences
        assert len(decoded) == sum([row.num_samples > 0 for row in plan.rows]), "tokens for each sampling row"
        self._step = None
        tokens = iter(decoded)
        deltas = []
        for row, sequence in zip(plan.rows, sequences, strict=True):
            sequence.is_in_step = False
            yielded = next(tokens) if row.num_samples else None
            booked = book(sequence, yielded, self.settings.eos_ids) if yielded and not sequence.is_aborting else None
            self._note_computed(sequence, row, len(booked.sampled) if booked is not None else 0)
            if booked is not None and not sequence.first_step:
                sequence.first_step = plan.number
            if sequence.is_aborting:
                deltas.append(self._end(sequence, FinishReason.ABORT))
            elif booked is not None:
                if booked.reason is not None:
                    self._close(sequence)
                deltas.append(delta_of(sequence, booked))
        return deltas

    def fail(self, plan: StepPlan, error: str) -> list[SequenceDelta]:
        """Book a step that failed: its sequences end with ERROR. The runner must be cleared.

        All KV is forgotten; the other seated sequences wait again and compute anew.
        """
        lost = self._running_step(plan).sequences
        self._step = None
        seated = self._seats.forget_all()
        deltas = []
        for sequence in lost:
            sequence.is_in_step = False
            reason = FinishReason.ABORT if sequence.is_aborting else FinishReason.ERROR
            deltas.append(self._end(sequence, reason, "" if sequence.is_aborting else error))
        for sequence in seated:
            if sequence.state is SequenceState.RUNNING:
                self._seats.unseat(sequence)
        return deltas

    def fail_all(self, error: str) -> list[SequenceDelta]:
        """End everything open with ERROR and start empty, relying on nothing: planning or booking itself broke."""
        lost = [sequence for sequence in self._open.values() if sequence.state is not SequenceState.FINISHED]
        self._open.clear()
        self._step = None
        self._seats.clear()
        for sequence in lost:
            self._seats.memory.forget(sequence)
            sequence.move(SequenceState.FINISHED)
        return [end_of(sequence, FinishReason.ERROR, error) for sequence in lost]

    def check_integrity(self) -> None:
        """Raise AssertionError unless seats, queue, blocks and slots agree. Between steps only."""
        assert self._step is None, "integrity is checked in mid-step"
        self._seats.check_integrity()
        sequences = [*self._seats.running, *self._seats.waiting]
        assert all(self._open.get(sequence.id) is sequence for sequence in sequences), "queued but not open"
        assert len(self._open) == len(sequences), "an open sequence is in no collection"

    def _note_computed(self, sequence: Sequence, row: Row, num_new: int) -> None:
        """The row's KV is there, but for drafts that did not hold: its token and `num_new` - 1 drafts stay."""
        num_drafts = len(row.drafts)
        num_held = max(0, num_new - 1)
        sequence.num_computed += len(row.tokens) - num_drafts + num_held
        self._generation_tokens += num_new
        if num_drafts:
            self._drafter.learn(sequence, num_drafts, num_held)
        if num_held < num_drafts:
            self._seats.memory.take_back_drafts(sequence)
        self._seats.memory.publish(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason, error: str = "") -> SequenceDelta:
        self._close(sequence)
        return end_of(sequence, reason, error)

    def _close(self, sequence: Sequence) -> None:
        self._seats.remove(sequence)
        del self._open[sequence.id]

    def _running_step(self, plan: StepPlan) -> _Step:
        assert self._step is not None, "no step is running"
        assert self._step.plan is plan, "another step is running"
        return self._step
