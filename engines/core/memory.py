"""A sequence's KV: what it hits at admission, what it gets, what it gives back. Pure accounting, one step at a time.

Joins the block pool with the slots, in both styles: with `SlotHolders` the device shares cells by slot and is told so
by operations; without, it pages by the block table of each row and a slot is a bare number. Joins both with the host
tier, and keeps the log of what can be hit where.
"""

from collections.abc import Iterable
from enum import Enum

from engines.core.admission import SchedulerSettings
from engines.core.blocks import BlockPool, PoolStatistics, extend_hashes
from engines.core.claims import PrefixClaims
from engines.core.event_log import KvEventLog
from engines.core.events import Medium
from engines.core.holders import SlotHolders
from engines.core.host_copies import HostCopies, HostHit
from engines.core.host_tier import HostStatistics, HostTier
from engines.core.plan import MemoryOperation
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
        self._operations: list[MemoryOperation] = []
        if holders is not None:
            holders.policy = settings.eviction
            self._operations = holders.operations  # one list, so that operations of both stay in order
        self.events = KvEventLog(settings.block_size)
        self._host = HostTier(settings.host, settings.block_size, self.events, settings.eviction)
        self.num_slots = settings.num_resident if holders is None else min(settings.num_resident, holders.num_slots)
        self.reset()

    def reset(self) -> None:
        """Start anew, with nothing held and nothing cached, whatever state this was in."""
        settings = self._settings
        self._pool = BlockPool(settings.num_blocks, settings.eviction, self._note_lost)
        self._free_slots = list(reversed(range(self.num_slots)))
        self._claims = PrefixClaims()
        self._operations.clear()
        if self._holders is not None:
            self._holders.clear()
        self._host.clear()
        self.copies = HostCopies(self._pool, self._holders, self._host, settings.block_size, self._operations)
        self.events.cleared()

    def statistics(self) -> PoolStatistics:
        """How many blocks are in which state."""
        return self._pool.statistics()

    def host_statistics(self) -> HostStatistics:
        """What is kept in host memory."""
        return self._host.statistics()

    def take_operations(self) -> tuple[MemoryOperation, ...]:
        """What the device must do before the next rows; handed out once."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    def place(self, sequence: Sequence, keep_free: int) -> Placement:
        """Give the sequence a slot, its prefix hit and blocks for all its tokens, leaving `keep_free` blocks free.

        A sequence waits for a prefix that another, of no lower lane, is computing: the work is done once (claims.py).
        """
        if self._claims.must_wait(sequence, sequence.awaited_hash):
            return Placement.AWAITS_PREFIX
        hittable = self._hittable(sequence)
        path = self._pool.match(hittable)
        num_blocks = self._num_blocks(len(sequence.tokens))
        hit = self.copies.find(hittable, len(path), num_blocks)
        if hit is not None and num_blocks > self._pool.num_free - keep_free:
            hit = None
        num_hit = len(path) if hit is None else hit.num_blocks
        sequence.awaited_hash = hittable[num_hit] if num_hit < len(hittable) else None
        if self._claims.must_wait(sequence, sequence.awaited_hash):
            return Placement.AWAITS_PREFIX
        if hit is not None:
            self._restore(sequence, hit, num_blocks)
        elif num_blocks - len(path) > self._pool.num_free - self._pool.num_free_in(path) - keep_free:
            return Placement.NO_ROOM
        else:
            self._share(sequence, path, num_blocks)
        self._claims.claim(sequence)
        return Placement.PLACED

    def has_room_without(self, victims: Iterable[Sequence], sequence: Sequence, keep_free: int) -> bool:
        """Whether `place` would find blocks for `sequence` if all of `victims` were released. Changes nothing."""
        path = self._pool.match(self._hittable(sequence))
        num_free = self._pool.num_free - self._pool.num_free_in(path)
        num_freed = self._pool.num_freed_by((victim.blocks for victim in victims), path)
        return self._num_blocks(len(sequence.tokens)) - len(path) <= num_free + num_freed - keep_free

    def grow(self, sequence: Sequence, num_drafts: int = 0) -> bool:
        """Blocks for all the tokens of a seated sequence, and drafts; False, changing nothing, if there are none."""
        num_tokens, num_blocks = len(sequence.tokens) + num_drafts, len(sequence.blocks)
        if num_tokens <= num_blocks * self._settings.block_size:
            return True
        return self._allocate(sequence, self._num_blocks(num_tokens) - num_blocks)

    def take_back_drafts(self, sequence: Sequence) -> None:
        """Let go of cells and blocks of drafts that did not hold: the device computed more than `num_computed`."""
        assert sequence.slot is not None, f"sequence {sequence.id} had drafts without a slot"
        if self._holders is not None:
            self._holders.shorten(sequence.slot, sequence.num_computed)
        num_blocks = self._num_blocks(len(sequence.tokens))
        if len(sequence.blocks) > num_blocks:
            self.copies.note_change()
            self._pool.release(sequence.blocks[num_blocks:])
            del sequence.blocks[num_blocks:]

    def publish(self, sequence: Sequence) -> None:
        """Let others hit the sequence's full computed blocks."""
        first, size = sequence.num_published, self._settings.block_size
        num_full = sequence.num_computed // size
        if num_full == first:
            return
        extend_hashes(sequence.hashes, sequence.tokens, size, sequence.request.salt)
        for index in range(first, num_full):
            block = sequence.blocks[index]
            self._pool.publish(block, sequence.hashes[index], sequence.blocks[index - 1] if index else None)
            if self._holders is not None and sequence.slot is not None:
                self._holders.extend(sequence.slot, block)
        hashes = sequence.hashes[first:num_full]
        self._claims.end(sequence, hashes)
        parent = sequence.hashes[first - 1] if first else None
        tokens = sequence.tokens[first * size : num_full * size]
        self.events.stored(Medium.DEVICE, hashes, parent, tokens, sequence.request.salt)
        sequence.num_published = num_full

    def release(self, sequence: Sequence) -> None:
        """Take slot and blocks back; what was published can still be hit."""
        assert sequence.slot is not None, f"sequence {sequence.id} is released without a slot"
        self._claims.end(sequence, sequence.hashes[sequence.num_published :])
        self.copies.note_change()
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
        assert self._pool.num_copies() == self.events.copies(Medium.DEVICE), "cached blocks and announced ones differ"
        self._host.check_integrity()
        self._claims.check_integrity(seated)
        slots = [sequence.slot for sequence in seated if sequence.slot is not None]
        assert len(slots) == len(seated), "a seated sequence has no slot"
        if self._holders is not None:
            self._holders.check_integrity(slots, self._pool.cached_blocks(), self._pool.urgent_blocks())
        else:
            everywhere = sorted([*slots, *self._free_slots])
            assert everywhere == list(range(self.num_slots)), "a slot is lost or in two places"

    def _hittable(self, sequence: Sequence) -> list[bytes]:
        """Names of the blocks that it may hit: at least the last token is computed, since its logits are wanted."""
        size = self._settings.block_size
        extend_hashes(sequence.hashes, sequence.tokens, size, sequence.request.salt)
        return sequence.hashes[: (len(sequence.tokens) - 1) // size]

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._settings.block_size)

    def _share(self, sequence: Sequence, path: tuple[int, ...], num_blocks: int) -> None:
        """Seat the sequence on what the device has of it."""
        self._pool.share(path, is_urgent=sequence.request.is_urgent)
        sequence.slot = self._open_slot(sequence, path)
        sequence.blocks = list(path)
        sequence.num_published = len(path)
        sequence.num_computed = len(path) * self._settings.block_size
        sequence.num_restored = 0
        assert self._allocate(sequence, num_blocks - len(path)), "the blocks counted as free are not"

    def _restore(self, sequence: Sequence, hit: HostHit, num_blocks: int) -> None:
        """Seat the sequence on a copy of what the host has of it; others can hit that from now on."""
        self.copies.hold(hit)
        sequence.slot = self._open_slot(sequence, ())
        assert self._allocate(sequence, num_blocks), "the blocks counted as free are not"
        self.copies.hold(None)
        self.copies.restore(hit, sequence.slot, sequence.blocks, is_urgent=sequence.request.is_urgent)
        sequence.num_computed = sequence.num_restored = hit.num_blocks * self._settings.block_size
        self.publish(sequence)

    def _open_slot(self, sequence: Sequence, path: tuple[int, ...]) -> int:
        if self._holders is None:
            return self._free_slots.pop()
        self.copies.save_before_opening(path)
        opened = self._holders.open(path, is_urgent=sequence.request.is_urgent)
        self._pool.forget(opened.dropped)
        return opened.slot

    def _allocate(self, sequence: Sequence, num_blocks: int) -> bool:
        if num_blocks > self._pool.num_free:
            return False
        self.copies.save_before_eviction(num_blocks)
        allocation = self._pool.allocate(num_blocks, is_urgent=sequence.request.is_urgent)
        assert allocation is not None, "the blocks counted as free are not"
        sequence.blocks.extend(allocation.blocks)
        if self._holders is not None:
            for block in allocation.evicted:
                self._pool.forget(self._holders.evict(block))
        return True

    def _note_lost(self, digest: bytes) -> None:
        self.events.removed(Medium.DEVICE, digest)
