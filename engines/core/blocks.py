"""Who holds which KV block, and which blocks can be hit again: accounting only, no device.

Full blocks are named by a digest chained over all tokens before them and the tenant's salt, so that equal names mean
equal content and equal owners' salt; the digest is cryptographic, hence tokens are not compared again. A block keeps
its name when its last holder lets go, and loses it when it is handed out to another (lazy eviction). Blocks that only
bulk has held go first, so that a flood of bulk pushes out its own and not what people's conversations have warm; once
an urgent sequence has held a block it is urgent until evicted. Among equals the policy decides. Cached blocks form a
forest by parent. NOTE: holders let go of a path tail first, and an urgent block's parent is urgent too
(who holds a block holds the path to it), so a child always goes before its parent, and what is evicted is a leaf.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from engines.core.eviction import EvictionOrder, EvictionPolicy

_LITTLE_ENDIAN_U32 = array("I", (1,)).tobytes() == b"\x01\0\0\0"


def hash_block(parent: bytes, tokens: Sequence[int], salt: str = "") -> bytes:
    """sha256 over parent digest, tokens as little-endian u32, and, in a first block (`parent` empty), the salt."""
    packed = array("I", tokens)
    if not _LITTLE_ENDIAN_U32:
        packed.byteswap()
    return hashlib.sha256(parent + packed.tobytes() + (b"" if parent else salt.encode())).digest()


def extend_hashes(hashes: list[bytes], tokens: Sequence[int], block_size: int, salt: str) -> None:
    """Append to `hashes` the digests of those full blocks of `tokens` that it does not have yet."""
    for index in range(len(hashes), len(tokens) // block_size):
        parent = hashes[-1] if hashes else b""
        hashes.append(hash_block(parent, tokens[index * block_size : (index + 1) * block_size], salt))


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """Blocks by state; the three add up to the pool. `cached`: free, but can still be hit. Evictions only grow."""

    used: int
    cached: int
    blank: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Blocks handed out, and those of them that lost their cached content by it."""

    blocks: tuple[int, ...]
    evicted: tuple[int, ...]


def _nobody(digest: bytes) -> None:
    """Nobody wants to know of lost names."""


