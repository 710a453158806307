"""The fair queue, caps and router in virtual time: the same picks as in live traffic, with the same things learned.

The chooser is the seam: the queue asks it about one waiting request, it asks caps and router, and what it answers is
either a seat with its hit or as wide a "no room" as is known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gateway.simulation.dispatch import Served, Turn, Waiting
from policies.caps import CapLimits, Caps, Hold
from policies.entry import Entry, Picked
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings
from policies.lane import Lane
from policies.offer import NoRoom, Offer
from routing.decision import Full, RouteDecision
from routing.query import RouteQuery
from routing.router import Router

_FIRST_GUESS_TOKENS = 128  # of output, before a flow has ended any request; chosen
_SHARE = 0.1  # of one answer's length in the expected one: about the last ten count
_NO_CAPS = CapLimits()


@dataclass(frozen=True, slots=True)
class TenantRule:
    """What a tenant is worth, and what it may hold by lane."""

    weight: float = 1.0
    caps: Mapping[Lane, CapLimits] = field(default_factory=dict)


class FairOrder:
    """A `TurnOrder`. `tenants`: rules by name; others have weight 1 and no caps."""

    def __init__(
        self, router: Router, settings: FairSettings | None = None, tenants: Mapping[str, TenantRule] | None = None
    ) -> None:
        self.queue = FairQueue(settings)
        self.caps = Caps(on_give_back=self.queue.wake_flow)
        self._router = router
        self._tenants = dict(tenants or {})
        self._entries: dict[Waiting, Entry] = {}
        self._open: dict[Turn, tuple[Picked, Hold]] = {}
        self._expected: dict[tuple[str, Lane], float] = {}  # output tokens of a flow's requests
        self._now = 0.0

    def __len__(self) -> int:
        return len(self.queue)

    def push(self, waiting: Waiting, now: float) -> bool:
        """Let a request wait in its flow; False if its lane is full."""
        request = waiting.request
        flow = (request.tenant, request.lane)
        expected = self._expected.get(flow, _FIRST_GUESS_TOKENS)
        entry = Entry(
            request.tenant, request.lane, waiting, weight=self._rule(request.tenant).weight,
            output_tokens=round(expected),
        )  # fmt: skip
        if self.queue.push(entry, now) is not None:
            return False
        self._entries[waiting] = entry
        return True

    def leave(self, waiting: Waiting, now: float) -> None:
        """Its client has left."""
        entry = self._entries.pop(waiting, None)
        if entry is not None:
            self.queue.remove(entry, now)

    def turns(self, now: float) -> Iterator[Turn]:
        """Picks, until nobody has room."""
        self._now = now
        while len(self.queue):
            picked = self.queue.pick(self._choose, now)
            if picked is not None:
                yield self._turn(picked, now)
            elif not self.queue.is_scan_unfinished:
                return

    def settle(self, turn: Turn, served: Served, now: float) -> None:
        """Charge what it really cost, give back what it held, learn how long the flow's answers are."""
        picked, hold = self._open.pop(turn)
        self.queue.settle(picked, self.queue.settings.cost(served.uncached_tokens, served.output_tokens), now)
        hold.give_back()
        self.queue.wake()
        flow = (hold.tenant, hold.lane)
        expected = self._expected.get(flow, float(_FIRST_GUESS_TOKENS))
        self._expected[flow] = expected + _SHARE * (served.output_tokens - expected)

    def _turn(self, picked: Picked, now: float) -> Turn:
        """Make the pick real. Nothing has changed since the chooser looked, so seat and cap are there."""
        decision, request = picked.offer.payload, picked.entry.request.request
        assert isinstance(decision, RouteDecision), "offers carry their decision"
        lease = self._router.pool.lease(decision, now)
        hold = self.caps.take(
            request.tenant, request.lane, self._caps_of(request.tenant, request.lane), decision.chosen, now
        )
        assert lease is not None, "an offered seat is gone"
        assert hold is not None, "an offered place under the cap is gone"
        turn = Turn(picked.entry.request, decision, lease, now)
        del self._entries[turn.waiting]
        self._open[turn] = (picked, hold)
        return turn

    def _choose(self, entry: Entry) -> Offer | NoRoom:
        limits = self._caps_of(entry.tenant, entry.lane)
        if not self.caps.can_take(entry.tenant, entry.lane, limits):
            return NoRoom.CAPPED
        query: RouteQuery = entry.request.query
        if entry.served_as is not query.lane:
            query = replace(query, lane=entry.served_as)
        if limits.per_replica is not None:
            query = replace(query, excluded=query.excluded | self._capped_replicas(entry, limits))
        decision = self._router.route(query, self._now)
        if isinstance(decision, RouteDecision):
            # Equal hits are told apart by the predicted time, which never outweighs a token.
            return Offer(decision.hit_tokens + 1 / (1 + decision.ttft_s), decision.uncached_tokens, decision)
        is_lane_full = isinstance(decision, Full) and not query.excluded
        return NoRoom.LANE if is_lane_full else NoRoom.FLOW

    def _capped_replicas(self, entry: Entry, limits: CapLimits) -> frozenset[str]:
        names = (replica.name for replica in self._router.pool.of_model(entry.request.query.model))
        return frozenset(name for name in names if not self.caps.can_take(entry.tenant, entry.lane, limits, name))

    def _caps_of(self, tenant: str, lane: Lane) -> CapLimits:
        return self._rule(tenant).caps.get(lane, _NO_CAPS)

    def _rule(self, tenant: str) -> TenantRule:
        return self._tenants.get(tenant) or TenantRule()
