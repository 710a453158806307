"""The exact index: which blocks each replica holds, as its engine tells by events.

Inverted: our name of a block leads to a mask with one bit for each replica, so that one look-up a block answers for the
whole fleet, and a running AND finds how far each replica goes. Beside it each replica has a table from its engine's
hashes to our names, for parents and removals. Bounded: beyond `max_blocks` the oldest entries of the replica with most
go first, which can only make it look colder. Knows no sockets and no order of batches: see `event_stream`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from cache_affinity.holding import Holding
from cache_affinity.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvEvent, TokenChain, names, root
from cache_affinity.masks import bits_of, free_bit, unset

MAX_BLOCKS = 2_000_000  # about 300 MB when no two replicas hold the same
HOST_CREDIT = 0.75  # chosen: copying a block back from the host costs far less than computing it, but something
_DROP_SHARE = 64  # of a full index this part is dropped at once: one by one would walk over the dropped again and again


class ExactHits(NamedTuple):
    """Leading tokens of one prompt that each known replica holds. `partial`: they may hold more than is known."""

    tokens: dict[str, int]
    partial: frozenset[str]


NO_HITS = ExactHits({}, frozenset())


@dataclass(frozen=True, slots=True)
class ExactStatistics:
    """`num_blocks`: blocks that replicas hold, each counted at each. `num_orphans`: stored behind an unknown parent."""

    num_blocks: int
    num_names: int
    num_dropped: int
    num_orphans: int


class ExactIndex:
    """What all replicas that publish events hold. Changed by `apply`, `mark`, `clear` and `forget` alone.

    `num_dropped`: blocks dropped for room since the start; only grows.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS, host_credit: float = HOST_CREDIT) -> None:
        self.max_blocks = max_blocks
        self._host_credit = host_credit
        self._device: dict[int, int] = {}  # our name of a block to the replicas that hold it there
        self._host: dict[int, int] = {}
        self._holdings: dict[str, Holding] = {}
        self._by_bit: dict[int, Holding] = {}
        self._num_blocks = 0
        self.num_dropped = 0
        self._num_orphans = 0
        self._sizes: dict[int, int] = {}  # block size to the known replicas that have it
        self._zeros: dict[str, int] = {}
        self._partial: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self._num_blocks

    def __repr__(self) -> str:
        return f"<ExactIndex {self._num_blocks} blocks, {len(self._device)} names, {len(self._holdings)} replicas>"

    @property
    def is_known_of_any(self) -> bool:
        """Whether what some replica holds may be believed."""
        return bool(self._zeros)

    def hits(self, chain: TokenChain) -> ExactHits:
        """How many leading tokens each known replica holds. One look-up a block for all of them."""
        if not self._zeros:
            return NO_HITS
        found = self._zeros.copy()
        look = self._look_in_both if self._host else self._look
        for block_size, members in self._sizes.items():
            look(chain.names(block_size), block_size, members, found)
        return ExactHits(found, self._partial)

    def apply(self, replica: str, events: Iterable[KvEvent]) -> int:
        """Take in what a replica's engine has told, in order; how many blocks came or went. Never raises."""
        holding = self._holding(replica)
        before = holding.block_size
        num_changed = 0
        for event in events:
            if isinstance(event, BlocksStored):
                num_changed += self._store(holding, event)
            elif isinstance(event, BlocksRemoved):
                num_changed += self._remove(holding, event)
            elif isinstance(event, AllCleared):
                num_changed += self._empty(holding)
        if holding.block_size != before:
            self._rearrange()
        while self._num_blocks > self.max_blocks:
            self._drop()
        return num_changed

    def mark(self, replica: str, *, is_known: bool, is_partial: bool = False) -> None:
        """Whether what is here of a replica may be believed, and whether it may hold more."""
        holding = self._holding(replica)
        holding.is_known, holding.is_partial = is_known, is_partial
        self._rearrange()

    def clear(self, replica: str) -> int:
        """How many blocks of a replica are forgotten: its engine started anew, or nothing is known any more."""
        holding = self._holdings.get(replica)
        if holding is None:
            return 0
        num_before = self._empty(holding)
        self._rearrange()
        return num_before

    def forget(self, replica: str) -> None:
        """The replica is gone, or publishes nothing any more."""
        self.clear(replica)
        holding = self._holdings.pop(replica, None)
        if holding is not None:
            del self._by_bit[holding.bit]
            self._rearrange()

    def num_held(self, replica: str) -> int:
        """Blocks of one replica."""
        holding = self._holdings.get(replica)
        return len(holding) if holding is not None else 0

    def names_held(self, replica: str, *, is_host: bool = False) -> frozenset[int]:
        """Our names of what a replica holds, for tests and for an operator's comparison."""
        holding = self._holdings.get(replica)
        if holding is None:
            return frozenset()
        return frozenset((holding.host if is_host else holding.device).values())

    def statistics(self) -> ExactStatistics:
        """Sizes for the metrics."""
        return ExactStatistics(self._num_blocks, len(self._device), self.num_dropped, self._num_orphans)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every mask claims what a table holds, and all is counted.

        A mask may claim less: of two blocks that an engine told alike, the first removal counts for both.
        """
        for is_host, masks in ((False, self._device), (True, self._host)):
            seen: dict[int, int] = {}
            for holding in self._holdings.values():
                for name in self.names_held(holding.name, is_host=is_host):
                    seen[name] = seen.get(name, 0) | holding.bit
            assert all(masks.values()), "a name that nobody holds is kept"
            assert all(not mask & ~seen.get(name, 0) for name, mask in masks.items()), "a mask claims too much"
        assert self._num_blocks == sum(map(len, self._holdings.values())), "the count of blocks is wrong"

    def _look(self, chain: list[int], block_size: int, alive: int, found: dict[str, int]) -> None:
        """How far each of `alive` goes, where nobody holds anything in the host's memory."""
        masks, alone = self._device.get, self._by_bit.get
        for depth, name in enumerate(chain):
            still = alive & masks(name, 0)
            if still != alive:
                if depth:
                    holding = alone(alive ^ still)  # most often one replica; no call for it, 64 may come here
                    if holding is None:
                        self._note(alive ^ still, depth * block_size, found)
                    else:
                        found[holding.name] = depth * block_size
                alive = still
                if not alive:
                    return
        self._note(alive, len(chain) * block_size, found)

    def _look_in_both(self, chain: list[int], block_size: int, alive: int, found: dict[str, int]) -> None:
        """The same where a block may lie in the host's memory, which counts less."""
        on_device, on_host = self._device.get, self._host.get
        members = alive
        num_slow: dict[int, int] = {}
        for depth, name in enumerate(chain):
            held = on_device(name, 0)
            still = alive & (held | on_host(name, 0))
            if still != alive:
                self._note(alive ^ still, depth * block_size, found)
                alive = still
                if not alive:
                    break
            for bit in bits_of(alive & ~held):
                num_slow[bit] = num_slow.get(bit, 0) + 1
        self._note(alive, len(chain) * block_size, found)
        for bit in bits_of(members):
            if bit in num_slow:
                found[self._by_bit[bit].name] -= round(num_slow[bit] * block_size * (1.0 - self._host_credit))

    def _note(self, bits: int, tokens: int, found: dict[str, int]) -> None:
        for bit in bits_of(bits):
            found[self._by_bit[bit].name] = tokens

    def _store(self, holding: Holding, event: BlocksStored) -> int:
        table, masks = (holding.host, self._host) if event.is_host else (holding.device, self._device)
        bit, size = holding.bit, event.block_size
        if event.parent is None:
            chain: int | None = root(event.salt, event.adapter, size)
        else:
            chain = holding.device.get(event.parent)
            if chain is None and (chain := holding.host.get(event.parent)) is None:
                self._num_orphans += len(event.hashes)
                return 0
        assert chain is not None, "a root or a parent"
        holding.block_size = max(holding.block_size, size)
        num_before = len(table)
        for engine_hash, name in zip(event.hashes, names(chain, event.packed, size, event.extras), strict=False):
            known = table.pop(engine_hash, None)  # put back at the end: told again is used again
            if known is not None and known != name:
                unset(masks, known, bit)
            table[engine_hash] = name
            mask = masks.get(name)
            if mask is None:
                masks[name] = bit
            elif not mask & bit:
                masks[name] = mask | bit
        num_new = len(table) - num_before
        self._num_blocks += num_new
        return num_new

    def _remove(self, holding: Holding, event: BlocksRemoved) -> int:
        table, masks = (holding.host, self._host) if event.is_host else (holding.device, self._device)
        num_gone = 0
        for engine_hash in event.hashes:
            name = table.pop(engine_hash, None)
            if name is not None:
                unset(masks, name, holding.bit)
                num_gone += 1
        self._num_blocks -= num_gone
        return num_gone

    def _empty(self, holding: Holding) -> int:
        for table, masks in ((holding.device, self._device), (holding.host, self._host)):
            for name in table.values():
                unset(masks, name, holding.bit)
        num_before = len(holding)
        holding.device, holding.host = {}, {}
        holding.block_size = 0
        self._num_blocks -= num_before
        return num_before

    def _drop(self) -> None:
        """Make room: the oldest of the replica that has most, of the host's memory first."""
        largest = max(self._holdings.values(), key=len)
        is_host = bool(largest.host)
        num = max(1, self.max_blocks // _DROP_SHARE)
        oldest = tuple(islice(largest.host if is_host else largest.device, num))
        self.num_dropped += self._remove(largest, BlocksRemoved(oldest, is_host))
        largest.is_partial = True
        self._rearrange()

    def _holding(self, replica: str) -> Holding:
        """The replica's, a new one with a free bit if it has none."""
        known = self._holdings.get(replica)
        if known is not None:
            return known
        bit = free_bit(self._by_bit)
        holding = self._holdings[replica] = self._by_bit[bit] = Holding(replica, bit)
        return holding

    def _rearrange(self) -> None:
        """Who is known, and who has which block size; on changes of these only."""
        known = [holding for holding in self._holdings.values() if holding.is_known]
        self._zeros = dict.fromkeys((holding.name for holding in known), 0)
        self._partial = frozenset(holding.name for holding in known if holding.is_partial)
        self._sizes = {}
        for holding in known:
            if holding.block_size:
                self._sizes[holding.block_size] = self._sizes.get(holding.block_size, 0) | holding.bit
