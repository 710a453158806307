"""Which KV slots hold which cached blocks, for engines that share cells by slot (`seq_cp`), not by block table.

Decides the `Fork` and `Truncate` operations that make the device agree with the block pool. A slot is free, active (a
seated sequence) or retained (its sequence is over; what it has cached stays until evicted). A slot's *path* is the list
of published blocks at its front. What must hold at all times:

- a cached block is on the path of at least one slot, and a slot that holds a block holds its parents before it;
  hence a fork from any holder of a path's last block is right, and forks share cells exactly where paths share blocks;
- a retained slot holds its path and nothing more, and something that no other slot holds; an active slot holds its
  path and cells of blocks that its sequence owns alone;
- hence cells in use are covered by blocks that the pool counts, and salts, which are part of block names, never mix.

Where a retained slot must give itself up, one that only bulk has used goes first. A slot is *urgent* from when an
urgent sequence opens it, or from when an urgent slot lets go of blocks that it holds too, until it is free.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from engines.core.eviction import EvictionOrder, EvictionPolicy
from engines.core.plan import Fork, MemoryOperation, Truncate


@dataclass(frozen=True, slots=True)
class Opened:
    """A slot for a new sequence, holding its hit already, and cached blocks that no slot holds any more."""

    slot: int
    dropped: tuple[int, ...]


class SlotHolders:
    """The slots of one runner. Used from one thread; `operations` gather until they are taken.

    Whoever adds operations of other kinds adds them there, so that all of them stay in order.
    """

    def __init__(self, num_slots: int, block_size: int = 16) -> None:
        self.num_slots = num_slots
        self.block_size = block_size
        self.operations: list[MemoryOperation] = []
        self.policy = EvictionPolicy.LRU  # of retained slots; heeded from the next `clear` on
        self.clear()

    def __repr__(self) -> str:
        active = self.num_slots - len(self._free) - len(self._retained)
        return f"<SlotHolders active={active} retained={len(self._retained)} free={len(self._free)}>"

    def clear(self) -> None:
        """Every slot is free and empty: the runner has forgotten everything too."""
        self._free = list(reversed(range(self.num_slots)))
        self._paths: list[list[int]] = [[] for _ in range(self.num_slots)]
        self._retained = EvictionOrder(self.policy, capacity=self.num_slots)
        self._is_urgent = [False] * self.num_slots
        self._num_uses = [0] * self.num_slots  # sequences that have sat in it or were forked from it since it was free
        self._slots_of: dict[int, set[int]] = {}
        self.operations.clear()

    def take_operations(self) -> tuple[MemoryOperation, ...]:
        """What the device must do before the next rows, in order; handed out once."""
        operations = tuple(self.operations)
        self.operations.clear()
        return operations

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    def retained(self) -> tuple[int, ...]:
        """Slots of sequences that are over, in the order in which they would give themselves up."""
        return tuple(self._retained)

    def path_of(self, slot: int) -> tuple[int, ...]:
        """The cached blocks at the front of a slot."""
        return tuple(self._paths[slot])

    def slot_with(self, block: int) -> int:
        """A slot that holds this cached block, hence all before it."""
        return min(self._slots_of[block])

    def next_to_go(self, path: Sequence[int] = ()) -> int | None:
        """The retained slot that would give itself up if `open(path)` were called; None if none would."""
        source = self._best_source(path)
        if self._free or (source is not None and self._is_all_of(source, path)):
            return None
        return next((slot for slot in self._retained if slot != source), source)

    def open(self, path: Sequence[int], *, is_urgent: bool) -> Opened:
        """A slot that holds `path`, which some slot holds (or which is empty), for a sequence to go on from there.

        A retained slot that holds just this is taken over as it is; else a free one gets a fork. Without a free slot
        the next of the retained ones gives itself up, the source of the fork last of all. `is_urgent`: the sequence is
        of a lane above bulk.
        """
        opened = self._open(path)
        self._is_urgent[opened.slot] |= is_urgent
        self._num_uses[opened.slot] += 1
        return opened

    def _open(self, path: Sequence[int]) -> Opened:
        source = self._best_source(path)
        if source is not None and self._is_all_of(source, path):
            self._retained.remove(source)
            return Opened(source, ())
        dropped: tuple[int, ...] = ()
        if not self._free:
            victim = next((slot for slot in self._retained if slot != source), None)
            if victim is None:
                assert source is not None, "more sequences than slots"
                assert source in self._retained, "more sequences than slots"
                self._retained.remove(source)
                return Opened(source, self._cut(source, len(path)))
            dropped = self._free_up(victim)
        slot = self._free.pop()
        if source is not None:
            self.operations.append(Fork(source, slot, len(path) * self.block_size))
            for block in path:
                self.extend(slot, block)
            self._num_uses[source] += 1
            if source in self._retained:
                self._retained.remove(source)
                self._retain(source)
        return Opened(slot, dropped)

    def extend(self, slot: int, block: int) -> None:
        """The sequence in `slot` has published its next block."""
        self._paths[slot].append(block)
        self._slots_of.setdefault(block, set()).add(slot)

    def shorten(self, slot: int, num_tokens: int) -> None:
        """The sequence in `slot` goes on behind its first `num_tokens`, which include its path."""
        assert num_tokens >= len(self._paths[slot]) * self.block_size, f"slot {slot} is cut inside its path"
        self.operations.append(Truncate(slot, num_tokens))

    def retain(self, slot: int) -> None:
        """The sequence in `slot` is over: keep what can be hit and only this slot holds, else free the slot."""
        path = self._paths[slot]
        if not path or self._is_redundant(slot):
            self._free_up(slot)
        else:
            self._truncate(slot, len(path))
            self._retain(slot)

    def evict(self, block: int) -> tuple[int, ...]:
        """The pool has evicted `block`: nobody keeps it. Returns further cached blocks that no slot holds any more."""
        dropped: list[int] = []
        for slot in sorted(self._slots_of.get(block, ())):
            assert slot in self._retained, f"block {block} is evicted under an active sequence"
            dropped.extend(self._cut(slot, self._paths[slot].index(block)))
            if not self._paths[slot] or self._is_redundant(slot):
                self._free_up(slot)
        return tuple(other for other in dropped if other != block)

    def check_integrity(
        self, active: Sequence[int], cached: AbstractSet[int], urgent: AbstractSet[int] = frozenset()
    ) -> None:
        """Raise AssertionError unless slots are accounted for and hold exactly the pool's cached blocks.

        `urgent`: those of them that are on an urgent slot at least.
        """
        everywhere = sorted([*active, *self._retained, *self._free])
        assert everywhere == list(range(self.num_slots)), "a slot is lost or in two places"
        slots_of: dict[int, set[int]] = {}
        for slot, path in enumerate(self._paths):
            for block in path:
                slots_of.setdefault(block, set()).add(slot)
        assert slots_of == self._slots_of, "paths and holders differ"
        assert set(slots_of) == cached, "holders and the pool's cached blocks differ"
        assert not any(self._paths[slot] or self._is_urgent[slot] for slot in self._free), "a free slot is not empty"
        kept = {block for slot, path in enumerate(self._paths) if self._is_urgent[slot] for block in path}
        assert urgent <= kept, "what urgent sequences have held is on slots that go as bulk's"
        assert all(self._paths[slot] for slot in self._retained), "a retained slot holds nothing"

    def _best_source(self, path: Sequence[int]) -> int | None:
        """A holder of all of `path`; if there is one, a retained slot that holds nothing else."""
        if not path:
            return None
        holders = self._slots_of[path[-1]]
        exact = (slot for slot in holders if slot in self._retained and len(self._paths[slot]) == len(path))
        return next(exact, min(holders))

    def _is_all_of(self, slot: int, path: Sequence[int]) -> bool:
        """Whether a retained slot holds `path`, which it begins with, and nothing else."""
        return slot in self._retained and len(self._paths[slot]) == len(path)

    def _retain(self, slot: int) -> None:
        self._retained.add(slot, self._num_uses[slot], is_urgent=self._is_urgent[slot])

    def _is_redundant(self, slot: int) -> bool:
        return len(self._slots_of[self._paths[slot][-1]]) > 1

    def _free_up(self, slot: int) -> tuple[int, ...]:
        dropped = self._cut(slot, 0)
        if slot in self._retained:
            self._retained.remove(slot)
        self._is_urgent[slot] = False
        self._num_uses[slot] = 0
        self._free.append(slot)
        return dropped

    def _cut(self, slot: int, num_blocks: int) -> tuple[int, ...]:
        """Keep the first `num_blocks` of the slot's path. Returns the blocks that nobody holds now, tail first."""
        path = self._paths[slot]
        dropped = []
        owes = self._is_urgent[slot]
        while len(path) > num_blocks:
            block = path.pop()
            others = self._slots_of[block]
            others.discard(slot)
            if not others:
                del self._slots_of[block]
                dropped.append(block)
            elif owes:
                self._hand_down(others)
                owes = False  # who holds this block holds all before it
        self._truncate(slot, num_blocks)
        return tuple(dropped)

    def _hand_down(self, others: set[int]) -> None:
        """An urgent slot lets go of a block that these hold too: one of them shall be urgent."""
        if any(self._is_urgent[slot] for slot in others):
            return
        heir = min(others)
        self._is_urgent[heir] = True
        if heir in self._retained:
            self._retained.remove(heir)
            self._retain(heir)

    def _truncate(self, slot: int, num_blocks: int) -> None:
        last = self.operations[-1] if self.operations else None
        if isinstance(last, Truncate) and last.slot == slot:
            self.operations.pop()  # a slot losing block after block is told once
        self.operations.append(Truncate(slot, num_blocks * self.block_size))
