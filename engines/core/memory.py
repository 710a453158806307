"""A sequence's KV: what it hits at admission, what it gets, what it gives back. Pure accounting, one step at a time.

Joins the block pool with the slots, in both styles: with `SlotHolders` the device shares cells by slot and is told so
by operations; without, it pages by the block table of each row and a slot is a bare number.
"""

from collections.abc import Iterable
from enum import Enum

from engines.core.admission import SchedulerSettings
from engines.core.blocks import BlockPool, PoolStatistics, extend_hashes
from engines.core.holders import SlotHolders
from engines.core.plan import Fork, Truncate
from engines.core.sequence import Sequence


class Placement(Enum):
    """What came of trying to seat a sequence. Only PLACED changes anything."""

    PLACED = "placed"
    AWAITS_PREFIX = "awaits_prefix"  # its next block is just being computed by a running sequence
    NO_ROOM = "no_room"


class KvMemory:
    """Blocks and slots of one runner, `num_slots` of which may be active at once. Used from one thread."""

    def __init__(self, settings: SchedulerSettings, holders: SlotHolders | None) -> None:
        if holders is not None and holders.block_size != settings.block_size:
            raise ValueError(f"blocks of {settings.block_size} tokens, but slot holders of {holders.block_size}")
        if holders is not None and holders.num_slots < settings.max_seqs:
            raise ValueError(f"{settings.max_seqs} seats, but {holders.num_slots} slots")
        self._settings = settings
        self._holders = holders
        self.num_slots = settings.num_resident if holders is None else min(settings.num_resident, holders.num_slots)
        self.reset()

    def reset(self) -> None:
        """Start anew, with nothing held and nothing cached, whatever state this was in."""
        self._pool = BlockPool(self._settings.num_blocks)
        self._free_slots = list(reversed(range(self.num_slots)))
        # Full blocks that a running sequence is about to compute, so that others wait for them (see `place`).
        self._claims: dict[bytes, Sequence] = {}
        if self._holders is not None:
            self._holders.clear()

    def statistics(self) -> PoolStatistics:
        """How many blocks are in which state."""
        return self._pool.statistics()

    def take_operations(self) -> tuple[Fork | Truncate, ...]:
        """What the device must do before the next rows."""
        return self._holders.take_operations() if self._holders is not None else ()

    def place(self, sequence: Sequence, keep_free: int) -> Placement:
        """Give the sequence a slot, its prefix hit and blocks for all its tokens, leaving `keep_free` blocks free.

        At least the last token is left to compute, since its logits are wanted. A sequence waits for a prefix that
        another, of no lower lane, is computing: the work is done once. It cannot wait in vain: a claim ends when its
        block is published or its owner leaves its seat, and an owner gets tokens in every step that has any over.
        """
        if self._is_claimed(sequence.awaited_hash, sequence):
            return Placement.AWAITS_PREFIX
        size = self._settings.block_size
        extend_hashes(sequence.hashes, sequence.tokens, size, sequence.request.salt)
        hittable = sequence.hashes[: (len(sequence.tokens) - 1) // size]
        path = self._pool.match(hittable)
        sequence.awaited_hash = hittable[len(path)] if len(path) < len(hittable) else None
        if self._is_claimed(sequence.awaited_hash, sequence):
            return Placement.AWAITS_PREFIX
        num_missing = self._num_blocks(len(sequence.tokens)) - len(path)
        if num_missing > self._pool.num_free - self._pool.num_free_in(path) - keep_free:
            return Placement.NO_ROOM
        self._pool.share(path, is_urgent=sequence.request.is_urgent)
        sequence.slot = self._open_slot(sequence, path)
        sequence.blocks = list(path)
        sequence.num_published = len(path)
        sequence.num_computed = len(path) * size
        assert self._allocate(sequence, num_missing), "the blocks counted as free are not"
        self._claim(sequence)
        return Placement.PLACED

    def has_room_without(self, victims: Iterable[Sequence], sequence: Sequence, keep_free: int) -> bool:
        """Whether `place` would find blocks for `sequence` if all of `victims` were released. Changes nothing."""
        size = self._settings.block_size
        extend_hashes(sequence.hashes, sequence.tokens, size, sequence.request.salt)
        path = self._pool.match(sequence.hashes[: (len(sequence.tokens) - 1) // size])
        num_free = self._pool.num_free - self._pool.num_free_in(path)
        num_freed = self._pool.num_freed_by((victim.blocks for victim in victims), path)
        return self._num_blocks(len(sequence.tokens)) - len(path) <= num_free + num_freed - keep_free

    def grow(self, sequence: Sequence) -> bool:
        """Blocks for all the tokens of a seated sequence; False, changing nothing, if there are none."""
        num_missing = self._num_blocks(len(sequence.tokens)) - len(sequence.blocks)
        return num_missing == 0 or self._allocate(sequence, num_missing)

    def publish(self, sequence: Sequence) -> None:
        """Let others hit the sequence's full computed blocks."""
        num_full = sequence.num_computed // self._settings.block_size
        if num_full == sequence.num_published:
            return
        extend_hashes(sequence.hashes, sequence.tokens, self._settings.block_size, sequence.request.salt)
        for index in range(sequence.num_published, num_full):
            block, digest = sequence.blocks[index], sequence.hashes[index]
            self._pool.publish(block, digest, sequence.blocks[index - 1] if index else None)
            if self._holders is not None and sequence.slot is not None:
                self._holders.extend(sequence.slot, block)
            self._unclaim(sequence, digest)
        sequence.num_published = num_full

    def release(self, sequence: Sequence) -> None:
        """Take slot and blocks back; what was published can still be hit."""
        assert sequence.slot is not None, f"sequence {sequence.id} is released without a slot"
        for digest in sequence.hashes[sequence.num_published :]:
            self._unclaim(sequence, digest)
        self._pool.release(sequence.blocks)
        if self._holders is not None:
            self._holders.retain(sequence.slot)
        else:
            self._free_slots.append(sequence.slot)
        self.forget(sequence)

    @staticmethod
    def forget(sequence: Sequence) -> None:
        """The sequence holds nothing (any more)."""
        sequence.slot = None
        sequence.blocks = []
        sequence.num_computed = 0
        sequence.num_published = 0
        sequence.awaited_hash = None

    def check_integrity(self, seated: Iterable[Sequence]) -> None:
        """Raise AssertionError unless blocks, slots and claims are exactly those of these sequences."""
        seated = list(seated)
        self._pool.check_integrity([sequence.blocks for sequence in seated])
        assert all(owner in seated for owner in self._claims.values()), "a claim outlives its owner's seat"
        slots = [sequence.slot for sequence in seated if sequence.slot is not None]
        assert len(slots) == len(seated), "a seated sequence has no slot"
        if self._holders is not None:
            self._holders.check_integrity(slots, self._pool.cached_blocks(), self._pool.urgent_blocks())
        else:
            everywhere = sorted([*slots, *self._free_slots])
            assert everywhere == list(range(self.num_slots)), "a slot is lost or in two places"

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._settings.block_size)

    def _open_slot(self, sequence: Sequence, path: tuple[int, ...]) -> int:
        if self._holders is None:
            return self._free_slots.pop()
        opened = self._holders.open(path, is_urgent=sequence.request.is_urgent)
        self._pool.forget(opened.dropped)
        return opened.slot

    def _allocate(self, sequence: Sequence, num_blocks: int) -> bool:
        allocation = self._pool.allocate(num_blocks, is_urgent=sequence.request.is_urgent)
        if allocation is None:
            return False
        sequence.blocks.extend(allocation.blocks)
        if self._holders is not None:
            for block in allocation.evicted:
                self._pool.forget(self._holders.evict(block))
        return True

    def _claim(self, sequence: Sequence) -> None:
        for digest in sequence.hashes[sequence.num_published :]:
            owner = self._claims.get(digest)
            if owner is None or owner.request.lane.rank > sequence.request.lane.rank:
                self._claims[digest] = sequence

    def _unclaim(self, sequence: Sequence, digest: bytes) -> None:
        if self._claims.get(digest) is sequence:
            del self._claims[digest]

    def _is_claimed(self, digest: bytes | None, sequence: Sequence) -> bool:
        """Whether a sequence of no lower lane is computing this block. Waiting for a lower lane could take long."""
        owner = self._claims.get(digest) if digest is not None else None
        return owner is not None and owner.request.lane.rank <= sequence.request.lane.rank
