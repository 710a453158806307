"""When waiting entries must be evicted: a wheel of short slots, so that coming and going costs the same for any number.

A heap of entries would keep what has left, and stop everything to clear it out; here only a slot's number stays behind.
"""

from heapq import heapify, heappop, heappush

from policies.entry import FOREVER, Entry

SLOT_S = 0.25  # chosen: a slot's entries are looked through one by one when it is due
_GARBAGE = 64  # chosen: numbers of slots that are gone, before they are cleared out


class Deadlines:
    """Entries by deadline, which must not change while an entry is here. Bounded by the entries in it."""

    __slots__ = ("_due_at", "_order", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, dict[Entry, None]] = {}
        self._order: list[int] = []  # a heap of the slots' numbers, some of them gone
        self._due_at = FOREVER  # nothing is due before

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    @property
    def due_at(self) -> float:
        """Nothing expires before this moment; for the timer that calls `expire`. Infinite if nothing ever does."""
        return self._due_at

    def add(self, entry: Entry) -> None:
        """Watch the entry; one without a deadline is not watched."""
        deadline = entry.deadline
        if deadline == FOREVER:
            return
        number = int(deadline // SLOT_S)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heappush(self._order, number)
        slot[entry] = None
        self._due_at = min(self._due_at, deadline)

    def discard(self, entry: Entry) -> None:
        """Stop watching the entry. Nothing happens if it was not."""
        if entry.deadline == FOREVER:
            return
        slot = self._slots.get(int(entry.deadline // SLOT_S))
        if slot is not None and slot.pop(entry, self) is None and not slot:
            del self._slots[int(entry.deadline // SLOT_S)]
            if len(self._order) > 2 * len(self._slots) + _GARBAGE:
                self._order = list(self._slots)
                heapify(self._order)

    def expire(self, now: float) -> list[Entry]:
        """Take out and return every entry whose deadline is not after `now`, in the order of their slots."""
        if now < self._due_at:
            return []
        expired: list[Entry] = []
        last = int(now // SLOT_S)
        while self._order and self._order[0] < last:
            expired.extend(self._slots.pop(heappop(self._order), ()))
        for entry in [entry for entry in self._slots.get(last, ()) if entry.deadline <= now]:
            self.discard(entry)
            expired.append(entry)
        self._due_at = self._next_due()
        return expired

    def _next_due(self) -> float:
        """The first deadline left."""
        while self._order:
            slot = self._slots.get(self._order[0])
            if slot:
                return min(entry.deadline for entry in slot)
            heappop(self._order)
        return FOREVER
