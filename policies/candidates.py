"""One pick's questions: who may be chosen now, who is asked, whose offer is best, and who is passed by taking it.

A row is a flow whose turn it is, in the order of their counters; a column is an entry of it, in the order of arrival.
"""

from collections.abc import Sequence

from policies.entry import FOREVER, Entry
from policies.fair_settings import FairSettings
from policies.flow import Flow, Item
from policies.lane import Lane
from policies.offer import Chooser, NoRoom, Offer

Spot = tuple[int, int, Entry]  # (column, row, entry): what is nearer to its turn compares less


class Scan:
    """What one pick may still ask. `near`: replicas with room; entries at home there are asked first.

    `arrived_by`: entries pushed later are no candidates (for the starvation lift).
    """

    __slots__ = ("_chooser", "arrived_by", "is_closed", "near", "num_left", "served_as")

    def __init__(self, chooser: Chooser, asks: int, near: Sequence[str]) -> None:
        self._chooser = chooser
        self.num_left = asks
        self.near = near
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
    """Who may be chosen in one round, and the best of those asked. The first turn wins among equal gains."""

    __slots__ = ("_gain", "_spot", "barred", "entry", "flow", "offer", "rows")

    def __init__(self) -> None:
        self.rows: list[Flow] = []
        self.barred: dict[Flow, NoRoom] = {}
        self.flow: Flow | None = None  # the best, with its entry and offer
        self.entry: Entry | None = None
        self.offer: Offer | None = None
        self._gain = -FOREVER
        self._spot: tuple[int, int] = (0, 0)

    def spots(self, front: list[Item], settings: FairSettings, scan: Scan) -> list[Spot]:
        """Whom to ask, in this order: the first whose turn it is, those at home, the others nearest to their turn."""
        near, rows = scan.near, self.rows
        if len(front) == 1 and len(front[0][2].waiting) == 1:
            return self._only_spot(front[0][2], scan)  # mostly, while there are seats: there is no order to work out
        most = settings.flows if near else settings.heads
        limit = front[0][0] + settings.quantum_tokens if front else 0.0
        spots: list[Spot] = []
        away: list[Spot] = []
        for counter, _, flow in front:
            row = len(rows)
            if row and (counter >= limit or row >= most):
                break
            head = next(iter(flow.waiting))
            if head.since > scan.arrived_by:
                continue
            rows.append(flow)
            (spots if not row or not near or head.home in near else away).append((0, row, head))
            for home in near:
                entry = flow.next_at(home, head, settings.window)
                if entry is not None and entry.since <= scan.arrived_by:
                    spots.append((1, row, entry))
            if head.passed >= settings.skips:
                break  # it was passed often enough: no flow after it may be chosen
        spots += away
        if rows and len(spots) < settings.heads:
            asked = {spot[2] for spot in spots}
            spots += [spot for spot in self._behind(settings, scan) if spot[2] not in asked]
        return spots

    def _only_spot(self, flow: Flow, scan: Scan) -> list[Spot]:
        entry = next(iter(flow.waiting))
        if entry.since > scan.arrived_by:
            return []
        self.rows.append(flow)
        return [(0, 0, entry)]

    def note(self, spot: Spot, flow: Flow, offer: Offer) -> None:
        """An entry has room."""
        gain = offer[0]
        if gain > self._gain or self.offer is None or (gain == self._gain and spot[:2] < self._spot):
            self._gain, self._spot = gain, spot[:2]
            self.flow, self.entry, self.offer = flow, spot[2], offer

    def count_passed(self) -> None:
        """Taking the best passes the heads of flows with a lower counter; those not asked, too: they may have room."""
        for flow in self.rows[: self._spot[1]]:
            if flow not in self.barred:
                next(iter(flow.waiting)).passed += 1

    def _behind(self, settings: FairSettings, scan: Scan) -> list[Spot]:
        """The entries right behind the heads, nearest first, as many as may be asked."""
        columns = 1 + -(-settings.heads // len(self.rows))
        spots = [
            (column, row, entry)
            for row, flow in enumerate(self.rows)
            for column, entry in enumerate(flow.window(min(columns, settings.window)))
            if column and entry.since <= scan.arrived_by
        ]
        spots.sort(key=_turn)
        return spots


def _turn(spot: Spot) -> tuple[int, int]:
    return spot[:2]
