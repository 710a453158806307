"""One pick's questions: who was asked, who has room, whose offer is best, and who is passed by taking it.

Rows are flows in the order of their counters; in a row are the flow's entries with room, in the order of their arrival.
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
    """Entries with room. The first of equal offers is best: of the least counter, and of the earliest arrival."""

    __slots__ = ("_column", "_row", "entry", "flow", "num", "offer", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[Flow, list[Entry]]] = []
        self.num = 0
        self.flow: Flow | None = None  # the best, with its entry and offer
        self.entry: Entry | None = None
        self.offer: Offer | None = None
        self._row = self._column = 0

    def add_head(self, flow: Flow, head: Entry, offer: Offer) -> None:
        """The first entry with room of the next flow."""
        self.rows.append((flow, [head]))
        self._add(len(self.rows) - 1, 0, offer)

    def add_behind(self, row: int, entry: Entry, offer: Offer) -> None:
        """A further entry of a flow that has a head here."""
        entries = self.rows[row][1]
        entries.append(entry)
        self._add(row, len(entries) - 1, offer)

    def count_passed(self) -> None:
        """Taking the best passes the heads of flows with a lower counter, and those before it in its own flow."""
        for row in range(self._row):
            self.rows[row][1][0].passed += 1
        if self._column:
            for entry in self.rows[self._row][1][: self._column]:
                entry.passed += 1

    def _add(self, row: int, column: int, offer: Offer) -> None:
        self.num += 1
        # Among equal gains the earlier column wins by being asked first, and within a column the lower counter.
        if self.offer is None or offer.gain > self.offer.gain:
            self.flow, entries = self.rows[row]
            self.entry, self.offer = entries[column], offer
            self._row, self._column = row, column
