"""The predicted cache of one replica: which borders of which prompts it should still hold.

A least-recently-used list like the engine's own, filled with what was routed there. A prediction, never the truth:
it knows nothing of what the engine evicted for other reasons. One list for all tenants of the replica, as in the
engine: a tenant that floods a replica pushes others out of both alike, and of nothing else.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from cache_affinity.prefix import PrefixKey
from cache_affinity.ratio import DEFAULT_BYTES_PER_TOKEN

MIN_NODES, MAX_NODES = 1024, 262_144  # borders in one replica's shadow; about 300 bytes of memory each
_BYTES_PER_NODE = 64  # shorter messages than this, on average, hit the bound on borders first


def bounds(kv_tokens: int) -> tuple[int, int]:
    """(bytes, borders) that the predicted cache of a replica with `kv_tokens` of KV may hold."""
    capacity_bytes = max(1, round(kv_tokens * DEFAULT_BYTES_PER_TOKEN))
    return capacity_bytes, min(max(capacity_bytes // _BYTES_PER_NODE, MIN_NODES), MAX_NODES)


@dataclass(frozen=True, slots=True)
class ShadowStatistics:
    """`num_evicted`: borders dropped for room or age since the start."""

    num_nodes: int
    held_bytes: int
    num_evicted: int


class Insertion(NamedTuple):
    """One `insert`, for `withdraw`. `num_known`: leading borders that were held before; the rest are its own."""

    hashes: tuple[int, ...]
    num_known: int
    number: int


class ShadowIndex:
    """Borders of one replica, least recently routed first. Never more than `max_nodes` borders or `capacity_bytes`.

    An insert touches a prompt's borders from its tail to its head. So a border is always younger than every border
    behind it, and eviction, oldest first, takes tails before heads: a held border's whole prefix is held. There are
    no holes, which is what lets `hit_bytes` search by halving.
    """

    __slots__ = ("_held", "_holds", "_num_evicted", "_num_inserts", "capacity_bytes", "held_bytes", "max_nodes")

    def __init__(self, capacity_bytes: int, max_nodes: int) -> None:
        if capacity_bytes <= 0 or max_nodes <= 0:
            raise ValueError("a shadow index needs room for at least one byte and one border")
        self.capacity_bytes = capacity_bytes
        self.max_nodes = max_nodes
        self.held_bytes = 0
        self._held: OrderedDict[int, tuple[int, float, int]] = OrderedDict()  # (bytes since its parent, touched at, by)
        self._holds = self._held.__contains__
        self._num_evicted = 0
        self._num_inserts = 0

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
        return bisect_left(range(num_held), True, key=lambda place: held[hashes[place]][1] < since)

    def insert(self, key: PrefixKey, now: float) -> Insertion:
        """Note that the replica was given this prompt; evicts what no longer fits, oldest first.

        A prompt larger than the capacity keeps its head. Costs one step per border, amortised.
        """
        held, hashes, sizes = self._held, key.hashes, key.sizes
        self._num_inserts = number = self._num_inserts + 1
        num_known = len(hashes)
        for index in range(len(hashes) - 1, -1, -1):
            border = hashes[index]
            part = sizes[index] - sizes[index - 1] if index else sizes[0]
            if border in held:
                held.move_to_end(border)
            else:
                self.held_bytes += part
                num_known = index
            held[border] = (part, now, number)
        while self.held_bytes > self.capacity_bytes or len(held) > self.max_nodes:
            self._evict()
        return Insertion(hashes, num_known, number)

    def withdraw(self, insertion: Insertion) -> int:
        """How many borders were dropped because the prompt was never read: those it added and nobody touched since.

        From its tail, up to the first that another prompt shares: so there are no holes.
        """
        hashes, num_known, number = insertion
        num_held = len(self._held)
        for border in reversed(hashes[num_known:]):
            found = self._held.get(border)
            if found is None:
                continue  # evicted meanwhile
            if found[2] != number:
                break
            del self._held[border]
            self.held_bytes -= found[0]
        return num_held - len(self._held)

    def expire(self, before: float) -> int:
        """How many borders, not routed to since `before`, were dropped: memory falls after a busy time."""
        held = self._held
        num_held = len(held)
        while held and next(iter(held.values()))[1] < before:
            self._evict()
        num_dropped = num_held - len(held)
        if num_dropped > len(held):  # a table never shrinks by itself
            self._held = OrderedDict(held)
            self._holds = self._held.__contains__
        return num_dropped

    def resize(self, capacity_bytes: int, max_nodes: int) -> None:
        """Take new bounds at once."""
        self.capacity_bytes = capacity_bytes
        self.max_nodes = max_nodes
        while self.held_bytes > capacity_bytes or len(self._held) > max_nodes:
            self._evict()

    def forget(self) -> None:
        """The replica lost its cache: hold nothing."""
        self._held.clear()
        self.held_bytes = 0

    def statistics(self) -> ShadowStatistics:
        """Sizes for the metrics."""
        return ShadowStatistics(len(self._held), self.held_bytes, self._num_evicted)

    def _evict(self) -> None:
        _, (part, _, _) = self._held.popitem(last=False)
        self.held_bytes -= part
        self._num_evicted += 1
