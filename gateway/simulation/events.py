"""What happens next, in virtual time: a heap of events. There is no clock but the time of the event taken last."""

from heapq import heappop, heappush
from typing import Generic, TypeVar

Event = TypeVar("Event")


class Timeline(Generic[Event]):
    """Events by time; those of the same time in the order they were added, so that a run repeats exactly."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Event]] = []
        self._num_added = 0
        self.now = 0.0

    def __repr__(self) -> str:
        return f"<Timeline now={self.now:.6f} events={len(self._heap)}>"

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, event: Event) -> None:
        """Let `event` happen at `at` (virtual seconds), which must not lie in the past."""
        assert at >= self.now, f"an event at {at} is added at {self.now}"
        self._num_added += 1
        heappush(self._heap, (at, self._num_added, event))

    def next_at(self) -> float | None:
        """When the next event is; None without one."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> Event:
        """The next event; `now` is its time from here on. There must be one."""
        self.now, _, event = heappop(self._heap)
        return event
