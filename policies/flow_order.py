"""The ready flows of one lane by their counters, the least first, and the lane's virtual time.

The few least are a short sorted list, which is all a pick looks at; the others are a heap behind it. A flow that is
dispatched mostly stays in the list or goes to the heap once, so a pick costs O(log flows) at most and often nothing.
"""

from bisect import insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from policies.flow import Flow, Item

_GARBAGE = 64  # chosen: outdated items the heap may hold before they are looked for


class FlowOrder:
    """`front`: the least flows, at most `size`, sorted; every other is behind its last. Read it, never write.

    `virtual`: the highest that the least counter ever was; whoever joins starts there at the earliest.
    """

    __slots__ = ("_behind", "_num_ready", "_size", "_ticks", "front", "virtual")

    def __init__(self, size: int) -> None:
        self.front: list[Item] = []
        self.virtual = 0.0
        self._behind: list[Item] = []
        self._size = size
        self._ticks = count()
        self._num_ready = 0

    def __len__(self) -> int:
        return self._num_ready

    def __iter__(self) -> Iterator[Flow]:
        """All ready flows, in no order."""
        yield from (flow for _, _, flow in self.front)
        yield from (item[2] for item in self._behind if item[2].item is item)

    def advance(self) -> float:
        """Bring the virtual time up to the least counter, and return it."""
        front = self.front
        if front and front[0][0] > self.virtual:
            self.virtual = front[0][0]
        return self.virtual

    def add(self, flow: Flow) -> None:
        """The flow is ready, at its counter; among equals it comes last."""
        assert flow.item is None, f"{flow} is ready already"
        front = self.front
        item = flow.item = (flow.counter, next(self._ticks), flow)
        self._num_ready += 1
        if len(front) < self._size or item < front[-1]:
            insort(front, item)
            if len(front) > self._size:
                heappush(self._behind, front.pop())
        else:
            heappush(self._behind, item)

    def discard(self, flow: Flow) -> None:
        """The flow is no longer ready. Nothing happens if it was not."""
        item, flow.item = flow.item, None
        if item is None:
            return
        self._num_ready -= 1
        front = self.front
        if item <= front[-1]:  # the list holds exactly the least: no need to search the heap
            del front[next(i for i, other in enumerate(front) if other is item)]
            self._refill()
        elif len(self._behind) > 2 * self._num_ready + _GARBAGE:
            self._behind = [item for item in self._behind if item[2].item is item]
            heapify(self._behind)

    def rekey(self, flow: Flow) -> None:
        """The flow's counter changed."""
        if flow.item is not None:
            self.discard(flow)
            self.add(flow)

    def _refill(self) -> None:
        front, behind = self.front, self._behind
        while behind and len(front) < self._size:
            item = heappop(behind)
            if item[2].item is item:
                front.append(item)  # nothing behind is less than anything in front
