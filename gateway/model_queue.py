"""The waiting requests of one model and the seats they may take: fair queue, caps, router and pool asked as one.

Pure: no clock, no waiting, no network. Live traffic (`admission.py`) and the simulator drive the same code. A turn is
given when an entry, a replica and a seat are found together; ending it gives back seat, cap and lease, and charges the
tenant what the request really cost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from gateway.turn import NO_CAPS, Absent, Turn, Waiting
from policies.caps import CapLimits, Caps
from policies.entry import Entry, Picked
from policies.fair_queue import FairQueue, Place
from policies.headroom import Headroom, HeadroomSettings
from policies.lane import Lane
from policies.leases import Holdings, seats
from policies.offer import NoRoom, Offer
from policies.saturation import Load, Saturation, Shed, TooLate
from routing.decision import Full, NoReplica, RouteDecision
from routing.filters import Rejection
from routing.pool import ReplicaPool
from routing.replica import ReplicaState
from routing.router import Router

_READY = ReplicaState.READY  # a global, as in routing/filters.py
MOST_NEAR = 4  # chosen: with more replicas free, seats are not what is scarce


@dataclass(frozen=True, slots=True)
class MarketRules:
    """What holds for every model. `kv_used_ratio`: what a replica, by name, last said of its KV cache, 0..1.

    `holdings`: the units leased among gateways, None when all are ours. `headroom`: what floods leave free.
    """

    kv_used_ratio: Callable[[str], float] = lambda _name: 0.0
    holdings: Holdings | None = None
    headroom: HeadroomSettings = field(default_factory=HeadroomSettings)


class ModelQueue:
    """One model's requests."""

    def __init__(
        self,
        model: str,
        router: Router,
        caps: Caps,
        *,
        queue: FairQueue,
        saturation: Saturation,
        rules: MarketRules,
    ) -> None:
        self.model = model
        self.queue = queue
        self.saturation = saturation
        self.num_turns = 0
        self._router = router
        self._caps = caps
        self._rules = rules
        self._headroom = Headroom(rules.headroom)
        self._unleased: dict[tuple[str, int], None] = {}  # (replica, lane rank) that the lease refused, until a raise
        self._absences: dict[Entry, NoReplica] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return len(self.queue)

    def enter(self, entry: Entry, now: float) -> None:
        """Let an entry wait; `entry.request` is a `Waiting`. The caller then gives turns and asks `queue.overflow`."""
        if self.queue or not self._roomy(entry.lane):  # else it is served at once and nobody asks where it belongs
            entry.home = self._router.home(entry.request.query)
        self.queue.push(entry, now)
        self.saturation.rate(entry.lane).arrived(now)

    def refusal(self, entry: Entry, now: float) -> Shed | TooLate | None:
        """Why a waiting entry should rather not wait. Does not take it out.

        In its own lane only its own flow's age counts: that another tenant's flood is old delays nobody else.
        """
        place, flow = self.queue.place_of(entry), entry.flow
        if place is None or flow is None:
            return None
        load = self.load(entry.lane, now)
        load = replace(load, oldest_wait_s={**load.oldest_wait_s, entry.lane: now - flow.oldest_since})
        return self.saturation.refusal(entry.lane, load, in_lane=place.in_lane, deadline=entry.deadline, now=now)

    def retry_after_s(self, lane: Lane, now: float) -> float:
        """When a place of the lane comes free for who is refused now, whom it is then promised."""
        return self.saturation.retry_after_s(lane, self.queue.depth(lane), now)

    def turns(self, now: float) -> Iterator[Turn | Absent]:
        """Every turn that can be given now, and every entry that waits in vain, one after the other."""
        self._now = now
        in_vain: set[tuple[Entry, str]] = set()  # picks that could not be made real since the last that could
        while self.queue:
            near = self._near() if len(self.queue) > 1 else ()  # who waits alone is asked in any case
            picked = self.queue.pick(self._offer, now, near)
            if self._absences:
                yield from self._take_absences(now)
            if picked is None:
                if not self.queue.is_scan_unfinished:
                    return
                continue
            turn = self._turn(picked, now)
            if turn is None:
                vain = (picked.entry, picked.offer.payload.chosen)
                if vain in in_vain:  # what stood in its way was not learned: look again later, not for ever now
                    return
                in_vain.add(vain)
            else:
                in_vain.clear()
                self.num_turns += 1
                self._headroom.dispatched(picked, now)
                waiting = self.queue.depth(turn.entry.lane)
                self.saturation.rate(turn.entry.lane).dispatched(turn.queued_s, waiting, now)
                yield turn

    def end(self, turn: Turn, now: float) -> None:
        """The turn is over: what it held is given back, its flow is charged `turn.cost`. Harmless when repeated."""
        if turn.is_over:
            return
        turn.is_over = True
        self.num_turns -= 1
        turn.lease.end()
        turn.hold.give_back()
        self._give_back_units(turn.units)
        if turn.units:
            self._unbar(turn.decision.chosen)
        self.queue.settle(turn.picked, turn.cost, now)
        self.queue.wake()

    def leave(self, entry: Entry, now: float) -> bool:
        """An entry stops waiting; False if it did not wait (any more)."""
        was_waiting = self.queue.remove(entry, now)
        if was_waiting and not self.queue.depth(entry.lane):
            self.saturation.rate(entry.lane).emptied()
        return was_waiting

    def expire(self, now: float) -> list[Entry]:
        """Take out and return those whose deadline has passed."""
        expired = self.queue.expire(now)
        for lane in {entry.lane for entry in expired}:
            if not self.queue.depth(lane):
                self.saturation.rate(lane).emptied()
        return expired

    def wake(self) -> None:
        """A replica, a breaker or a lease changed."""
        self._unleased.clear()
        self.queue.wake()

    def place_of(self, entry: Entry, now: float) -> tuple[Place, float] | None:
        """Where a waiting entry stands and the seconds it may take; None if it does not wait."""
        place = self.queue.place_of(entry)
        return None if place is None else (place, self.saturation.wait_s(entry.lane, place.in_lane, now))

    def load(self, lane: Lane, now: float) -> Load:
        """How the model stands for a lane, over its ready replicas: seats it may not take count as used."""
        ready = [one for one in self._pool.of_model(self.model) if one.state is _READY]
        all_seats = sum(replica.spec.seats for replica in ready)
        used = sum(
            min(one.num_in_flight, one.spec.seats - 1) if one.has_seat(lane) else one.spec.seats for one in ready
        )
        kv_used = sum(self._rules.kv_used_ratio(replica.name) for replica in ready)
        oldest = {lane: self.queue.oldest_since(lane) for lane in Lane}
        waited = {lane: now - since if since is not None else 0.0 for lane, since in oldest.items()}
        return Load(used / all_seats if all_seats else 1.0, kv_used / len(ready) if ready else 0.0, waited)

    def _roomy(self, lane: Lane) -> bool:
        return any(one.state is _READY and one.has_seat(lane) for one in self._pool.of_model(self.model))

    def _near(self) -> list[str]:
        """The replicas with room, if they are few: then those whose prefix is there should be asked first."""
        free = [
            one.name
            for one in self._pool.of_model(self.model)
            if one.state is _READY and one.has_seat(Lane.INTERACTIVE)
        ]
        return free if len(free) <= MOST_NEAR else []

    @property
    def _pool(self) -> ReplicaPool:
        return self._router.pool

    def _offer(self, entry: Entry) -> Offer | NoRoom:
        """The best seat for one entry now, or why there is none."""
        waiting: Waiting = entry.request
        caps, lane = waiting.caps, entry.served_as
        if caps is not NO_CAPS and not self._caps.can_take(entry.tenant, entry.lane, caps):
            return NoRoom.CAPPED
        query = waiting.query
        barred = self._barred(entry, caps)
        must_leave = self._headroom.must_leave(entry, self._now)
        if must_leave:
            barred |= self._nearly_full(lane)
        if barred or lane is not query.lane:
            query = replace(query, lane=lane, barred=barred)
        decision = self._router.route(query, self._now)
        if isinstance(decision, RouteDecision):
            gain = decision.hit_tokens + 1.0 / (1.0 + decision.ttft_s)
            return Offer(gain, decision.uncached_tokens, decision)
        if isinstance(decision, NoReplica):
            self._absences[entry] = decision
            return NoRoom.ENTRY
        reason = _no_room(decision, entry)
        return NoRoom.FLOW if must_leave and reason is NoRoom.LANE else reason

    def _nearly_full(self, lane: Lane) -> frozenset[str]:
        """Replicas whose last seats are left to others than a flood."""
        seats_left = self._rules.headroom.seats
        return frozenset(
            replica.name
            for replica in self._pool.of_model(self.model)
            if replica.num_free(lane) <= seats_left(replica.seat_limits[lane.rank])
        )

    def _barred(self, entry: Entry, caps: CapLimits) -> frozenset[str]:
        """Replicas that have no seat for this tenant in the lane it is served as: by its cap, or by a lease."""
        if caps.per_replica is None and not self._unleased:
            return frozenset()
        return frozenset(
            replica.name
            for replica in self._pool.of_model(self.model)
            if (replica.name, entry.served_as.rank) in self._unleased
            or not self._caps.can_take(entry.tenant, entry.lane, caps, replica.name)
        )

    def _turn(self, picked: Picked, now: float) -> Turn | None:
        """Make a pick real, or put it back where a seat, a cap or a lease was gone in between.

        The pool comes last: it notes the prompt as being on the replica, where a refused one never goes.
        """
        decision: RouteDecision = picked.offer.payload
        waiting: Waiting = picked.entry.request
        hold = self._caps.take(picked.entry.tenant, picked.entry.lane, waiting.caps, decision.chosen, now)
        units = self._take_units(decision, now) if hold is not None else None
        lease = self._pool.lease(decision, now) if units is not None else None
        if hold is not None and units is not None and lease is not None:
            return Turn(picked, decision, lease, hold, units)
        if units is not None:
            self._give_back_units(units)
        if hold is not None:
            hold.give_back()
        self.queue.put_back(picked)
        return None

    def _take_units(self, decision: RouteDecision, now: float) -> tuple[str, ...] | None:
        """The leased seats of a decision, None if the lease refused one; the replica is then barred until a raise."""
        if self._rules.holdings is None:
            return ()
        replica = self._pool.get(decision.chosen)
        assert replica is not None, "a replica that was just chosen is in the pool"
        taken: list[str] = []
        for resource, limit in seats(decision.chosen, decision.lane, replica.seat_limits, replica.spec.bulk_seats):
            if not self._rules.holdings.try_take(resource, limit, now, waiting=len(self.queue) + 1):
                self._give_back_units(tuple(taken))
                self._unleased[decision.chosen, decision.lane.rank] = None
                return None
            taken.append(resource)
        return tuple(taken)

    def _give_back_units(self, units: tuple[str, ...]) -> None:
        if self._rules.holdings is not None:
            for resource in units:
                self._rules.holdings.give_back(resource)

    def _unbar(self, name: str) -> None:
        """A unit of the replica is ours again: the lease is asked again for it."""
        for lane in Lane:
            self._unleased.pop((name, lane.rank), None)

    def _take_absences(self, now: float) -> Iterator[Absent]:
        absences, self._absences = self._absences, {}
        for entry, reason in absences.items():
            if self.leave(entry, now):
                yield Absent(entry, reason)


def _no_room(full: Full, entry: Entry) -> NoRoom:
    """How wide the lack of a seat is: for the whole lane, for this tenant, or for this request alone.

    What bars the lane alike, its labels or a lease, is no reason to ask every tenant in it.
    """
    reasons = {reason for _, reason in full.filtered}
    waiting: Waiting = entry.request
    if Rejection.EXCLUDED in reasons:
        return NoRoom.ENTRY  # a replica it was tried on may have room for the others of its flow
    is_capped = Rejection.BARRED in reasons and waiting.caps.per_replica is not None
    is_pinned_otherwise = Rejection.NOT_LABELLED in reasons and entry.served_as is not entry.lane
    return NoRoom.FLOW if is_capped or is_pinned_otherwise or Rejection.NOT_ALLOWED in reasons else NoRoom.LANE
