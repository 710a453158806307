"""Sequences in their order: the waiting queue and the seats are one each."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from engines.core.sequence import Sequence
from policies.lane import Lane

URGENT_LANES = (Lane.INTERACTIVE, Lane.STANDARD)  # those above bulk

_order = attrgetter("order")


class OrderedSequences:
    """Sequences sorted by `order` (lane, priority, arrival). Plain lists: their owner bounds them to some thousands.

    One list a lane, as every step asks several times for those of a lane and for how many there are.
    """

    def __init__(self) -> None:
        self._lanes: tuple[list[Sequence], ...] = tuple([] for _ in Lane)  # by rank
        self._interactive, self._standard, self._bulk = self._lanes

    def __len__(self) -> int:
        return len(self._interactive) + len(self._standard) + len(self._bulk)

    def __iter__(self) -> Iterator[Sequence]:
        """A snapshot: moving sequences while iterating is allowed."""
        return iter((*self._interactive, *self._standard, *self._bulk))

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._lanes[sequence.order[0]], sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; it must be in."""
        lane = self._lanes[sequence.order[0]]
        index = bisect_left(lane, sequence.order, key=_order)
        assert lane[index] is sequence, f"sequence {sequence.id} is not where it belongs"
        del lane[index]

    def in_lane(self, lane: Lane) -> tuple[Sequence, ...]:
        """A snapshot of one lane's, in order."""
        return tuple(self._lanes[lane.rank])

    def num_in(self, lane: Lane) -> int:
        """How many of this lane."""
        return len(self._lanes[lane.rank])

    def nums_by_rank(self) -> tuple[int, int, int]:
        """How many of each lane, interactive first."""
        return len(self._interactive), len(self._standard), len(self._bulk)

    def urgent(self) -> tuple[Sequence, ...]:
        """A snapshot of those above bulk, in order."""
        return (*self._interactive, *self._standard)

    @property
    def num_urgent(self) -> int:
        """How many are above bulk."""
        return len(self._interactive) + len(self._standard)

    def last(self) -> Sequence:
        """The least urgent, youngest one."""
        return (self._bulk or self._standard or self._interactive)[-1]
