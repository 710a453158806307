"""The flows of one lane and where each of them stands.

A flow is ready (in the order), aside (nothing of it had room, until a wake), capped (until its own wake), or without
entries: then it is remembered only while it has work in flight or got more than its share so far.
"""

from collections import OrderedDict

from policies.entry import Entry
from policies.fair_settings import FairSettings
from policies.flow import Flow
from policies.flow_order import FlowOrder
from policies.flow_surplus import SurplusOrder
from policies.offer import NoRoom

_MOST_FORGOTTEN = 2  # chosen: idle flows looked at in a push, so that its cost does not depend on how many there are


class LaneFlows:
    """`order`: the ready flows. `surpluses`: those with more than one entry. `total_weight`: of flows with entries.

    Bounded by entries, work in flight and debts.

    A flow that comes with work where it had none starts at the lane's virtual time at the earliest: no credit for
    having been idle. One that wanted to be served and could not may be behind by a quantum: what it missed is its due.
    """

    def __init__(self, settings: FairSettings) -> None:
        self.order = FlowOrder(settings.flows)
        self.surpluses = SurplusOrder()
        self.total_weight = 0.0
        self._settings = settings
        self._flows: dict[str, Flow] = {}
        self._aside: dict[Flow, NoRoom] = {}
        self._capped: dict[Flow, None] = {}
        self._partly_aside: dict[Flow, None] = {}  # flows with single entries set aside, in whatever state
        self._idle: OrderedDict[Flow, None] = OrderedDict()  # in debt, longest idle first

    def push(self, entry: Entry, now: float) -> None:
        """Put the entry last in its flow."""
        flow = self._flows.get(entry.tenant)
        if flow is None:
            self._forget_some(now)
            flow = self._flows[entry.tenant] = Flow(entry.tenant, entry.weight, self.order.virtual)
        flow.weight = entry.weight
        num_before = len(flow.waiting) + len(flow.aside)
        flow.push(entry)
        if flow.share != flow.weight:
            self._count_weight(flow)
        if num_before >= flow.noted:
            self.surpluses.grew(flow)
        if not num_before:
            self._idle.pop(flow, None)
            self._make_ready(flow, credit=0.0)
        elif self._aside.get(flow) is NoRoom.ENTRY:  # only its entries so far had no room: the new one may
            del self._aside[flow]
            self._make_ready(flow, credit=self._settings.quantum_tokens)

    def put_back(self, flow: Flow, entry: Entry) -> None:
        """Return an entry that was picked to its place in its flow, which is asked again."""
        was_empty = not len(flow)
        flow.put_back(entry)
        self._count_weight(flow)
        if len(flow) > flow.noted:
            self.surpluses.grew(flow)
        if was_empty or self._aside.pop(flow, None) is not None:
            self._make_ready(flow, credit=self._settings.quantum_tokens)

    def leave(self, flow: Flow, entry: Entry, now: float) -> None:
        """Take an entry out."""
        flow.pop(entry)
        if flow.waiting:
            return
        if flow.aside:
            if flow.item is not None:
                self.bar(flow, NoRoom.ENTRY)
            return
        self.order.discard(flow)
        self._capped.pop(flow, None)
        self._aside.pop(flow, None)
        self._partly_aside.pop(flow, None)
        self.surpluses.discard(flow)
        self.total_weight -= flow.share
        flow.share = 0.0
        if not (self.order or self._aside or self._capped):
            self.total_weight = 0.0  # sums of fractions must not drift
        self._rest(flow, now)

    def charge(self, flow: Flow, weighted_tokens: float) -> None:
        """Move the flow's counter, up or down."""
        flow.counter += weighted_tokens
        self.order.rekey(flow)

    def end(self, flow: Flow, now: float) -> None:
        """One of the flow's requests is no longer in flight."""
        flow.in_flight -= 1
        if not len(flow):
            self._rest(flow, now)

    def set_aside(self, flow: Flow, entry: Entry) -> None:
        """The entry has no room; its flow stays where it is until it is barred."""
        flow.set_aside(entry)
        self._partly_aside[flow] = None

    def bar(self, flow: Flow, reason: NoRoom) -> None:
        """The flow is not ready any more."""
        self.order.discard(flow)
        if reason is NoRoom.CAPPED:
            self._capped[flow] = None
        else:
            self._aside[flow] = reason

    def ask_again(self) -> None:
        """Everything set aside is ready again, at its place. The cost was paid by asking: as many were asked."""
        if self._partly_aside:
            for flow in self._partly_aside:
                flow.ask_again()
            self._partly_aside.clear()
        if self._aside:
            for flow in list(self._aside):
                self._return(flow)

    def ask_flow_again(self, tenant: str) -> None:
        """The tenant's flow is ready again if it is capped or aside."""
        flow = self._flows.get(tenant)
        if flow is not None and (flow in self._capped or flow in self._aside):
            self._return(flow)

    def ask_capped_again(self) -> None:
        """Every capped flow is ready again."""
        for flow in list(self._capped):
            self._return(flow)

    def forget(self, now: float) -> None:
        """Drop every flow without work whose debt is paid or old."""
        for flow in [flow for flow in self._idle if self._is_forgettable(flow, now)]:
            self._drop(flow)

    def statistics(self) -> dict[str, int]:
        """Flows by state. `flows`: all that are remembered."""
        return {
            "ready": len(self.order),
            "aside": len(self._aside),
            "capped": len(self._capped),
            "idle": len(self._idle),
            "flows": len(self._flows),
        }

    def _return(self, flow: Flow) -> None:
        self._capped.pop(flow, None)
        self._aside.pop(flow, None)
        self._partly_aside.pop(flow, None)
        flow.ask_again()
        self._make_ready(flow, credit=self._settings.quantum_tokens)

    def _make_ready(self, flow: Flow, credit: float) -> None:
        flow.counter = max(flow.counter, self.order.advance() - credit)
        self.order.add(flow)

    def _count_weight(self, flow: Flow) -> None:
        self.total_weight += flow.weight - flow.share
        flow.share = flow.weight
        flow.noted = 1  # what was noted went by another weight

    def _rest(self, flow: Flow, now: float) -> None:
        """A flow without entries: keep it while it has work in flight, or a debt to the others."""
        if flow.in_flight:
            return
        if flow.counter <= self.order.advance():
            del self._flows[flow.tenant]  # coming back it would start at the virtual time in any case
            return
        flow.idle_since = now
        self._idle[flow] = None
        if len(self._idle) > self._settings.idle_flows:
            self._drop(next(iter(self._idle)))

    def _is_forgettable(self, flow: Flow, now: float) -> bool:
        return flow.counter <= self.order.virtual or now - flow.idle_since >= self._settings.debt_s

    def _forget_some(self, now: float) -> None:
        for _ in range(min(_MOST_FORGOTTEN, len(self._idle))):
            flow = next(iter(self._idle))
            if not self._is_forgettable(flow, now):
                return
            self._drop(flow)

    def _drop(self, flow: Flow) -> None:
        del self._idle[flow]
        del self._flows[flow.tenant]
