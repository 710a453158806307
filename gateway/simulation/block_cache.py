"""A replica's KV memory as names of blocks: who holds which, and which are cached and may be evicted, oldest first.

The rules are those of `engines.core.blocks` for one lane and LRU, on names that the trace gives in place of digests
of tokens. NOTE: a block computed twice stays nameless the second time; there it would be a second block of that name.
"""

from collections import OrderedDict
from collections.abc import Sequence

FRONT, GONE = -1, -2  # no block has such a name


class BlockCache:
    """A fixed number of blocks. Named ones can be hit; nameless ones are held by one sequence and blank afterwards.

    Holders let go of a path tail first, so what is cached has no holes.
    `changes`: (name, the one before it) of what can be hit now, `FRONT` before the first; (name, `GONE`) of what cannot
    any more; in order. None: nobody listens.
    """

    __slots__ = ("_idle", "_refs", "changes", "evictions", "num_blank", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_blank = num_blocks
        self.evictions = 0
        self.changes: list[tuple[int, int]] | None = None
        self._refs: dict[int, int] = {}  # holders of every named block
        self._idle: OrderedDict[int, None] = OrderedDict()  # named, without a holder; the next to go first

    def __repr__(self) -> str:
        return f"<BlockCache {len(self._refs)} named, {len(self._idle)} idle, {self.num_blank} blank>"

    @property
    def num_free(self) -> int:
        """Blocks that could be handed out now."""
        return self.num_blank + len(self._idle)

    @property
    def names(self) -> frozenset[int]:
        """All that can be hit."""
        return frozenset(self._refs)

    def depth(self, names: Sequence[int]) -> int:
        """Leading blocks of `names` that can be hit. Changes nothing."""
        refs = self._refs
        depth = 0
        for name in names:
            if name not in refs:
                return depth
            depth += 1
        return depth

    def num_idle_in(self, names: Sequence[int]) -> int:
        """How many of these named blocks nobody holds."""
        idle = self._idle
        return sum(1 for name in names if name in idle)

    def share(self, names: Sequence[int]) -> None:
        """One more holder of each of these, which can be hit."""
        refs, idle = self._refs, self._idle
        for name in names:
            if not refs[name]:
                del idle[name]
            refs[name] += 1

    def allocate(self, num_blocks: int) -> bool:
        """Hand out nameless blocks, evicting what must be; False, changing nothing, if there are too few."""
        missing = num_blocks - self.num_blank
        if missing <= 0:
            self.num_blank -= num_blocks
            return True
        idle, refs, changes = self._idle, self._refs, self.changes
        if missing > len(idle):
            return False
        self.num_blank = 0
        self.evictions += missing
        for _ in range(missing):
            name, _ = idle.popitem(last=False)
            del refs[name]
            if changes is not None:
                changes.append((name, GONE))
        return True

    def publish(self, name: int, before: int) -> bool:
        """Give a name to a nameless block that is held; False if another has it: then it stays nameless."""
        if name in self._refs:
            return False
        self._refs[name] = 1
        if self.changes is not None:
            self.changes.append((name, before))
        return True

    def release(self, names: Sequence[int], num_nameless: int) -> None:
        """Let go of a sequence's blocks: its named ones in its order, and so many nameless ones."""
        refs, idle = self._refs, self._idle
        self.num_blank += num_nameless
        for name in reversed(names):
            left = refs[name] - 1
            refs[name] = left
            if not left:
                idle[name] = None

    def take_changes(self) -> Sequence[tuple[int, int]]:
        """What has changed since the last call; nothing if nobody listens."""
        changes = self.changes
        if not changes:
            return ()
        self.changes = []
        return changes

    def check_integrity(self, num_nameless: int) -> None:
        """Raise AssertionError unless all blocks are accounted for. `num_nameless`: held ones."""
        assert self.num_blank + num_nameless + len(self._refs) == self.num_blocks, "a block is lost or in two places"
        assert set(self._idle) == {name for name, refs in self._refs.items() if not refs}, "idle and held differ"
