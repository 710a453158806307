"""Which waiting request of which tenant is dispatched next: one queue per model, told the time and asked for a pick.

Interactive comes first, always. Standard and bulk divide the seats they hold by their lanes' weights. Within a lane
every flow (a tenant's entries) has a counter of weighted tokens served, divided by its weight; flows within a quantum Q
of the least counter may be chosen for the better hit, and nobody is passed more often than the settings allow.

Two bounds, proved in docs/design/003-fair-dispatch.md. Service: for flows f and g of a lane that both wait with room
throughout, `|S_f/w_f - S_g/w_g| <= 2 * (Q + U)`, where S is the service charged, corrections included, and U is the
most that one charge and the corrections of a flow's requests in flight come to, divided by its weight. Places: where n
flows of weight W in all want the B places of a lane, a flow that loses an entry to `overflow` has `(B+1-n) * w/W` left
at least; its only entry it loses only where every place is another tenant's. So no flood gets anybody else refused.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policies.candidates import Scan
from policies.deadlines import Deadlines
from policies.entry import FOREVER, Entry, Picked
from policies.fair_settings import FairSettings
from policies.lane import Lane
from policies.lane_queue import LaneQueue, Overflow
from policies.offer import Chooser

_LANES = sorted(Lane, key=lambda lane: lane.rank)


@dataclass(frozen=True, slots=True)
class Place:
    """An estimate of where an entry stands. `position`: dispatches of the model until its own, from 1.

    `in_lane`: the same counting only its lane. Exact for one flow in one lane that nobody leaves; else it assumes that
    the flows go by turns by their weights and that nobody comes, leaves or is barred.
    """

    position: int
    in_lane: int


class FairQueue:
    """The waiting entries of one model. Not for use from several threads. `now` is monotonic seconds everywhere.

    The caller must ask `overflow` after each push, once it has picked for whoever has room: that bounds the queue. It
    must call `wake` whenever a seat is given back or a replica changes, and before it picks: what had no
    room is not asked again earlier, and the lanes' order rests on it. After `pick` returned None while
    `is_scan_unfinished`, it should pick again soon, after letting others run.
    """

    def __init__(self, settings: FairSettings | None = None) -> None:
        self.settings = settings or FairSettings()
        self._lanes = [LaneQueue(self.settings, self.settings.lanes[lane]) for lane in _LANES]
        self._weights = [queue.rule.weight for queue in self._lanes]
        self._deadlines = Deadlines()
        self._is_closed = [False] * len(_LANES)  # by the lane served as: no replica had a seat, until a wake
        self._num_lifted = 0
        self.is_scan_unfinished = False

    def configure(self, settings: FairSettings) -> None:
        """Other weights, bounds and lifting from now on, no other numbers; whoever waits keeps its place.

        A bound below what waits refuses newcomers, or takes one entry for each; nobody else has to leave.
        """
        self.settings = settings
        for lane, queue in zip(_LANES, self._lanes, strict=True):
            queue.rule = settings.lanes[lane]
        self._weights = [queue.rule.weight for queue in self._lanes]
        self.wake()

    def __len__(self) -> int:
        interactive, standard, bulk = self._lanes  # unrolled: asked several times a request
        return len(interactive.arrivals) + len(standard.arrivals) + len(bulk.arrivals)

    def push(self, entry: Entry, now: float) -> None:
        """Queue the entry, last in its flow; one that comes back at its old place. It must not be waiting anywhere."""
        assert not entry.is_waiting, f"{entry} is queued already"
        rank = entry.lane.rank
        for above in range(rank):
            self._is_closed[above] = False  # a seat that nobody announced is theirs before it is this entry's
        entry.queued_at = now
        entry.since = min(entry.since, now)
        entry.passed = 0
        self._lanes[rank].push(entry, now)
        self._deadlines.add(entry)

    def overflow(self, newcomer: Entry) -> Overflow | None:
        """Who has to leave the lane for an entry that was just pushed and found no seat; None if it is within bounds.

        The newest of the flow that holds most places beyond its first, by weight; often the newcomer. Takes nobody out.
        """
        return self._lane(newcomer).overflow(newcomer)

    def pick(self, chooser: Chooser, now: float, near: Sequence[str] = ()) -> Picked | None:
        """Dispatch the entry whose turn it is, with the offer chosen for it; None if nobody has room.

        `near`: the few replicas with room that matter most, each once; those at home there are asked first.
        Asks at most `heads` entries with room and at most `asks` in all. The charge stands until the pick is ended.
        """
        scan = Scan(chooser, self.settings.asks, near)
        self.is_scan_unfinished = False
        for lane, served_rank, arrived_by in self._turns(now):
            if self._is_closed[served_rank]:
                continue
            scan.enter(_LANES[served_rank], arrived_by)
            found = lane.choose(scan)
            if found is not None:
                return self._dispatched(lane.take(found, now))
            if scan.is_closed:
                self._is_closed[served_rank] = True
            if lane.is_unfinished:  # somebody further down may have room, and a lower lane must not take it first
                self.is_scan_unfinished = True
                return None
        return None

    def settle(self, picked: Picked, actual_cost: float, now: float) -> bool:
        """The request ended: its flow is charged what it cost (`FairSettings.cost`; 0 if it did no work).

        False if it had ended already; then nothing changes. The seat it gives back is the caller's to `wake` for.
        """
        if not self._end(picked):
            return False
        self._lane(picked.entry).end(picked, actual_cost, now)
        return True

    def put_back(self, picked: Picked) -> bool:
        """The request never ran (its seat was gone): it waits again at its old place, uncharged, its passes kept.

        False if it had ended already. Such an entry counts towards the bound like every other.
        """
        if not self._end(picked):
            return False
        self._lane(picked.entry).put_back(picked)
        self._deadlines.add(picked.entry)
        return True

    def remove(self, entry: Entry, now: float) -> bool:
        """Take out an entry that waits (its client left). False if it does not wait; then nothing changes."""
        if not entry.is_waiting:
            return False
        self._lane(entry).remove(entry, now)
        self._deadlines.discard(entry)
        return True

    def expire(self, now: float) -> list[Entry]:
        """Evict and return every entry whose deadline is not after `now`; forget idle flows whose debt is old."""
        evicted = self._deadlines.expire(now)
        for entry in evicted:
            self._lane(entry).remove(entry, now)
        for lane in self._lanes:
            lane.flows.forget(now)
        return evicted

    @property
    def due_at(self) -> float:
        """Nothing expires before this moment; infinite if nothing ever does."""
        return self._deadlines.due_at

    def wake(self, *, with_capped: bool = False) -> None:
        """A seat came free or a replica changed: whoever had no room is asked again.

        `with_capped`: those at their cap too, where caps were changed and not given back.
        """
        self._is_closed = [False] * len(_LANES)
        for lane in self._lanes:
            lane.wake()
            if with_capped:
                lane.flows.ask_capped_again()

    def wake_flow(self, tenant: str, lane: Lane) -> None:
        """Something that counts towards the tenant's caps in the lane was given back."""
        self._lanes[lane.rank].flows.ask_flow_again(tenant)

    def place_of(self, entry: Entry) -> Place | None:
        """Where a waiting entry stands, None if it does not wait. O(1): cheap enough for every keep-alive."""
        flow = entry.flow
        if flow is None:
            return None
        rank = entry.lane.rank
        lane = self._lanes[rank]
        ahead = flow.place_of(entry)
        behind_in_flow = len(flow) - ahead - 1
        turns = ahead * lane.flows.total_weight / flow.weight
        in_lane = max(ahead, min(int(turns), len(lane.arrivals) - behind_in_flow - 1)) + 1
        return Place(in_lane + self._above(rank, in_lane), in_lane)

    def entries(self) -> list[Entry]:
        """Everything that waits, lane by lane in order of arrival; linear, for the end of the day."""
        return [entry for lane in self._lanes for entry in lane.arrivals]

    def depth(self, lane: Lane) -> int:
        """Entries that wait in the lane."""
        return len(self._lanes[lane.rank].arrivals)

    def in_flight(self, lane: Lane) -> int:
        """Requests of the lane that were picked and have not ended."""
        return self._lanes[lane.rank].in_flight

    def oldest_since(self, lane: Lane) -> float | None:
        """When the entry was queued that has waited longest in the lane, None if it is empty."""
        entry = next(iter(self._lanes[lane.rank].arrivals), None)
        return None if entry is None else entry.queued_at

    def statistics(self) -> dict[str, dict[str, int]]:
        """By lane; quiescent when `waiting` and `in_flight` are 0 everywhere."""
        return {
            lane.value: {"waiting": len(queue.arrivals), "in_flight": queue.in_flight, **queue.flows.statistics()}
            for lane, queue in zip(_LANES, self._lanes, strict=True)
        }

    def __repr__(self) -> str:
        counts = (
            f"{lane.value}={len(queue.arrivals)}/{queue.in_flight}"
            for lane, queue in zip(_LANES, self._lanes, strict=True)
        )
        return f"<FairQueue waiting/in flight: {' '.join(counts)}>"

    def _turns(self, now: float) -> Iterator[tuple[LaneQueue, int, float]]:
        """The lanes with entries in the order they may be served: (lane, rank served as, arrived by)."""
        interactive, standard, bulk = self._lanes
        if interactive.arrivals:
            yield interactive, 0, FOREVER
        if bulk.arrivals and self._is_starving(now):
            assert self.settings.lift_after_s is not None, "nobody is lifted without a time"
            yield bulk, 1, now - self.settings.lift_after_s
        standard_held = (standard.in_flight + 1) / self._weights[1]
        is_bulk_first = (bulk.in_flight + 1) / self._weights[2] < standard_held
        if bulk.arrivals and is_bulk_first:
            yield bulk, 2, FOREVER
        if standard.arrivals:
            yield standard, 1, FOREVER
        if bulk.arrivals and not is_bulk_first:
            yield bulk, 2, FOREVER

    def _is_starving(self, now: float) -> bool:
        """Whether the next entry of the bulk lane has waited long enough to be lifted."""
        lift_after_s = self.settings.lift_after_s
        if lift_after_s is None or self._num_lifted >= self.settings.lifted_at_once:
            return False
        since = self._lanes[2].next_since
        return since is not None and since <= now - lift_after_s

    def _above(self, rank: int, in_lane: int) -> int:
        """Dispatches of other lanes before the lane's `in_lane`-th."""
        if rank == 0:
            return 0
        other = 3 - rank  # of standard and bulk, the one that is not asked about
        by_turns = int(in_lane * self._weights[other] / self._weights[rank])
        return len(self._lanes[0].arrivals) + min(len(self._lanes[other].arrivals), by_turns)

    def _dispatched(self, picked: Picked) -> Picked:
        self._deadlines.discard(picked.entry)
        self._num_lifted += picked.is_lifted
        return picked

    def _end(self, picked: Picked) -> bool:
        if picked.has_ended:
            return False
        picked.has_ended = True
        self._num_lifted -= picked.is_lifted
        return True

    def _lane(self, entry: Entry) -> LaneQueue:
        return self._lanes[entry.lane.rank]
