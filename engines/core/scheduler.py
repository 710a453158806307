"""Which tokens of which sequences go into the next step.

Pure: no clock (`now` is passed in), no device, no thread. Each step the running ones come first and decoding ones
before prefill remainders; then, if nobody had to be preempted, waiting ones are seated in the order of lane, priority
and arrival. When blocks run out the last of that order gives up its seat and recomputes later, mostly from the cache.
"""

from collections.abc import Sequence as SequenceOf

from engines.core.admission import Refusal, RefusalReason, SchedulerSettings, check_size, open_sequence
from engines.core.budget import Grant, share_budget
from engines.core.delta import delta_of
from engines.core.holders import SlotHolders
from engines.core.load import SchedulerStatistics
from engines.core.memory import KvMemory, Placement
from engines.core.plan import StepPlan
from engines.core.queue import OrderedSequences
from engines.core.sampling import Sampled
from engines.core.sequence import FinishReason, GenerateRequest, Sequence, SequenceDelta, SequenceState


class Scheduler:
    """Seats, a waiting queue and one token budget per step. Used from one thread.

    `holders`: for engines whose KV is by slot; without, plans carry block tables and no memory operations.
    """

    def __init__(self, settings: SchedulerSettings, holders: SlotHolders | None = None) -> None:
        self.settings = settings
        self._memory = KvMemory(settings, holders)
        self._open: dict[str, Sequence] = {}
        self._waiting = OrderedSequences()
        self._running = OrderedSequences()
        self._step: tuple[StepPlan, list[Sequence]] | None = None
        self._num_new = 0  # waiting for a first seat
        self._num_added = 0
        self._num_steps = 0
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = self._preemptions = 0

    def __repr__(self) -> str:
        return f"<Scheduler running={len(self._running)} waiting={len(self._waiting)} steps={self._num_steps}>"

    @property
    def has_work(self) -> bool:
        """Whether any sequence is open."""
        return bool(self._open)

    @property
    def num_new(self) -> int:
        """Requests that wait for their first seat: what `max_waiting` bounds."""
        return self._num_new

    def statistics(self) -> SchedulerStatistics:
        """Counts as of now."""
        pool = self._memory.statistics()
        return SchedulerStatistics(
            running=len(self._running),
            waiting=len(self._waiting),
            preempted=len(self._waiting) - self._num_new,
            used_blocks=pool.used,
            cached_blocks=pool.cached,
            num_blocks=self.settings.num_blocks,
            evictions=pool.evictions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            preemptions=self._preemptions,
        )

    def add(self, request: GenerateRequest, now: float) -> Refusal | None:
        """Let a request wait for a seat; a `Refusal`, and nothing changed, if it can never fit or not be taken now.

        `now` stands in for an arrival that is later than it.
        """
        refusal = check_size(request, self.settings)
        if refusal is not None:
            return refusal
        if request.id in self._open:
            return Refusal(RefusalReason.DUPLICATE_ID, f"Request {request.id} is already open.")
        if self._num_new >= self.settings.max_waiting:
            return Refusal(RefusalReason.QUEUE_FULL, f"{self._num_new} requests are waiting already.")
        self._num_added += 1
        sequence = open_sequence(request, self.settings, now, self._num_added)
        self._open[request.id] = sequence
        self._waiting.add(sequence)
        self._num_new += 1
        return None

    def abort(self, request_id: str) -> SequenceDelta | None:
        """End a sequence with ABORT. None if it is unknown, or in the step being run (`complete` then returns it)."""
        sequence = self._open.get(request_id)
        if sequence is None:
            return None
        if sequence.is_in_step:
            sequence.is_aborting = True
            return None
        return self._finish(sequence, FinishReason.ABORT)

    def abort_all(self) -> list[SequenceDelta]:
        """End everything open with ABORT. Between steps only."""
        assert self._step is None, "everything is aborted in mid-step"
        return [self._finish(sequence, FinishReason.ABORT) for sequence in tuple(self._open.values())]

    def schedule(self, now: float) -> StepPlan | None:  # noqa: ARG002 - lane rules will compare it with deadlines
        """The next step, or None when no sequence is open. Exactly one of complete and fail must follow a plan."""
        assert self._step is None, "a step is planned while another runs"
        if not self._open:
            return None
        preemptions = self._preemptions
        self._make_room()
        grants = share_budget(self._running, self.settings.max_step_tokens)
        if self._preemptions == preemptions:
            grants += self._admit(self.settings.max_step_tokens - sum(grant.num_tokens for grant in grants))
        assert grants, "sequences are open, but none can go on"
        self._num_steps += 1
        plan = StepPlan(self._num_steps, self._memory.take_operations(), tuple(grant.row() for grant in grants))
        self._step = (plan, [grant.sequence for grant in grants])
        for grant in grants:
            grant.sequence.is_in_step = True
        return plan

    def sampling_sequences(self, plan: StepPlan) -> list[Sequence]:
        """The sequences of the plan's sampling rows, in order (for the sampler, which must not change them)."""
        return [sequence for row, sequence in zip(plan.rows, self._sequences_of(plan), strict=True) if row.samples]

    def complete(self, plan: StepPlan, sampled: SequenceOf[Sampled], now: float) -> list[SequenceDelta]:  # noqa: ARG002
        """Book a finished step: one delta for each sequence that got a token or ended.

        `sampled` comes in the order of sampling rows.
        """
        sequences = self._sequences_of(plan)
        assert len(sampled) == sum(row.samples for row in plan.rows), "a token for each sampling row"
        self._step = None
        tokens = iter(sampled)
        deltas = []
        for row, sequence in zip(plan.rows, sequences, strict=True):
            sequence.is_in_step = False
            sequence.num_computed += len(row.tokens)
            self._memory.publish(sequence)
            token = next(tokens) if row.samples else None
            if sequence.is_aborting:
                deltas.append(self._finish(sequence, FinishReason.ABORT))
            elif token is not None:
                deltas.append(self._append(sequence, token))
        return deltas

    def fail(self, plan: StepPlan, error: str) -> list[SequenceDelta]:
        """Book a step that failed: its sequences end with ERROR. The runner must be cleared.

        All KV is forgotten; the other seated sequences wait again and compute anew.
        """
        lost = self._sequences_of(plan)
        self._step = None
        for sequence in self._running:
            self._memory.forget(sequence)
        self._memory.reset()
        deltas = []
        for sequence in lost:
            sequence.is_in_step = False
            reason = FinishReason.ABORT if sequence.is_aborting else FinishReason.ERROR
            deltas.append(self._finish(sequence, reason, "" if sequence.is_aborting else error))
        for sequence in self._running:
            self._unseat(sequence)
        return deltas

    def fail_all(self, error: str) -> list[SequenceDelta]:
        """End everything open with ERROR and start empty, relying on nothing: planning or booking itself broke."""
        lost = [sequence for sequence in self._open.values() if sequence.state is not SequenceState.FINISHED]
        self._open.clear()
        self._waiting, self._running = OrderedSequences(), OrderedSequences()
        self._step, self._num_new = None, 0
        self._memory.reset()
        for sequence in lost:
            self._memory.forget(sequence)
            sequence.move(SequenceState.FINISHED)
        return [delta_of(sequence, None, FinishReason.ERROR, error) for sequence in lost]

    def check_integrity(self) -> None:
        """Raise AssertionError unless seats, queue, blocks and slots agree. Between steps only."""
        assert self._step is None, "integrity is checked in mid-step"
        for state, group in ((SequenceState.RUNNING, self._running), (None, self._waiting)):
            for sequence in group:
                assert self._open.get(sequence.id) is sequence, "a sequence is queued but not open"
                waits = sequence.state in (SequenceState.WAITING, SequenceState.PREEMPTED)
                assert sequence.state is state or (state is None and waits), "state and collection differ"
                assert (sequence.slot is None) == (state is None), "only seats have slots"
        assert len(self._open) == len(self._running) + len(self._waiting), "an open sequence is in no collection"
        assert self._num_new == sum(s.state is SequenceState.WAITING for s in self._waiting), "new ones are miscounted"
        self._memory.check_integrity(self._running)

    def _make_room(self) -> None:
        """Blocks for the next token of everyone seated; the last in order are preempted until the others have them."""
        for sequence in self._running:
            while sequence.state is SequenceState.RUNNING and not self._memory.grow(sequence):
                victim = self._running.last()
                self._memory.release(victim)
                self._preemptions += 1
                self._unseat(victim)

    def _admit(self, budget: int) -> list[Grant]:
        """Seat waiting sequences, the first one without room ends it, so that large ones are not overtaken forever."""
        grants: list[Grant] = []
        for sequence in self._waiting:
            if budget == 0 or len(self._running) == self.settings.max_seqs:
                break
            watermark = int(self.settings.watermark_ratio * self.settings.num_blocks) if len(self._running) else 0
            placement = self._memory.place(sequence, watermark)
            if placement is Placement.NO_ROOM:
                break
            if placement is Placement.PLACED:
                self._seat(sequence)
                num_tokens = min(sequence.num_uncomputed, budget)
                grants.append(Grant(sequence, num_tokens))
                budget -= num_tokens
        return grants

    def _seat(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING:
            self._num_new -= 1
        if sequence.cached_tokens is None:
            # Counted once, so that own preemptions, whose resumption mostly hits own blocks, do not look like luck.
            sequence.cached_tokens = sequence.num_computed
            self._prompt_tokens += sequence.num_prompt
            self._cached_tokens += sequence.num_computed
        self._waiting.remove(sequence)
        sequence.move(SequenceState.RUNNING)
        self._running.add(sequence)

    def _unseat(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.move(SequenceState.PREEMPTED)
        sequence.num_preemptions += 1
        self._waiting.add(sequence)

    def _append(self, sequence: Sequence, sampled: Sampled) -> SequenceDelta:
        """Append a token; the sequence ends if it is an end or stop token or the last one allowed."""
        sequence.tokens.append(sampled.token)
        self._generation_tokens += 1
        sampling = sequence.request.sampling
        is_eos = sampled.token in self.settings.eos_ids and not sampling.ignore_eos
        if is_eos or sampled.token in sampling.stop_token_ids:
            return self._finish(sequence, FinishReason.STOP, sampled=sampled)
        if len(sequence.tokens) >= sequence.max_length:
            return self._finish(sequence, FinishReason.LENGTH, sampled=sampled)
        return delta_of(sequence, sampled)

    def _finish(
        self, sequence: Sequence, reason: FinishReason, error: str = "", sampled: Sampled | None = None
    ) -> SequenceDelta:
        if sequence.slot is not None:
            self._memory.release(sequence)
        if sequence.state is SequenceState.WAITING:
            self._num_new -= 1
        (self._running if sequence.state is SequenceState.RUNNING else self._waiting).remove(sequence)
        sequence.move(SequenceState.FINISHED)
        del self._open[sequence.id]
        return delta_of(sequence, sampled, reason, error)

    def _sequences_of(self, plan: StepPlan) -> list[Sequence]:
        assert self._step is not None, "no step is running"
        assert self._step[0] is plan, "another step is running"
        return self._step[1]
