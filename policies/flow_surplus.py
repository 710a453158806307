"""Which flow of a lane has the largest surplus: the one that gives up a place when more wait than may.

A flow's surplus is the places it holds beyond the first, by its weight: one place is everybody's own.
"""

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from policies.flow import Flow, Item

_ROOM = 3  # chosen: noted with an eighth more than it holds
_GARBAGE = 64  # chosen: outdated items the heap may hold before they are cleared out


class SurplusOrder:
    """The flows that hold two places or more. Bounded by twice their number.

    A flow is noted when it holds more than it was noted with, and with some room to grow, so that entries that come and
    go mostly cost nothing. What is noted is never too low, and is corrected when it comes first: every correction was
    paid for by a growth, which makes it O(log flows) an entry, amortized.
    """

    __slots__ = ("_items", "_num_noted", "_ticks")

    def __init__(self) -> None:
        self._items: list[Item] = []  # (minus the surplus, tick, flow)
        self._num_noted = 0
        self._ticks = count()

    def __len__(self) -> int:
        return len(self._items)

    def grew(self, flow: Flow) -> None:
        """The flow holds more than it was noted with, or its weight is another."""
        if flow.noted_as is None:
            self._num_noted += 1
        num = len(flow)
        heappush(self._items, self._item(flow, num + (num >> _ROOM)))
        if len(self._items) > 2 * self._num_noted + _GARBAGE:
            self._items = [item for item in self._items if item[2].noted_as is item]
            heapify(self._items)

    def discard(self, flow: Flow) -> None:
        """The flow holds nothing any more."""
        if flow.noted_as is not None:
            self._num_noted -= 1
            if not self._num_noted:
                self._items.clear()
        flow.noted_as = None
        flow.noted = 1

    def largest(self) -> Flow | None:
        """The flow with the largest surplus, of equals the first to have grown to it; None if nobody has any."""
        items = self._items
        while items:
            flow = items[0][2]
            if flow.noted_as is not items[0]:
                heappop(items)
            elif len(flow) < 2:
                heappop(items)
                self.discard(flow)
            elif len(flow) < flow.noted:
                heapreplace(items, self._item(flow, len(flow)))
            else:
                return flow
        return None

    def _item(self, flow: Flow, num: int) -> Item:
        flow.noted = num
        item = flow.noted_as = ((1 - num) / flow.weight, next(self._ticks), flow)
        return item
