"""When a prefix is copied to host memory and when it comes back. Pure.

A path is saved just before the device gives up its end, or ahead of that while there is time for it; never for longer
than the step may take on account of it. It is restored at admission, where computing it again would take far longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.blocks import BlockPool
from engines.core.holders import SlotHolders
from engines.core.host_tier import HostTier, SavedPath
from engines.core.plan import MemoryOperation

_AHEAD_SHARE = 4  # a quarter of the blocks: those are saved ahead that go first, once fewer than as many are blank
_WORTH_SHARE = 8  # at least an eighth of what is copied must be new there; chosen


@dataclass(frozen=True, slots=True)
class HostHit:
    """The first `num_blocks` blocks of a saved path are those of a sequence."""

    path: SavedPath
    num_blocks: int


class HostCopies:
    """Copies between one device and one host tier. Used from one thread.

    `operations`: where what the device must do is appended. Without `holders` blocks are named in it.
    """

    def __init__(
        self,
        pool: BlockPool,
        holders: SlotHolders | None,
        host: HostTier,
        block_size: int,
        operations: list[MemoryOperation],
    ) -> None:
        self._pool = pool
        self._holders = holders
        self._host = host
        self._operations = operations
        self._block_size = block_size
        self._min_blocks = -(-host.settings.min_tokens // block_size)
        self._allowance_s = 0.0
        self._spent_s = 0.0
        self._restoring: int | None = None
        self._ahead: list[int] = []  # blocks that end paths to be saved ahead, those that go first last
        self._must_look_ahead = False

    def __repr__(self) -> str:
        return f"<HostCopies allowance_s={self._allowance_s:.3g} ahead={len(self._ahead)} {self._host!r}>"

    @property
    def is_on(self) -> bool:
        """Whether there is a host tier."""
        return self._host.is_on

    def allow(self, seconds: float) -> None:
        """Saves may take so long in the step being planned."""
        self._allowance_s = seconds if self.is_on else 0.0

    def take_spent_s(self) -> float:
        """Seconds that copies planned since the last call are believed to take."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def note_change(self) -> None:
        """Something was let go of: there may be more to save ahead."""
        self._must_look_ahead = self.is_on

    @property
    def has_more_ahead(self) -> bool:
        """Whether `save_ahead` may find something."""
        return self._must_look_ahead or bool(self._ahead)

    def find(self, hashes: Sequence[bytes], num_on_device: int, num_blocks: int) -> HostHit | None:
        """A saved beginning of `hashes` that is worth more than the `num_on_device` blocks hit on the device.

        `num_blocks`: what the sequence would get. None too where the device lacks cells for the whole saved path, which
        comes at once and is then cut.
        """
        if not self.is_on:
            return None
        depth = self._host.depth(hashes)
        if depth - num_on_device < self._min_blocks:
            return None
        path = self._host.shortest_with(hashes[depth - 1])
        if len(path.hashes) > max(num_blocks, self._pool.num_blank):
            return None
        return HostHit(path, depth)

    def hold(self, hit: HostHit | None) -> None:
        """Do not give up this path until the next call: it is about to be restored."""
        self._restoring = hit.path.handle if hit is not None else None

    def restore(self, hit: HostHit, slot: int, blocks: Sequence[int], *, is_urgent: bool) -> None:
        """Fill an empty slot."""
        named = () if self._holders is not None else blocks[: hit.num_blocks]
        self._operations.append(self._host.restore(hit.path, hit.num_blocks, slot, named, is_urgent=is_urgent))
        self._spent_s += hit.num_blocks * self._block_size * self._host.settings.restore_s_per_token

    def save_before_eviction(self, num_blocks: int) -> None:
        """The pool is about to hand out so many blocks: save what is lost by it, as far as it may and is worth it."""
        if self._allowance_s > 0:
            for block in self._pool.next_to_go(num_blocks):
                self._save(block)

    def save_before_opening(self, path: Sequence[int]) -> None:
        """A slot is about to be opened for `path`: save what the one that gives itself up holds."""
        if self._allowance_s > 0 and self._holders is not None:
            slot = self._holders.next_to_go(path)
            if slot is not None:
                self._save(self._holders.path_of(slot)[-1])

    def save_ahead(self) -> bool:
        """Save one path of those that go next, if any is worth it and memory is short; whether one was."""
        if self._must_look_ahead:
            self._must_look_ahead = False
            self._ahead = self._next_to_go()[::-1]
        while self._ahead:
            block = self._ahead.pop()
            if self._pool.name_of(block) is not None and self._save(block):
                return True
        return False

    def _next_to_go(self) -> list[int]:
        """Ends of cached paths that will be given up first, if that will be soon."""
        ends: list[int] = []
        if self._holders is not None and self._holders.num_free < 2:
            ends += [self._holders.path_of(slot)[-1] for slot in self._holders.retained()[:2]]
        share = self._pool.num_blocks // _AHEAD_SHARE
        if self._pool.num_blank < share:
            ends += self._pool.next_to_go(share)
        return ends

    def _save(self, block: int) -> bool:
        """Save the path that ends with this cached block, if that is worth it and there is time."""
        digest = self._pool.name_of(block)
        assert digest is not None, f"block {block} is saved without a name"
        if self._host.has(digest):
            return False
        blocks = self._pool.path_to(block)
        seconds = len(blocks) * self._block_size * self._host.settings.save_s_per_token
        if seconds > self._allowance_s or len(blocks) < self._min_blocks:
            return False
        hashes = [name for name in map(self._pool.name_of, blocks) if name is not None]
        num_new = len(hashes) - self._host.depth(hashes)
        if num_new < max(self._min_blocks, len(hashes) / _WORTH_SHARE):
            return False
        slot, named = self._where(block, blocks)
        is_urgent = self._pool.is_urgent(block)
        operations = self._host.save(hashes, slot, named, is_urgent=is_urgent, kept=self._restoring)
        self._operations.extend(operations)
        if operations:
            self._allowance_s -= seconds
            self._spent_s += seconds
        return bool(operations)

    def _where(self, block: int, blocks: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Slot and blocks as a `Save` has them; the slot is of no meaning where blocks are named."""
        return (0, blocks) if self._holders is None else (self._holders.slot_with(block), ())
