"""Prefixes kept in host memory when the device has no room for them: which, for how long, under which handle. Pure.

What is saved is a *path*: the KV of the leading full blocks of a prefix, from its very front, copied as one piece.
Paths are named by their blocks' digests, of which the tenant's salt is part, so salts never meet. Bounded in tokens;
urgent paths outlive bulk's, and bulk's never push them out. A path that is the beginning of another is not kept beside
it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engines.core.event_log import KvEventLog
from engines.core.events import Medium
from engines.core.eviction import EvictionOrder, EvictionPolicy
from engines.core.plan import Discard, Restore, Save


@dataclass(frozen=True, slots=True)
class HostSettings:
    """How much is kept in host memory. `max_tokens` 0: nothing.

    `min_tokens`: shorter gains are not worth a copy. `save_s_per_token`, `restore_s_per_token`: seconds, measured on a
    CPU with a model of 135 million parameters (8 and 1.3 ms for 500 tokens).
    """

    max_tokens: int = 0
    min_tokens: int = 64
    save_s_per_token: float = 16e-6
    restore_s_per_token: float = 2.6e-6

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that make no sense."""
        if self.max_tokens < 0 or self.min_tokens < 1:
            raise ValueError("max_tokens of host memory must be at least 0, min_tokens at least 1")
        if min(self.save_s_per_token, self.restore_s_per_token) < 0:
            raise ValueError("copies to and from host memory cannot take less than no time")

    @staticmethod
    def max_tokens_in(num_bytes: int, bytes_per_token: int) -> int:
        """How many tokens a runner can keep in so many bytes; 0 if it keeps none (`bytes_per_token` 0)."""
        return num_bytes // bytes_per_token if bytes_per_token else 0


@dataclass(frozen=True, slots=True)
class HostStatistics:
    """Tokens. Now: `used_tokens` of `max_tokens`, in `num_paths`. Since the start, only growing: the others."""

    used_tokens: int = 0
    max_tokens: int = 0
    num_paths: int = 0
    saved_tokens: int = 0
    restored_tokens: int = 0
    discarded_tokens: int = 0


@dataclass(slots=True, eq=False)
class SavedPath:
    """The blocks saved under one handle. `num_uses`: once for the save, and once for each restore."""

    handle: int
    hashes: tuple[bytes, ...]
    is_urgent: bool
    num_uses: int = 1


