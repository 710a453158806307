"""One flow: a tenant's entries in one lane, in order of arrival, and its account in virtual tokens."""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from policies.entry import Entry

Item = tuple[float, int, "Flow"]  # (counter, tick, flow): what the order of flows compares; ticks are unique


class Flow:
    """`counter`: weighted tokens served divided by the weight, lifted when the flow comes back to the queue.

    `waiting`: entries that may be asked, first come first. `aside`: entries that had no room; asked again after a wake.
    `at_home`: those of `waiting` that have a home, by it, in the same order.
    `item`: its place among the ready flows, None elsewhere. `in_flight`: picked and not ended.
    `noted`, `noted_as`: how many it held, and its item, when it was last noted for its surplus.
    """

    __slots__ = (
        "aside", "at_home", "counter", "idle_since", "in_flight", "item", "noted", "noted_as", "num_pushed", "share",
        "tenant", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, tenant: str, weight: float, counter: float) -> None:
        self.tenant = tenant
        self.weight = weight
        self.counter = counter
        self.waiting: OrderedDict[Entry, None] = OrderedDict()
        self.aside: dict[Entry, None] = {}
        self.at_home: dict[str, OrderedDict[Entry, None]] = {}
        self.item: Item | None = None
        self.in_flight = 0
        self.num_pushed = 0
        self.noted = 1  # with one place it has no surplus
        self.noted_as: Item | None = None
        self.share = 0.0  # the weight counted in the lane's total while it is backlogged
        self.idle_since = 0.0

    def __len__(self) -> int:
        return len(self.waiting) + len(self.aside)

    @property
    def surplus(self) -> float:
        """The places it holds beyond the first, by its weight."""
        return (len(self) - 1) / self.weight

    @property
    def newest(self) -> Entry:
        """The last entry of those that may be asked, or of those set aside if it has no other. It must have one."""
        return next(reversed(self.waiting or self.aside))

    @property
    def oldest_since(self) -> float:
        """Since when the first of those that wait does. It must have one."""
        return min(next(iter(entries)).queued_at for entries in (self.waiting, self.aside) if entries)

    def push(self, entry: Entry) -> None:
        """Put a new entry last; one that comes back goes before whatever first came after it."""
        self.num_pushed += 1
        entry.number = self.num_pushed
        entry.flow = self
        if entry.since < entry.queued_at and len(self):
            self._put_by_age(entry)
        else:
            self._put(entry)

    def put_back(self, entry: Entry) -> None:
        """Return an entry that was picked to its old place; those set aside are asked again, too."""
        entry.flow = self
        self.ask_again()
        self._put_by_age(entry)

    def pop(self, entry: Entry) -> None:
        """Take an entry out, wherever it is. Raises `KeyError` if it is not here."""
        if entry in self.waiting:
            self._take(entry)
        else:
            del self.aside[entry]
        entry.flow = None

    def set_aside(self, entry: Entry) -> None:
        """The entry has no room; those behind it come forward."""
        self._take(entry)
        self.aside[entry] = None

    def ask_again(self) -> None:
        """Return what was set aside to its place: before whatever came after it."""
        if not self.aside:
            return
        last = max(entry.number for entry in self.aside)
        front, self.aside = list(self.aside), {}
        # What still waits ahead of the last of them: no more than a few windows, for that was in a window once.
        while self.waiting and (first := next(iter(self.waiting))).number < last:
            self._take(first)
            front.append(first)
        front.sort(key=_number, reverse=True)
        for entry in front:
            self._put_first(entry)

    def window(self, size: int) -> Iterator[Entry]:
        """Up to `size` entries in order, none of which came `size` or more places after the first.

        So nobody is overtaken more than `size - 1` times: each time by another that came so soon after it.
        """
        last = next(iter(self.waiting)).number + size
        return (entry for entry in islice(self.waiting, size) if entry.number < last)

    def next_at(self, home: str, head: Entry, size: int) -> Entry | None:
        """The first entry at the home behind `head`, which is the first of all, if it is in the window."""
        entries = self.at_home.get(home)
        if entries is None:
            return None
        following = iter(entries)
        entry = next(following)
        if entry is head:
            entry = next(following, head)
        return None if entry is head or entry.number >= head.number + size else entry

    def _put(self, entry: Entry) -> None:
        self.waiting[entry] = None
        if entry.home is not None:
            entries = self.at_home.get(entry.home)
            if entries is None:
                entries = self.at_home[entry.home] = OrderedDict()
            entries[entry] = None

    def _put_first(self, entry: Entry) -> None:
        self._put(entry)
        self.waiting.move_to_end(entry, last=False)
        if entry.home is not None:
            self.at_home[entry.home].move_to_end(entry, last=False)

    def _put_by_age(self, entry: Entry) -> None:
        """Put it between the older and the younger. Numbers stay in order: the older move down to make room for its."""
        turn = _age(entry)
        # Few: they wait though one that came later was dispatched, so they were in a window with it, or set aside.
        ahead = list(takewhile(lambda one: _age(one) < turn, self.waiting))
        older = ahead + [one for one in self.aside if _age(one) < turn]
        younger = [one for one in self.aside if _age(one) > turn]
        younger += islice(self.waiting, len(ahead), len(ahead) + 1)
        entry.number = min([entry.number, *(one.number - 1 for one in younger)])
        excess = max([0, *(one.number - entry.number + 1 for one in older)])
        for one in older:
            one.number -= excess
        for one in ahead:
            self._take(one)
        for one in (entry, *reversed(ahead)):
            self._put_first(one)

    def _take(self, entry: Entry) -> None:
        del self.waiting[entry]
        if entry.home is not None:
            entries = self.at_home[entry.home]
            del entries[entry]
            if not entries:
                del self.at_home[entry.home]

    def place_of(self, entry: Entry) -> int:
        """How many of the flow's entries are ahead. Never too low; too high by those that left from the middle."""
        first = next(iter(self.waiting)).number if self.waiting else entry.number
        if self.aside:
            first = min(first, next(iter(self.aside)).number)
        return max(0, min(entry.number - first, len(self) - 1))

    def __repr__(self) -> str:
        return f"<Flow {self.tenant} waiting={len(self)} in_flight={self.in_flight} counter={self.counter:.0f}>"


def _age(entry: Entry) -> tuple[float, int]:
    return entry.since, entry.number


def _number(entry: Entry) -> int:
    return entry.number
