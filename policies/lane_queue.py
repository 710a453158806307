"""One lane of one model: its flows, which of them are ready, and the choice among them.

A flow is ready (in the order), aside (nothing of it had room, until a wake), capped (until its own wake), or without
entries: then it is remembered only while it has work in flight or owes the others service.
"""

from collections import OrderedDict

from policies.candidates import Candidates, Scan
from policies.entry import Entry, Picked
from policies.fair_settings import FairSettings
from policies.flow import Flow
from policies.flow_order import FlowOrder
from policies.offer import NoRoom, Offer

_MOST_FORGOTTEN = 2  # chosen: idle flows looked at in a push, so that its cost does not depend on how many there are


class LaneQueue:
    """Entries of one lane. `arrivals`: all that wait, first come first. `in_flight`: picked and not ended."""

    def __init__(self, settings: FairSettings) -> None:
        self.arrivals: OrderedDict[Entry, None] = OrderedDict()
        self.in_flight = 0
        self.total_weight = 0.0  # of the flows with entries
        self.is_unfinished = False  # the last scan ran out of questions before it came to the end
        self._settings = settings
        self._order = FlowOrder(settings.heads)
        self._flows: dict[str, Flow] = {}
        self._aside: dict[Flow, NoRoom] = {}
        self._capped: dict[Flow, None] = {}
        self._partly_aside: dict[Flow, None] = {}  # flows with single entries set aside, in whatever state
        self._idle: OrderedDict[Flow, None] = OrderedDict()  # in debt, longest idle first
        self._must_ask_again = False

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def next_since(self) -> float | None:
        """When the entry was pushed whose turn it is by fairness alone, None if no flow is ready."""
        front = self._order.front
        return next(iter(front[0][2].waiting)).since if front else None

    def push(self, entry: Entry, now: float) -> None:
        """Put the entry last in its flow. A flow that had none starts at the lane's virtual time at the earliest."""
        flow = self._flows.get(entry.tenant)
        if flow is None:
            self._forget(now, most=_MOST_FORGOTTEN)
            flow = self._flows[entry.tenant] = Flow(entry.tenant, entry.weight, self._order.virtual)
        flow.weight = entry.weight
        self.arrivals[entry] = None
        was_empty = not len(flow)
        flow.push(entry)
        self._count_weight(flow)
        if was_empty:
            self._idle.pop(flow, None)
            self._make_ready(flow, credit=0.0)
        elif self._aside.get(flow) is NoRoom.ENTRY:
            del self._aside[flow]
            self._make_ready(flow, credit=self._settings.quantum_tokens)

    def remove(self, entry: Entry, now: float) -> None:
        """Take out an entry that waits here."""
        flow = entry.flow
        assert flow is not None, f"{entry} is in no flow"
        del self.arrivals[entry]
        flow.pop(entry)
        self._after_leaving(flow, now)

    def choose(self, scan: Scan) -> Candidates | None:
        """The best of the flows whose turn it is, and of those after them as long as nobody had room; None if nobody.

        Sets aside whoever has no room. Stops with `is_unfinished` when the questions run out; the next scan goes on.
        """
        while True:
            num_left = scan.num_left
            found = self._compare(scan)
            if found.offer is not None or scan.is_closed or scan.num_left == num_left:
                if found.offer is None and self._must_ask_again and not scan.is_closed:
                    self._finish()
                    continue  # a seat came free while others were asked: those asked before may have it first
                self._finish()
                return None if found.offer is None else found
            if scan.num_left <= 0:
                self.is_unfinished = True
                return None

    def take(self, found: Candidates, now: float) -> Picked:
        """Dispatch what was chosen: count who is passed, charge the flow."""
        flow, entry, offer = found.flow, found.entry, found.offer
        assert flow is not None and entry is not None and offer is not None, "nothing was chosen"  # noqa: PT018
        found.count_passed()
        self._order.advance()
        charged = self._settings.cost(offer.uncached_tokens, entry.output_tokens)
        picked = Picked(entry, offer, flow, charged, now - entry.since)
        flow.counter += charged / flow.weight
        flow.in_flight += 1
        self.in_flight += 1
        del self.arrivals[entry]
        flow.pop(entry)
        if flow.waiting:
            self._order.rekey(flow)
        else:
            self._after_leaving(flow, now)
        return picked

    def end(self, picked: Picked, actual_cost: float, now: float) -> None:
        """Correct the charge to what the request really cost."""
        flow = picked.flow
        flow.in_flight -= 1
        self.in_flight -= 1
        flow.counter += (actual_cost - picked.charged) / picked.weight
        self._order.rekey(flow)
        if not len(flow):
            self._rest(flow, now)

    def put_back(self, picked: Picked) -> None:
        """The request never ran: its entry has its old place again, and its flow its old counter."""
        flow, entry = picked.flow, picked.entry
        flow.in_flight -= 1
        self.in_flight -= 1
        flow.counter -= picked.charged / picked.weight
        self.arrivals[entry] = None
        self.arrivals.move_to_end(entry, last=False)
        was_empty = not len(flow)
        flow.put_back(entry)
        self._count_weight(flow)
        if was_empty:
            self._make_ready(flow, credit=self._settings.quantum_tokens)
        elif self._aside.pop(flow, None) is not None:
            self._make_ready(flow, credit=self._settings.quantum_tokens)
        else:
            self._order.rekey(flow)

    def wake(self) -> None:
        """Ask those set aside again; if a scan is unfinished, once it has come to its end."""
        if self.is_unfinished:
            self._must_ask_again = True
        else:
            self._ask_again()

    def wake_flow(self, tenant: str) -> None:
        """Ask the tenant's flow again: something of its own was given back."""
        flow = self._flows.get(tenant)
        if flow is not None and (flow in self._capped or flow in self._aside):
            self._return(flow)

    def wake_capped(self) -> None:
        """Ask every capped flow again."""
        for flow in list(self._capped):
            self._return(flow)

    def expire(self, now: float) -> None:
        """Forget flows without work whose debt is paid or old."""
        self._forget(now, most=len(self._idle))

    def statistics(self) -> dict[str, int]:
        """All 0 when quiescent, but `idle`: flows remembered for a debt."""
        return {
            "waiting": len(self.arrivals),
            "in_flight": self.in_flight,
            "ready": len(self._order),
            "aside": len(self._aside),
            "capped": len(self._capped),
            "idle": len(self._idle),
            "flows": len(self._flows),
        }

    def _compare(self, scan: Scan) -> Candidates:
        """Ask the flows within the quantum of the least, first entries first."""
        settings, found = self._settings, Candidates()
        barred: list[tuple[Flow, NoRoom]] = []
        front = self._order.front
        limit = front[0][0] + settings.quantum_tokens if front else 0.0
        is_due = False
        for counter, _, flow in front:
            if (counter >= limit and flow is not front[0][2]) or scan.num_left <= 0:
                break
            answer = self._ask_head(flow, scan)
            if isinstance(answer, Offer):
                head = next(iter(flow.waiting))
                found.add_head(flow, head, answer)
                is_due = head.passed >= settings.skips
                if is_due:
                    break  # it was passed often enough: no flow after it may be chosen, nor anything behind it
            elif answer is NoRoom.LANE:
                break
            elif answer is not None:
                barred.append((flow, answer))
        if found.rows and found.num < settings.heads and settings.window > 1 and not scan.is_closed:
            self._ask_behind(found, scan, num_rows=len(found.rows) - is_due)
        for flow, reason in barred:
            self._bar(flow, reason)
        return found

    def _ask_head(self, flow: Flow, scan: Scan) -> Offer | NoRoom | None:
        """The offer to the first entry that has room, or why the flow has none; None: not known yet, or not now."""
        for _ in range(min(self._settings.window, scan.num_left)):
            entry = next(iter(flow.waiting))
            if entry.since > scan.arrived_by:
                return None
            answer = scan.ask(entry)
            if answer is not NoRoom.ENTRY:
                return answer
            flow.set_aside(entry)
            self._partly_aside[flow] = None
            if not flow.waiting:
                return NoRoom.ENTRY
        return None

    def _ask_behind(self, found: Candidates, scan: Scan, num_rows: int) -> None:
        """Ask what waits behind the heads, nearest first, as far as `heads` and `window` allow."""
        settings = self._settings
        rows = found.rows[:num_rows]
        windows = [flow.behind(entries[0], settings.window - 1) for flow, entries in rows]
        for column in range(settings.window - 1):
            for row, (flow, _) in enumerate(rows):
                if found.num >= settings.heads or scan.num_left <= 0:
                    return
                if column >= len(windows[row]):
                    continue
                entry = windows[row][column]
                answer = scan.ask(entry) if entry.since <= scan.arrived_by else NoRoom.FLOW
                if isinstance(answer, Offer):
                    found.add_behind(row, entry, answer)
                elif answer is NoRoom.ENTRY:
                    flow.set_aside(entry)
                    self._partly_aside[flow] = None
                if entry.passed >= settings.skips or answer in {NoRoom.FLOW, NoRoom.CAPPED, NoRoom.LANE}:
                    windows[row] = []  # nothing may overtake it, or nothing behind it has room

    def _finish(self) -> None:
        self.is_unfinished = False
        if self._must_ask_again:
            self._must_ask_again = False
            self._ask_again()

    def _ask_again(self) -> None:
        for flow in self._partly_aside:
            flow.ask_again()
        self._partly_aside.clear()
        for flow in list(self._aside):
            self._return(flow)

    def _bar(self, flow: Flow, reason: NoRoom) -> None:
        self._order.discard(flow)
        if reason is NoRoom.CAPPED:
            self._capped[flow] = None
        else:
            self._aside[flow] = reason

    def _return(self, flow: Flow) -> None:
        self._capped.pop(flow, None)
        self._aside.pop(flow, None)
        self._partly_aside.pop(flow, None)
        flow.ask_again()
        # It wanted to be served and could not: what it fell behind meanwhile is its due, but no more than a quantum.
        self._make_ready(flow, credit=self._settings.quantum_tokens)

    def _make_ready(self, flow: Flow, credit: float) -> None:
        flow.counter = max(flow.counter, self._order.advance() - credit)
        self._order.add(flow)

    def _count_weight(self, flow: Flow) -> None:
        self.total_weight += flow.weight - flow.share
        flow.share = flow.weight

    def _after_leaving(self, flow: Flow, now: float) -> None:
        """An entry left the flow: is it still ready, is anything left of it?"""
        if len(flow):
            if not flow.waiting and flow.item is not None:
                self._bar(flow, NoRoom.ENTRY)
            return
        self._order.discard(flow)
        self._capped.pop(flow, None)
        self._aside.pop(flow, None)
        self._partly_aside.pop(flow, None)
        self.total_weight = max(0.0, self.total_weight - flow.share) if self.arrivals else 0.0
        flow.share = 0.0
        self._rest(flow, now)

    def _rest(self, flow: Flow, now: float) -> None:
        """A flow without entries: keep it while it has work in flight, or a debt to the others."""
        if flow.in_flight:
            return
        if flow.counter <= self._order.advance():
            del self._flows[flow.tenant]  # coming back it would start at the virtual time in any case
            return
        flow.idle_since = now
        self._idle[flow] = None
        if len(self._idle) > self._settings.idle_flows:
            del self._flows[self._idle.popitem(last=False)[0].tenant]

    def _forget(self, now: float, *, most: int) -> None:
        for flow in [flow for flow, _ in zip(self._idle, range(most), strict=False)]:
            if flow.counter <= self._order.virtual or now - flow.idle_since >= self._settings.debt_s:
                del self._idle[flow]
                del self._flows[flow.tenant]
            elif most == _MOST_FORGOTTEN:
                break