class HostTier:
    """Saved paths by handle. Used from one thread. What it returns must reach the device, in that order."""

    def __init__(
        self, settings: HostSettings, block_size: int, log: KvEventLog, policy: EvictionPolicy = EvictionPolicy.LRU
    ) -> None:
        self.settings = settings
        self._block_size = block_size
        self._log = log
        self._policy = policy
        self._max_blocks = settings.max_tokens // block_size
        self._num_handles = 0  # given out ever: none is used again, not even after `clear`
        self._saved_blocks = self._restored_blocks = self._discarded_blocks = 0
        self.clear()

    def __repr__(self) -> str:
        return f"<HostTier paths={len(self._paths)} blocks={self._num_blocks} of {self._max_blocks}>"

    def clear(self) -> None:
        """Nothing is saved: the runner has forgotten everything too."""
        self._paths: dict[int, SavedPath] = {}
        self._handles_of: dict[bytes, set[int]] = {}
        self._order = EvictionOrder(self._policy)
        self._num_blocks = 0

    @property
    def is_on(self) -> bool:
        """Whether anything may be saved."""
        return self._max_blocks > 0

    def statistics(self) -> HostStatistics:
        """Counts as of now."""
        size = self._block_size
        return HostStatistics(
            used_tokens=self._num_blocks * size,
            max_tokens=self._max_blocks * size,
            num_paths=len(self._paths),
            saved_tokens=self._saved_blocks * size,
            restored_tokens=self._restored_blocks * size,
            discarded_tokens=self._discarded_blocks * size,
        )

    def depth(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of `hashes` are saved in one piece. Changes nothing."""
        # Who has a block has all before it, since names are chained.
        return bisect_left(range(len(hashes)), True, key=lambda index: hashes[index] not in self._handles_of)

    def has(self, digest: bytes) -> bool:
        """Whether this block is saved."""
        return digest in self._handles_of

    def shortest_with(self, digest: bytes) -> SavedPath:
        """The shortest saved path with this block, which is saved."""
        return min((self._paths[handle] for handle in self._handles_of[digest]), key=lambda path: len(path.hashes))

    def save(
        self,
        hashes: Sequence[bytes],
        slot: int,
        blocks: Sequence[int] = (),
        *,
        is_urgent: bool,
        kept: int | None = None,
    ) -> tuple[Discard | Save, ...]:
        """Save a path that can be hit on the device, of which `depth` is less; empty, changing nothing, without room.

        `kept`: a handle that must not go for it.
        """
        shorter = self._beginnings(hashes)
        room = self._max_blocks - self._num_blocks + sum(len(path.hashes) for path in shorter if path.handle != kept)
        spared = {kept, *(path.handle for path in shorter)}
        victims = self._victims(len(hashes) - room, spared, is_urgent=is_urgent)
        if victims is None:
            return ()
        self._num_handles += 1
        path = SavedPath(self._num_handles, tuple(hashes), is_urgent or any(path.is_urgent for path in shorter))
        self._log.copied(path.hashes, source=Medium.DEVICE, target=Medium.HOST)
        gone = [*victims, *(path for path in shorter if path.handle != kept)]
        for old in gone:
            self._forget(old)
        self._paths[path.handle] = path
        for digest in path.hashes:
            self._handles_of.setdefault(digest, set()).add(path.handle)
        self._order.add(path.handle, is_urgent=path.is_urgent)
        self._num_blocks += len(path.hashes)
        self._saved_blocks += len(path.hashes)
        save = Save(slot, path.handle, len(path.hashes) * self._block_size, tuple(blocks))
        return (*(Discard(old.handle) for old in gone), save)

    def restore(
        self, path: SavedPath, num_blocks: int, slot: int, blocks: Sequence[int] = (), *, is_urgent: bool
    ) -> Restore:
        """Copy the first `num_blocks` blocks of a saved path to an empty slot; the path counts as used."""
        path.num_uses += 1
        path.is_urgent |= is_urgent
        self._order.remove(path.handle)
        self._order.add(path.handle, path.num_uses, is_urgent=path.is_urgent)
        self._restored_blocks += num_blocks
        return Restore(path.handle, slot, num_blocks * self._block_size, tuple(blocks))

    def check_integrity(self) -> None:
        """Raise AssertionError unless bounds, order, names and the event log agree."""
        assert self._num_blocks == sum(len(path.hashes) for path in self._paths.values()), "saved blocks are miscounted"
        assert self._num_blocks <= self._max_blocks, "more is saved than may be"
        assert set(self._order) == set(self._paths), "a saved path is lost or in no order"
        handles_of: dict[bytes, set[int]] = {}
        for handle, path in self._paths.items():
            assert path.handle == handle, "a path under another's handle"
            for digest in path.hashes:
                handles_of.setdefault(digest, set()).add(handle)
        assert handles_of == self._handles_of, "names and saved paths differ"
        copies = {digest: len(handles) for digest, handles in handles_of.items()}
        assert copies == self._log.copies(Medium.HOST), "saved paths and announced ones differ"

    def _beginnings(self, hashes: Sequence[bytes]) -> list[SavedPath]:
        """Saved paths with which `hashes` begins: they would be of no use beside it."""
        handles = {handle for digest in hashes for handle in self._handles_of.get(digest, ())}
        paths = [self._paths[handle] for handle in sorted(handles)]
        return [path for path in paths if tuple(hashes[: len(path.hashes)]) == path.hashes]

    def _victims(self, num_blocks: int, spared: set[int | None], *, is_urgent: bool) -> list[SavedPath] | None:
        """The paths that go for `num_blocks` blocks (which may be none); None if those that may go are too few."""
        victims: list[SavedPath] = []
        for handle in self._order:
            if num_blocks <= 0:
                break
            path = self._paths[handle]
            if path.is_urgent and not is_urgent:
                return None
            if handle not in spared:
                victims.append(path)
                num_blocks -= len(path.hashes)
        return victims if num_blocks <= 0 else None

    def _forget(self, path: SavedPath) -> None:
        del self._paths[path.handle]
        self._order.remove(path.handle)
        self._num_blocks -= len(path.hashes)
        self._discarded_blocks += len(path.hashes)
        for digest in reversed(path.hashes):
            handles = self._handles_of[digest]
            handles.remove(path.handle)
            if not handles:
                del self._handles_of[digest]
            self._log.removed(Medium.HOST, digest)
