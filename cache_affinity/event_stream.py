"""The order of one engine's event batches: what is missing, what is old, and when a new process began. Pure.

Batches come live, numbered from 0, or as the answer to asking for them again from some number. `EventStream` says what
to do with each: apply it, clear what is known, ask again. A restarted engine is noticed by its generation, where it
says one, or by numbers that begin anew. What cannot be had again is not guessed: the index is cleared, and the replica
counts as partly known until its engine says that all was cleared.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from cache_affinity.kv_events import KvBatch, KvEvent

AUDIT_S = 2.0  # chosen: so long silent, an engine is asked whether it said more; a lost last batch has no successor
ANSWER_S = 2.0  # chosen: how long an answer may take
MAX_UNANSWERED = 3  # then what is known of the replica is cleared
MAX_HELD = 4096  # batches that came while older ones are waited for
MAX_IN_VAIN = 2  # askings that did not close a gap


class Standing(Enum):
    """What is known of a replica's contents."""

    UNKNOWN = "unknown"  # nothing that may be believed
    PARTIAL = "partial"  # what is known is true, but there may be more
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Apply:
    """Take these events in."""

    events: tuple[KvEvent, ...]


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget what the replica was believed to hold. `reason`: for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask for all batches from `sequence` on; answer by `again` for each and by `answered` at the end."""

    sequence: int


Action = Apply | Clear | AskAgain


@dataclass(slots=True)
class StreamCounts:
    """What happened since the start. Only grow."""

    num_batches: int = 0
    num_gaps: int = 0
    num_restarts: int = 0
    num_clears: int = 0
    num_broken: int = 0


class EventStream:
    """One replica's stream. `can_ask`: its engine answers for batches again (a replay socket is known)."""

    def __init__(self, *, can_ask: bool) -> None:
        self.can_ask = self._is_asking_possible = can_ask
        self.standing = Standing.UNKNOWN
        self.generation: str | None = None
        self.counts = StreamCounts()
        self._next: int | None = None  # the batch to apply next; None: whatever comes first
        self._last_live: int | None = None
        self._held: deque[KvBatch] = deque()
        self._asked_at: float | None = None
        self._snapshot: int | None = None  # the number whose further parts belong to a snapshot
        self._num_unanswered = 0
        self._num_in_vain = 0
        self._heard_at = 0.0

    def __repr__(self) -> str:
        return f"<EventStream {self.standing.value} next={self._next} held={len(self._held)} {self.counts}>"

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is waited for."""
        return self._asked_at is not None

    def begin(self, now: float) -> list[Action]:
        """The connection is new, or the replica is another process: what was known does not count."""
        self._forget()
        self.can_ask = self._is_asking_possible
        self._heard_at = now
        actions: list[Action] = [Clear("a new connection")]
        if self.can_ask:
            return [*actions, self._ask(0, now)]
        self.standing = Standing.PARTIAL
        return actions

    def live(self, batch: KvBatch, now: float) -> list[Action]:
        """A batch that was published just now."""
        self._heard_at = now
        is_older = self._last_live is not None and batch.sequence <= self._last_live
        if self._is_foreign(batch.generation) or is_older:
            return self._restart(batch, now)
        self._last_live = batch.sequence
        self.generation = batch.generation or self.generation
        if self._asked_at is not None:
            self._hold(batch)
            return []
        return self._follow(batch, now)

    def broken(self, sequence: int, now: float) -> list[Action]:
        """A batch that was published just now cannot be read: what it said of removals is lost."""
        self._heard_at = now
        self.counts.num_broken += 1
        if self._next is not None and sequence < self._next and self._asked_at is None:
            return []
        self._last_live, self._next = sequence, sequence + 1
        return self._lose("a batch cannot be read")

    def again(self, batch: KvBatch, now: float) -> list[Action]:
        """A batch of an answer."""
        self._heard_at = now
        if self._asked_at is None:
            return []
        self._asked_at = now  # it is being answered
        if self._is_foreign(batch.generation):
            return self._restart(None, now)
        self.generation = batch.generation or self.generation
        number, is_next = batch.sequence, batch.sequence == (self._next or 0)
        if batch.is_snapshot and (is_next or self._next is None or number > self._next):
            self._snapshot = number
            return self._take(batch)
        if is_next or number == self._snapshot:
            return self._take(batch)
        if self._next is not None and number < self._next:
            return []
        self.counts.num_gaps += 1
        return [*self._lose("batches are no longer to be had"), *self._take(batch)]

    def answered(self, now: float, *, generation: str | None = None, next_sequence: int | None = None) -> list[Action]:
        """The answer is complete. `generation`, `next_sequence`: of the engine, where it says them."""
        self._heard_at = now
        if self._asked_at is None:
            return []
        self._asked_at, self._num_unanswered, self._snapshot = None, 0, None
        was_behind = next_sequence is not None and self._next is not None and next_sequence < self._next
        if self._is_foreign(generation) or was_behind:
            return self._restart(None, now)
        self.generation = generation or self.generation
        if self._next is None:  # an engine that has said nothing yet holds nothing
            self.standing = Standing.PARTIAL if next_sequence else Standing.COMPLETE
            self._next = next_sequence or 0
        return self._release(now)

    def tick(self, now: float) -> list[Action]:
        """What time alone brings: an answer that does not come, a silence to look into."""
        if self._asked_at is None:
            if self.can_ask and now - self._heard_at > AUDIT_S:
                return [self._ask(self._next or 0, now)]
            return []
        if now - self._asked_at <= ANSWER_S:
            return []
        self._num_unanswered += 1
        if self._num_unanswered != MAX_UNANSWERED:
            return [self._ask(self._next or 0, now)]
        held = tuple(self._held)
        self._forget(is_waiting=True)
        if not held:
            return [Clear("the engine does not answer"), self._ask(0, now)]
        self.can_ask = False  # it speaks, so it lives, and answers nobody
        actions: list[Action] = self._lose("the engine does not answer")
        for batch in held:
            actions += self._follow(batch, now)
        return actions

    def _follow(self, batch: KvBatch, now: float) -> list[Action]:
        """A live batch with nothing waited for."""
        if self._next is None or batch.sequence == self._next:
            return self._take(batch)
        if batch.sequence < self._next:
            return []  # it came in an answer before
        self.counts.num_gaps += 1
        if batch.is_snapshot:
            return self._take(batch)
        if self.can_ask and self._num_in_vain < MAX_IN_VAIN:
            self._num_in_vain += 1
            self._held.append(batch)
            return [self._ask(self._next, now)]
        self._num_in_vain = 0
        return [*self._lose("batches are missing"), *self._take(batch)]

    def _release(self, now: float) -> list[Action]:
        """Follow what came while the answer did, up to a gap that asks again."""
        actions: list[Action] = []
        while self._held and self._asked_at is None:
            actions += self._follow(self._held.popleft(), now)
        if self._asked_at is None:
            self._num_in_vain = 0
        return actions

    def _take(self, batch: KvBatch) -> list[Action]:
        self._next = batch.sequence + 1
        self.counts.num_batches += 1
        if batch.is_snapshot or (batch.sequence == 0 and self.standing is Standing.UNKNOWN):
            self.standing = Standing.COMPLETE
        return [Apply(batch.events)]

    def _lose(self, reason: str) -> list[Action]:
        self.counts.num_clears += 1
        self.standing = Standing.PARTIAL
        return [Clear(reason)]

    def _restart(self, batch: KvBatch | None, now: float) -> list[Action]:
        """The engine's process is another one: nothing of the former counts, this batch is the first of the new."""
        self.counts.num_restarts += 1
        self._forget()
        actions: list[Action] = [Clear("the engine started anew")]
        if batch is not None:
            self.generation, self._last_live = batch.generation, batch.sequence
        if self.can_ask:
            self._held.extend([batch] if batch is not None else [])
            return [*actions, self._ask(0, now)]
        self.standing = Standing.PARTIAL
        return [*actions, *(self._take(batch) if batch is not None else [])]

    def _forget(self, *, is_waiting: bool = False) -> None:
        if not is_waiting:
            self._num_unanswered = 0
        self.standing, self.generation = Standing.UNKNOWN, None
        self._next = self._last_live = self._snapshot = self._asked_at = None
        self._num_in_vain = 0
        self._held.clear()

    def _ask(self, sequence: int, now: float) -> AskAgain:
        self._asked_at = now
        return AskAgain(sequence)

    def _hold(self, batch: KvBatch) -> None:
        if len(self._held) >= MAX_HELD:
            self._held.clear()  # the gap that this leaves is asked for again
        self._held.append(batch)

    def _is_foreign(self, generation: str | None) -> bool:
        return generation is not None and self.generation is not None and generation != self.generation