class BlockPool:
    """A fixed number of blocks with reference counts. Used from one thread.

    `on_lost`: called with the name of each block that loses it.
    """

    def __init__(
        self,
        num_blocks: int,
        policy: EvictionPolicy = EvictionPolicy.LRU,
        on_lost: Callable[[bytes], None] = _nobody,
    ) -> None:
        self._num_blocks = num_blocks
        self._refs = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._parents: list[int | None] = [None] * num_blocks
        self._by_hash: dict[bytes, list[int]] = {}
        self._is_urgent = [False] * num_blocks  # an urgent sequence has held it since it was blank
        self._num_uses = [0] * num_blocks  # sequences that have held it since it was blank
        self._free = EvictionOrder(policy, range(num_blocks), capacity=num_blocks)  # blocks with no references
        self._on_lost = on_lost
        self._num_cached_free = 0
        self._evictions = 0

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<BlockPool used={s.used} cached={s.cached} blank={s.blank}>"

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out now, cached ones included."""
        return len(self._free)

    @property
    def num_blank(self) -> int:
        """Blocks that could be handed out without losing anything."""
        return len(self._free) - self._num_cached_free

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._num_blocks

    def statistics(self) -> PoolStatistics:
        """How many blocks are in which state."""
        free, cached = len(self._free), self._num_cached_free
        return PoolStatistics(self._num_blocks - free, cached, free - cached, self._evictions)

    def match(self, hashes: Sequence[bytes]) -> tuple[int, ...]:
        """The blocks of the longest cached prefix of `hashes`, as one path of the forest. Changes nothing.

        Where several blocks have the same name the path of the deepest one counts, and of these the one most in use.
        """
        depth = 0
        while depth < len(hashes) and hashes[depth] in self._by_hash:
            depth += 1
        if depth == 0:
            return ()
        path = self.path_to(max(self._by_hash[hashes[depth - 1]], key=self._refs.__getitem__))
        assert len(path) == depth, "a cached block has no cached parent"
        return path

    def path_to(self, block: int) -> tuple[int, ...]:
        """The cached blocks from the very front of a prefix to this one, which is cached."""
        path: list[int] = []
        before: int | None = block
        while before is not None:
            path.append(before)
            before = self._parents[before]
        path.reverse()
        return tuple(path)

    def name_of(self, block: int) -> bytes | None:
        """The digest of a block that can be hit, else None."""
        return self._hashes[block]

    def num_copies(self) -> dict[bytes, int]:
        """How many blocks there are of each name."""
        return {digest: len(blocks) for digest, blocks in self._by_hash.items()}

    def is_urgent(self, block: int) -> bool:
        """Whether an urgent sequence has held the block since it was blank."""
        return self._is_urgent[block]

    def next_to_go(self, num_blocks: int) -> list[int]:
        """Those that `allocate` would hand out, in order, as far as they can be hit now."""
        return [block for block in islice(self._free, num_blocks) if self._hashes[block] is not None]

    def num_free_in(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` have no holder, so that taking them uses up free ones."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def num_freed_by(self, holders: Iterable[Sequence[int]], kept: Iterable[int]) -> int:
        """How many blocks would have no holder if these holders let go of theirs, those in `kept` not counted."""
        released = Counter(block for blocks in holders for block in blocks)
        for block in kept:
            del released[block]  # a Counter forgives what it lacks
        return sum(1 for block, num_released in released.items() if num_released == self._refs[block])

    def share(self, blocks: Iterable[int], *, is_urgent: bool) -> None:
        """Take another reference to each of `blocks`, matched just before. `is_urgent`: for a lane above bulk."""
        for block in blocks:
            if self._refs[block] == 0:
                self._free.remove(block)
                self._num_cached_free -= 1
            self._refs[block] += 1
            self._num_uses[block] += 1
            self._is_urgent[block] |= is_urgent

    def allocate(self, num_blocks: int, *, is_urgent: bool) -> Allocation | None:
        """Hand out blank blocks, evicting cached ones in their order; None, changing nothing, if there are too few."""
        if num_blocks > len(self._free):
            return None
        blocks, evicted = [], []
        for _ in range(num_blocks):
            block = self._free.pop()
            if self._hashes[block] is not None:
                self._forget_name(block)
                self._num_cached_free -= 1
                self._evictions += 1
                evicted.append(block)
            self._refs[block] = self._num_uses[block] = 1
            self._is_urgent[block] = is_urgent
            blocks.append(block)
        return Allocation(tuple(blocks), tuple(evicted))

    def publish(self, block: int, digest: bytes, parent: int | None) -> None:
        """Let `block`, full and computed, be hit under its name. `parent`: the block before it, published too."""
        assert self._refs[block] > 0, f"block {block} is published without a holder"
        assert self._hashes[block] is None, f"block {block} is published twice"
        assert parent is None or self._hashes[parent] is not None, f"block {block} has an unpublished parent"
        self._hashes[block] = digest
        self._parents[block] = parent
        self._by_hash.setdefault(digest, []).append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of a sequence's blocks, in its order; of each kind the tail stands first in line for eviction."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} is released twice"
            self._refs[block] -= 1
            if self._refs[block] > 0:
                continue
            if self._hashes[block] is None:
                self._free.add_first(block)
            else:
                self._free.add(block, self._num_uses[block], is_urgent=self._is_urgent[block])
                self._num_cached_free += 1

    def forget(self, blocks: Iterable[int]) -> None:
        """Drop the content of cached blocks that nobody holds any more (children with their parents)."""
        for block in blocks:
            assert self._refs[block] == 0, f"block {block} is forgotten while held"
            self._forget_name(block)
            self._num_cached_free -= 1
            self._free.remove(block)
            self._free.add_first(block)

    def cached_blocks(self) -> set[int]:
        """The blocks that can be hit, held or not."""
        return {block for block in range(self._num_blocks) if self._hashes[block] is not None}

    def urgent_blocks(self) -> set[int]:
        """Those of the cached blocks that an urgent sequence holds or has held."""
        return {block for block in self.cached_blocks() if self._is_urgent[block]}

    def check_integrity(self, holders: Iterable[Sequence[int]] = ()) -> None:
        """Raise AssertionError unless counts, queue and names agree with each other and with these block lists."""
        refs = [0] * self._num_blocks
        for blocks in holders:
            for block in blocks:
                refs[block] += 1
        assert refs == self._refs, "reference counts differ from what is held"
        assert set(self._free) == {b for b in range(self._num_blocks) if refs[b] == 0}, "the free queue is wrong"
        named = self.cached_blocks()
        listed = [b for blocks in self._by_hash.values() for b in blocks]
        assert len(listed) == len(named), "a block is listed twice"
        assert set(listed) == named, "names and blocks differ"
        assert self._num_cached_free == sum(1 for b in named if refs[b] == 0), "the count of cached blocks is wrong"
        place = {block: index for index, block in enumerate(self._free)}
        for block in named:
            parent = self._parents[block]
            assert parent is None or parent in named, f"block {block} has lost its parent"
            assert parent is None or refs[parent] >= refs[block] > 0 or refs[block] == 0, "a child outlives its parent"
            assert parent is None or self._is_urgent[parent] or not self._is_urgent[block], "a parent is less urgent"
            if parent in place and block in place:
                assert place[block] < place[parent], f"block {block} would be evicted after its parent"

    def _forget_name(self, block: int) -> None:
        digest = self._hashes[block]
        assert digest is not None, f"block {block} has no name to forget"
        others = self._by_hash[digest]
        others.remove(block)
        if not others:
            del self._by_hash[digest]
        self._hashes[block] = None
        self._parents[block] = None
        self._on_lost(digest)
