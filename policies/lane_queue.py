"""One lane of one model: what waits in it, and the choice among the flows whose turn it is."""

from collections import OrderedDict
from dataclasses import dataclass

from policies.candidates import Candidates, Scan
from policies.entry import Entry, Picked
from policies.fair_settings import FairSettings, LaneRule
from policies.flow import Flow
from policies.lane_flows import LaneFlows
from policies.offer import NoRoom, Offer


@dataclass(frozen=True, slots=True)
class Overflow:
    """More wait in the lane than may: `entry` has to leave. `num_held`: places of its flow, its own counted."""

    entry: Entry
    num_held: int


class LaneQueue:
    """Entries of one lane. `arrivals`: all that wait, first come first. `in_flight`: picked and not ended.

    `is_unfinished`: the last scan ran out of questions before it came to the end.
    """

    def __init__(self, settings: FairSettings, rule: LaneRule) -> None:
        self.rule = rule
        self.arrivals: OrderedDict[Entry, None] = OrderedDict()
        self.in_flight = 0
        self.flows = LaneFlows(settings)
        self.is_unfinished = False
        self._settings = settings
        self._must_ask_again = False

    @property
    def next_since(self) -> float | None:
        """When the entry first came whose turn it is by fairness alone, None if no flow is ready."""
        front = self.flows.order.front
        return next(iter(front[0][2].waiting)).since if front else None

    def push(self, entry: Entry, now: float) -> None:
        """Put the entry last in its flow."""
        self.arrivals[entry] = None
        self.flows.push(entry, now)

    def remove(self, entry: Entry, now: float) -> None:
        """Take out an entry that waits here."""
        del self.arrivals[entry]
        self.flows.leave(_flow_of(entry), entry, now)

    def overflow(self, newcomer: Entry) -> Overflow | None:
        """The newest entry of the flow with the largest surplus, if more wait than may; of equals the newcomer's."""
        if len(self.arrivals) <= self.rule.bound:
            return None
        flow = _flow_of(newcomer)
        largest = self.flows.surpluses.largest()
        if largest is not None and largest.surplus > flow.surplus:
            flow = largest
        return Overflow(flow.newest, len(flow))

    def choose(self, scan: Scan) -> Candidates | None:
        """The best of the flows whose turn it is, and of those after them as long as nobody had room; None if nobody.

        Sets aside whoever has no room. Stops with `is_unfinished` when the questions run out; the next scan goes on.
        """
        while scan.num_left > 0:
            num_left = scan.num_left
            found = self._compare(scan)
            if found.offer is not None or scan.is_closed:
                self._finish()
                return None if found.offer is None else found
            if scan.num_left < num_left:
                continue
            if not self._must_ask_again:
                self.is_unfinished = False
                return None
            self._finish()  # a seat came free while others were asked: those asked before may have it first
        self.is_unfinished = True
        return None

    def take(self, found: Candidates, now: float) -> Picked:
        """Dispatch what was chosen: count who is passed, charge the flow."""
        flow, entry, offer = found.flow, found.entry, found.offer
        assert flow is not None, "nothing was chosen"
        assert entry is not None, "a flow is chosen for an entry"
        assert offer is not None, "an entry is chosen for its offer"
        found.count_passed()
        self.flows.order.advance()
        charged = self._settings.cost(offer.uncached_tokens, entry.output_tokens)
        picked = Picked(entry, offer, flow, charged, now - entry.queued_at)
        flow.in_flight += 1
        self.in_flight += 1
        self.remove(entry, now)
        self.flows.charge(flow, charged / flow.weight)
        return picked

    def end(self, picked: Picked, actual_cost: float, now: float) -> None:
        """Correct the charge to what the request really cost."""
        self.in_flight -= 1
        self.flows.charge(picked.flow, (actual_cost - picked.charged) / picked.weight)
        self.flows.end(picked.flow, now)

    def put_back(self, picked: Picked) -> None:
        """The request never ran: its entry has its old place again, and its flow was not charged."""
        self.in_flight -= 1
        self.arrivals[picked.entry] = None
        self.arrivals.move_to_end(picked.entry, last=False)
        picked.flow.in_flight -= 1
        self.flows.charge(picked.flow, -picked.charged / picked.weight)
        self.flows.put_back(picked.flow, picked.entry)

    def wake(self) -> None:
        """Ask those set aside again; if a scan is unfinished, once it has come to its end."""
        if self.is_unfinished:
            self._must_ask_again = True
        else:
            self.flows.ask_again()

    def _finish(self) -> None:
        self.is_unfinished = False
        if self._must_ask_again:
            self._must_ask_again = False
            self.flows.ask_again()

    def _compare(self, scan: Scan) -> Candidates:
        """One round: ask some of those who may be chosen, until enough have room or nobody is left of them."""
        found, num_left, barred = Candidates(), self._settings.heads, None
        for spot in found.spots(self.flows.order.front, self._settings, scan):
            entry = spot[2]
            flow = found.rows[spot[1]]
            if barred is not None and flow in barred:
                continue
            answer = scan.ask(entry)
            if isinstance(answer, Offer):
                found.note(spot, flow, answer)
                num_left -= 1
            elif answer is not NoRoom.LANE:
                barred = found.barred
                if answer is NoRoom.ENTRY:
                    self.flows.set_aside(flow, entry)
                if answer is not NoRoom.ENTRY or not flow.waiting:
                    barred[flow] = answer
            if num_left <= 0 or scan.num_left <= 0 or scan.is_closed:
                break
        for flow, reason in found.barred.items():
            self.flows.bar(flow, reason)
        return found


def _flow_of(entry: Entry) -> Flow:
    assert entry.flow is not None, f"{entry} is in no flow"
    return entry.flow
