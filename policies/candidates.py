"""One pick's questions: who was asked, who has room, whose offer is best, and who is passed by taking it.

Flows are in the order of their counters, a flow's entries in the order of their arrival.
"""

from policies.entry import FOREVER, Entry
from policies.flow import Flow
from policies.lane import Lane
from policies.offer import Chooser, NoRoom, Offer


class Scan:
    """What one pick may still ask. `arrived_by`: entries pushed later are no candidates (for the starvation lift)."""

    __slots__ = ("_chooser", "arrived_by", "is_closed", "num_left", "served_as")

    def __init__(self, chooser: Chooser, asks: int) -> None:
        self._chooser = chooser
        self.num_left = asks
        self.served_as = Lane.INTERACTIVE
        self.arrived_by = FOREVER
        self.is_closed = False

    def enter(self, served_as: Lane, arrived_by: float) -> None:
        """Go on to entries that are served as this lane."""
        self.served_as = served_as
        self.arrived_by = arrived_by
        self.is_closed = False

    def ask(self, entry: Entry) -> Offer | NoRoom:
        """The chooser's answer; one question less is left. `LANE` closes the scan."""
        self.num_left -= 1
        entry.served_as = self.served_as
        answer = self._chooser(entry)
        if answer is NoRoom.LANE:
            self.is_closed = True
        return answer


class Candidates:
    """Entries with room. The first of equal offers is best: of the least counter, and of the earliest arrival.

    `heads`: the first entry with room of each flow. `behind`: by the flow's number in `heads`, the further ones.
    """

    __slots__ = ("_gain", "_place", "_row", "behind", "entry", "flow", "heads", "num", "offer")

    def __init__(self) -> None:
        self.heads: list[Entry] = []
        self.behind: dict[int, list[Entry]] = {}
        self.num = 0
        self.flow: Flow | None = None  # the best, with its entry and offer
        self.entry: Entry | None = None
        self.offer: Offer | None = None
        self._gain = -FOREVER
        self._row = 0
        self._place = 0

    def add_head(self, flow: Flow, head: Entry, offer: Offer) -> None:
        """The first entry with room of the next flow."""
        gain = offer[0]
        if gain > self._gain or self.offer is None:
            self._gain, self._row, self._place = gain, len(self.heads), 0
            self.flow, self.entry, self.offer = flow, head, offer
        self.heads.append(head)
        self.num += 1

    def add_behind(self, row: int, entry: Entry, offer: Offer) -> None:
        """A further entry of the flow whose head is `heads[row]`."""
        entries = self.behind.setdefault(row, [])
        entries.append(entry)
        self.num += 1
        if offer.gain > self._gain:
            self._gain, self._row, self._place = offer.gain, row, len(entries)
            self.flow, self.entry, self.offer = entry.flow, entry, offer

    def count_passed(self) -> None:
        """Taking the best passes the heads of flows with a lower counter, and those before it in its own flow."""
        for head in self.heads[: self._row + (self._place > 0)]:
            head.passed += 1
        if self._place > 1:
            for entry in self.behind[self._row][: self._place - 1]:
                entry.passed += 1
