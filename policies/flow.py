"""One flow: a tenant's entries in one lane, in order of arrival, and its account in virtual tokens."""

from collections import OrderedDict
from itertools import islice

from policies.entry import Entry

Item = tuple[float, int, "Flow"]  # (counter, tick, flow): what the order of flows compares; ticks are unique


class Flow:
    """`counter`: weighted tokens served divided by the weight, lifted when the flow comes back to the queue.

    `waiting`: entries that may be asked, first come first. `aside`: entries that had no room; asked again after a wake.
    `item`: its place among the ready flows, None elsewhere. `in_flight`: picked and not ended.
    """

    __slots__ = (
        "aside", "counter", "idle_since", "in_flight", "item", "num_pushed", "share", "tenant", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, tenant: str, weight: float, counter: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.counter = counter
        self.waiting: OrderedDict[Entry, None] = OrderedDict()
        self.aside: list[Entry] = []
        self.item: Item | None = None
        self.in_flight = 0
        self.num_pushed = 0
        self.share = 0.0  # the weight counted in the lane's total while it is backlogged
        self.idle_since = 0.0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.aside)

    def push(self, entry: Entry) -> None:
        """Put a new entry last."""
        self.num_pushed += 1
        entry.number = self.num_pushed
        entry.flow = self
        self.waiting[entry] = None

    def put_back(self, entry: Entry) -> None:
        """Return an entry that was picked to its old place."""
        entry.flow = self
        self.aside.append(entry)
        self.ask_again()

    def pop(self, entry: Entry) -> None:
        """Take an entry out, wherever it is. Raises `KeyError` or `ValueError` if it is not here."""
        if entry in self.waiting:
            del self.waiting[entry]
        else:
            self.aside.remove(entry)  # rare and short: entries that were asked and had no room
        entry.flow = None

    def set_aside(self, entry: Entry) -> None:
        """The entry has no room; those behind it come forward."""
        del self.waiting[entry]
        self.aside.append(entry)

    def ask_again(self) -> None:
        """Return what was set aside to its place: before whatever came after it."""
        if not self.aside:
            return
        last = max(entry.number for entry in self.aside)
        front, self.aside = self.aside, []
        # What is still waiting ahead of the last of them: no more than a few windows, for that was in a window once.
        while self.waiting and next(iter(self.waiting)).number < last:
            front.append(self.waiting.popitem(last=False)[0])
        front.sort(key=_number, reverse=True)
        for entry in front:
            self.waiting[entry] = None
            self.waiting.move_to_end(entry, last=False)

    def behind(self, head: Entry, most: int) -> list[Entry]:
        """Up to `most` entries that wait right behind the first one, which is `head`."""
        entries = list(islice(self.waiting, most + 1))
        assert entries[0] is head, "the head is the first that waits"
        return entries[1:]

    def place_of(self, entry: Entry) -> int:
        """How many of the flow's entries are ahead. Never too low; too high by those that left from the middle."""
        first = next(iter(self.waiting)).number if self.waiting else entry.number
        if self.aside:
            first = min(first, self.aside[0].number)
        return max(0, min(entry.number - first, len(self) - 1))

    def __repr__(self) -> str:
        return f"<Flow {self.tenant} waiting={len(self)} in_flight={self.in_flight} counter={self.counter:.0f}>"


def _number(entry: Entry) -> int:
    return entry.number
