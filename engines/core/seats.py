"""Who holds a seat, who waits for one, and who gives up theirs. Pure.

A seat is a slot and KV blocks, not a place in every step: bulk may sit and be left out. Hence urgent sequences
(interactive and standard) do not compete with bulk for seats: up to `max_seqs` of them are seated beside as many bulk
ones, as far as there are slots. Only where slots or blocks run out is a seat taken away, and recomputed later, mostly
from the cache: from bulk first, from the one with the least output first, and from none for a newcomer more often than
three times.
"""

from engines.core.admission import SchedulerSettings
from engines.core.holders import SlotHolders
from engines.core.memory import KvMemory, Placement
from engines.core.queue import OrderedSequences
from engines.core.sequence import Sequence, SequenceState
from policies.lane import Lane

_MAX_PREEMPTIONS = 3  # then it is pinned; chosen: each costs at most one more prefill of what is not cached


class Seats:
    """Seated and waiting sequences and their KV. Used from one thread."""

    def __init__(self, settings: SchedulerSettings, holders: SlotHolders | None) -> None:
        self._settings = settings
        self.memory = KvMemory(settings, holders)
        self.preemptions = self.prompt_tokens = self.cached_tokens = self.restored_tokens = 0  # only grow
        self.clear()

    def clear(self) -> None:
        """Nobody sits or waits; nothing is cached."""
        self.running = OrderedSequences()
        self.waiting = OrderedSequences()
        self._num_new = dict.fromkeys((True, False), 0)  # waiting for a first seat
        self.memory.reset()

    @property
    def num_new(self) -> int:
        """Sequences that wait for a first seat."""
        return sum(self._num_new.values())

    def num_new_beside(self, lane: Lane) -> int:
        """Those of them that share the queue's bound with this lane: the urgent ones, or bulk's."""
        return self._num_new[lane is not Lane.BULK]

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait."""
        self.waiting.add(sequence)
        self._num_new[sequence.request.is_urgent] += 1

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is over, with all it holds."""
        if sequence.slot is not None:
            self.memory.release(sequence)
        if sequence.state is SequenceState.WAITING:
            self._num_new[sequence.request.is_urgent] -= 1
        (self.running if sequence.state is SequenceState.RUNNING else self.waiting).remove(sequence)
        sequence.move(SequenceState.FINISHED)

    def make_room(self) -> bool:
        """Blocks for the next token of everyone seated; True if nobody had to give up a seat for it."""
        before = self.preemptions
        for sequence in self.running:
            while sequence.state is SequenceState.RUNNING and not self.memory.grow(sequence):
                self._preempt(self._least_deserving())
        return self.preemptions == before

    @property
    def has_bulk(self) -> bool:
        """Whether any bulk sequence sits or waits."""
        return self.running.num_in(Lane.BULK) > 0 or self.waiting.num_in(Lane.BULK) > 0

    @property
    def num_urgent_seats(self) -> int:
        """Seats of interactive and standard sequences together."""
        return self._settings.max_seqs

    def urgent_demand(self) -> tuple[int, bool]:
        """How many urgent sequences decode, and whether there are urgent prompts, seated or waiting."""
        urgent = self.running.urgent()
        num_decoding = sum(sequence.is_decoding for sequence in urgent)
        return num_decoding, num_decoding < len(urgent) or self.waiting.num_urgent > 0

    def seat(self, sequence: Sequence) -> Placement:
        """Seat a waiting sequence if it can be; an urgent one may cost bulk ones their seats."""
        if not self._may_sit(sequence):
            return Placement.NO_ROOM
        placement = self._place(sequence)
        if placement is Placement.NO_ROOM and sequence.request.is_urgent and self._can_clear_for(sequence):
            while placement is Placement.NO_ROOM:
                self._preempt(_least_progress(self._loose_bulk()))
                placement = self._place(sequence)
        if placement is Placement.PLACED:
            self._has_been_placed(sequence)
        return placement

    def forget_all(self) -> list[Sequence]:
        """All KV is lost: those seated have a seat only by name. Returns them; `remove` or `unseat` each."""
        seated = list(self.running)
        for sequence in seated:
            self.memory.forget(sequence)
        self.memory.reset()
        return seated

    def unseat(self, sequence: Sequence) -> None:
        """Let a seated sequence, which holds nothing any more, wait again."""
        self.running.remove(sequence)
        sequence.move(SequenceState.PREEMPTED)
        self.waiting.add(sequence)

    def check_integrity(self) -> None:
        """Raise AssertionError unless states, collections, blocks and slots agree. Between steps only."""
        for sequence in self.running:
            assert sequence.state is SequenceState.RUNNING, "state and collection differ"
            assert sequence.slot is not None, "a seat without a slot"
        for sequence in self.waiting:
            assert sequence.state in (SequenceState.WAITING, SequenceState.PREEMPTED), "state and collection differ"
            assert sequence.slot is None, "only seats have slots"
        new = [s.request.is_urgent for s in self.waiting if s.state is SequenceState.WAITING]
        assert [sum(new), len(new)] == [self._num_new[True], self.num_new], "new ones are miscounted"
        num_seated = max(self.running.num_in(Lane.BULK), self.running.num_urgent)
        assert num_seated <= self._settings.max_seqs, "more seats than there are"
        self.memory.check_integrity(self.running)

    def _may_sit(self, sequence: Sequence) -> bool:
        if sequence.request.lane is Lane.BULK:
            return len(self.running) < self._settings.max_seqs
        return self.running.num_urgent < self._settings.max_seqs

    def _place(self, sequence: Sequence) -> Placement:
        if len(self.running) >= self.memory.num_slots:
            return Placement.NO_ROOM
        return self.memory.place(sequence, self._watermark(len(self.running)))

    def _watermark(self, num_running: int) -> int:
        return int(self._settings.watermark_ratio * self._settings.num_blocks) if num_running else 0

    def _can_clear_for(self, sequence: Sequence) -> bool:
        """Whether it would fit without the bulk that may be preempted; if not, nobody loses a seat for nothing."""
        loose = self._loose_bulk()
        keep_free = self._watermark(len(self.running) - len(loose))
        return bool(loose) and self.memory.has_room_without(loose, sequence, keep_free)

    def _loose_bulk(self) -> list[Sequence]:
        return [s for s in self.running.in_lane(Lane.BULK) if s.num_preemptions < _MAX_PREEMPTIONS]

    def _least_deserving(self) -> Sequence:
        """Whose blocks the others need more. NOTE: pinned, the first in order is never it unless alone, so it ends."""
        loose = self._loose_bulk()
        return _least_progress(loose) if loose else self.running.last()

    def _preempt(self, sequence: Sequence) -> None:
        self.memory.release(sequence)
        self.preemptions += 1
        sequence.num_preemptions += 1
        self.unseat(sequence)

    def _has_been_placed(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.WAITING:
            self._num_new[sequence.request.is_urgent] -= 1
        if sequence.cached_tokens is None:
            # Counted once, so that own preemptions, whose resumption mostly hits own blocks, do not look like luck.
            sequence.cached_tokens = sequence.num_computed
            self.prompt_tokens += sequence.num_prompt
            self.cached_tokens += sequence.num_computed
            self.restored_tokens += sequence.num_restored
        self.waiting.remove(sequence)
        sequence.move(SequenceState.RUNNING)
        self.running.add(sequence)


def _least_progress(sequences: list[Sequence]) -> Sequence:
    """The one with the least output, of several the last in order."""
    return min(reversed(sequences), key=lambda sequence: sequence.num_output)
