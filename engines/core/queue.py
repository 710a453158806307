"""Sequences in their order: the waiting queue and the seats are one each."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from engines.core.sequence import Sequence
from policies.lane import Lane

URGENT_LANES = (Lane.INTERACTIVE, Lane.STANDARD)  # those above bulk

_order = attrgetter("order")


class OrderedSequences:
    """Sequences sorted by `order` (lane, priority, arrival). A plain list: its owner bounds it to some thousands."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        """A snapshot: moving sequences while iterating is allowed."""
        return iter(tuple(self._items))

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._items, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; it must be in."""
        index = bisect_left(self._items, sequence.order, key=_order)
        assert self._items[index] is sequence, f"sequence {sequence.id} is not where it belongs"
        del self._items[index]

    def in_lane(self, lane: Lane) -> tuple[Sequence, ...]:
        """A snapshot of one lane's, in order."""
        low, high = self._bounds(lane)
        return tuple(self._items[low:high])

    def num_in(self, lane: Lane) -> int:
        """How many of this lane."""
        low, high = self._bounds(lane)
        return high - low

    def urgent(self) -> tuple[Sequence, ...]:
        """A snapshot of those above bulk, in order."""
        return tuple(self._items[: self.num_urgent])

    @property
    def num_urgent(self) -> int:
        """How many are above bulk."""
        return bisect_left(self._items, Lane.BULK.rank, key=_rank)

    def last(self) -> Sequence:
        """The least urgent, youngest one."""
        return self._items[-1]

    def _bounds(self, lane: Lane) -> tuple[int, int]:
        return bisect_left(self._items, lane.rank, key=_rank), bisect_left(self._items, lane.rank + 1, key=_rank)


def _rank(sequence: Sequence) -> int:
    return sequence.order[0]
