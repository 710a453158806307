"""The predicted cache of one replica: which borders of which prompts it should still hold.

A least-recently-used list like the engine's own, filled with what was routed there. A prediction, never the truth:
it knows nothing of what the engine evicted for other reasons. One list for all tenants of the replica, as in the
engine: a tenant that floods a replica pushes others out of both alike, and of nothing else.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from cache_affinity.capacity import CapacityFactor, Remembered
from cache_affinity.holders import Holders
from cache_affinity.prefix import PrefixKey
from cache_affinity.ratio import DEFAULT_BYTES_PER_TOKEN

MIN_NODES, MAX_NODES = 1024, 262_144  # borders in one replica's shadow; about 300 bytes of memory each
_BYTES_PER_NODE = 64  # shorter messages than this, on average, hit the bound on borders first
START_REUSE = 0.1  # chosen: of what is evicted this share is taken to be asked for again, until that was seen


def bounds(kv_tokens: int) -> tuple[int, int]:
    """(bytes, borders) that the predicted cache of a replica with `kv_tokens` of KV may hold."""
    capacity_bytes = max(1, round(kv_tokens * DEFAULT_BYTES_PER_TOKEN))
    return capacity_bytes, min(max(capacity_bytes // _BYTES_PER_NODE, MIN_NODES), MAX_NODES)


@dataclass(frozen=True, slots=True)
class ShadowStatistics:
    """`num_evicted`: borders dropped for room or age since the start. `num_ghosts`: evicted ones still remembered."""

    num_nodes: int
    held_bytes: int
    num_evicted: int
    num_ghosts: int = 0


class Insertion(NamedTuple):
    """One `insert`, for `withdraw`. `num_known`: leading borders that were held before; the rest are its own.

    `remembered`: what was known of the prompt before.
    """

    hashes: tuple[int, ...]
    num_known: int
    number: int
    remembered: Remembered


class ShadowIndex:
    """Borders of one replica, least recently routed first. Never more than `max_nodes` borders or `capacity_bytes`.

    An insert touches a prompt's borders from its tail to its head. So a border is always younger than every border
    behind it, and eviction, oldest first, takes tails before heads: a held border's whole prefix is held. There are
    no holes, which is what lets `hit_bytes` search by halving.

    What is evicted is remembered for as much again (`ghosts`): held nowhere, it tells whether the capacity is too
    small. `factor`: on the capacity, learned outside; taken in at the next insert. `reuse`: of borders that grew older
    than half of the oldest's age, the share of bytes that was asked for again before it was evicted, 0..1.
    """

    __slots__ = (
        "_bit", "_factor", "_ghost_bytes", "_ghosts", "_held", "_holders", "_holds", "_nominal_bytes", "_num_evicted",
        "_num_inserts", "_old_lost", "_old_reused", "capacity_bytes", "held_bytes", "max_nodes", "reuse",
    )  # fmt: skip

    def __init__(
        self,
        capacity_bytes: int,
        max_nodes: int,
        *,
        name: str = "",
        holders: Holders | None = None,
        factor: CapacityFactor | None = None,
    ) -> None:
        if capacity_bytes <= 0 or max_nodes <= 0:
            raise ValueError("a shadow index needs room for at least one byte and one border")
        self._nominal_bytes = self.capacity_bytes = capacity_bytes
        self.max_nodes = max_nodes
        self.held_bytes = 0
        self._factor = factor or CapacityFactor()
        self._holders = holders if holders is not None else Holders()
        self._bit = self._holders.bit_of(name)
        self._held: OrderedDict[int, tuple[int, float, int]] = OrderedDict()  # (bytes since its parent, touched at, by)
        self._holds = self._held.__contains__
        self._ghosts: OrderedDict[int, int] = OrderedDict()  # bytes since its parent
        self._ghost_bytes = 0
        self._num_evicted = 0
        self._num_inserts = 0
        self._start_reuse()

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<ShadowIndex {len(self._held)} borders, {self.held_bytes} of {self.capacity_bytes} bytes>"

    def hit_bytes(self, key: PrefixKey) -> int:
        """Bytes of the longest leading part of the prompt that is predicted to be held. Changes nothing."""
        num_held = self.num_held(key)
        return key.sizes[num_held - 1] if num_held else 0

    def num_held(self, key: PrefixKey, guess: int = 0) -> int:
        """Leading borders of the prompt that are predicted to be held. Changes nothing.

        `guess`: an answer worth trying first, such as another replica's: many hold just the same shared head.
        """
        tail_first, holds = key.tail_first, self._holds
        if not tail_first or not holds(tail_first[-1]):  # the common case: nothing of it
            return 0
        num_borders = len(tail_first)
        is_tried = 0 < guess <= num_borders and holds(tail_first[-guess])
        if is_tried and (guess == num_borders or not holds(tail_first[-guess - 1])):
            return guess
        return num_borders - bisect_left(tail_first, True, key=holds)  # False... then True...: there are no holes

    def num_fresh(self, key: PrefixKey, num_held: int, since: float) -> int:
        """How many of the `num_held` leading borders were routed there at `since` or later. Changes nothing.

        A border is touched whenever one behind it is, so the fresh ones come first.
        """
        hashes, held = key.hashes, self._held
        if held[hashes[0]][1] < since:
            return 0
        return bisect_left(range(num_held), True, key=lambda place: held[hashes[place]][1] < since)

    def insert(self, key: PrefixKey, now: float) -> Insertion:
        """Note that the replica was given this prompt; evicts what no longer fits, oldest first.

        A prompt larger than the capacity keeps its head. Costs one step per border, amortised.
        """
        held, hashes, sizes, masks, bit = self._held, key.hashes, key.sizes, self._holders.masks, self._bit
        self._num_inserts = number = self._num_inserts + 1
        num_known = num_remembered = len(hashes)
        oldest_at = next(iter(held.values()))[1] if held else now
        old_before, last_at, reused = (oldest_at + now) / 2, now, 0
        for index in range(len(hashes) - 1, -1, -1):
            border = hashes[index]
            part = sizes[index] - sizes[index - 1] if index else sizes[0]
            known = held.get(border)
            if known is None:
                self.held_bytes += part
                masks[border] = masks.get(border, 0) | bit
                num_known, last_at = index, now
                if self._ghosts.pop(border, None) is None:
                    num_remembered = index
                else:
                    self._ghost_bytes -= part
            else:
                held.move_to_end(border)
                touched_at = known[1]
                last_at = min(last_at, touched_at)
                if touched_at < old_before:
                    reused += part
            held[border] = (part, now, number)
        self._old_reused += reused
        self._fit()
        span_s = now - oldest_at
        remembered = Remembered(
            sizes[num_known - 1] if num_known else 0,
            sizes[num_remembered - 1] if num_remembered else 0,
            (now - last_at) / span_s if span_s > 0 else 0.0,
        )
        return Insertion(hashes, num_known, number, remembered)

    def withdraw(self, insertion: Insertion) -> int:
        """How many borders were dropped because the prompt was never read: those it added and nobody touched since.

        From its tail, up to the first that another prompt shares: so there are no holes.
        """
        num_held = len(self._held)
        for border in reversed(insertion.hashes[insertion.num_known :]):
            found = self._held.get(border)
            if found is None:
                continue  # evicted meanwhile
            if found[2] != insertion.number:
                break
            del self._held[border]
            self._holders.drop(border, self._bit)
            self.held_bytes -= found[0]
        return num_held - len(self._held)

    @property
    def factor(self) -> CapacityFactor:
        """On its capacity; shared by all of its kind."""
        return self._factor

    def learn_capacity(self, insertion: Insertion, reported_bytes: int | None, total_bytes: int) -> None:
        """Take in what the engine had in its cache of a prompt, from the start. None: it said nothing."""
        self._factor.observe(insertion.remembered, reported_bytes, total_bytes)

    def lost_bytes(self, new_bytes: int) -> float:
        """Bytes that would be asked for again of what `new_bytes` of a new prompt would push out; 0 with room left."""
        excess = min(self.held_bytes + new_bytes - self.capacity_bytes, new_bytes)
        return excess * self.reuse if excess > 0 else 0.0

    def expire(self, before: float) -> int:
        """How many borders, not routed to since `before`, were dropped: memory falls after a busy time."""
        held = self._held
        num_held = len(held)
        while held and next(iter(held.values()))[1] < before:
            self._evict(is_for_room=False)
        num_dropped = num_held - len(held)
        if num_dropped:
            self._forget_ghosts()  # they are older still
        if num_dropped > len(held):  # a table never shrinks by itself
            self._held = OrderedDict(held)
            self._holds = self._held.__contains__
            self._holders.trim()
        return num_dropped

    def resize(self, capacity_bytes: int, max_nodes: int, factor: CapacityFactor | None = None) -> None:
        """Take new bounds at once; what was learned of the capacity stays, as a factor. None: the one it has."""
        self._nominal_bytes = capacity_bytes
        self.max_nodes = max_nodes
        self._factor = factor or self._factor
        self._fit()

    def forget(self) -> None:
        """The replica lost its cache: hold nothing."""
        for border in self._held:
            self._holders.drop(border, self._bit)
        self._held.clear()
        self.held_bytes = 0
        self._forget_ghosts()
        self._start_reuse()

    def leave(self) -> None:
        """The replica is gone for good."""
        self.forget()
        self._holders.leave(self._bit)

    def statistics(self) -> ShadowStatistics:
        """Sizes for the metrics."""
        return ShadowStatistics(len(self._held), self.held_bytes, self._num_evicted, len(self._ghosts))

    def _fit(self) -> None:
        """Evict down to the bounds, and learn from it how much of what is old is asked for again."""
        self.capacity_bytes = max(1, int(self._nominal_bytes * self._factor.value))
        while self.held_bytes > self.capacity_bytes or len(self._held) > self.max_nodes:
            self._evict(is_for_room=True)
        while self._ghost_bytes > self.capacity_bytes or len(self._ghosts) > self.max_nodes:
            self._ghost_bytes -= self._ghosts.popitem(last=False)[1]
        if self._old_lost + self._old_reused > self.capacity_bytes:
            self._old_lost /= 2
            self._old_reused /= 2
        self.reuse = self._old_reused / (self._old_reused + self._old_lost)

    def _evict(self, *, is_for_room: bool) -> None:
        border, (part, _, _) = self._held.popitem(last=False)
        self._holders.drop(border, self._bit)
        self.held_bytes -= part
        self._num_evicted += 1
        if is_for_room:
            self._ghosts[border] = part
            self._ghost_bytes += part
            self._old_lost += part

    def _forget_ghosts(self) -> None:
        self._ghosts.clear()
        self._ghost_bytes = 0

    def _start_reuse(self) -> None:
        weight = self._nominal_bytes / 4
        self._old_reused, self._old_lost = START_REUSE * weight, (1 - START_REUSE) * weight
        self.reuse = START_REUSE
