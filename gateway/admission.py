"""A request waits its turn: for a seat on the replica that suits it, in its lane, first come first served.

Lanes are served strictly in order. A request is bound to a replica only when a seat is free, so that engine queues stay
short. Whoever gets a turn holds a lease; leaving the turn gives it back, whatever happened.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from gateway.errors import Refused
from gateway.outcome import Outcome
from gateway.settings import LanesSection
from policies.lane import Lane
from routing.decision import Absence, Full, NoReplica, RouteDecision
from routing.lease import Lease
from routing.query import RouteQuery
from routing.router import Router

RECHECK_S = 0.25  # chosen: how often waiting requests look again for what no event announces (a breaker's end)
_LANES = sorted(Lane, key=lambda lane: lane.rank)


class NoTurn(Refused):
    """There is no replica to wait for."""

    def __init__(self, absence: NoReplica) -> None:
        retry_after_s = absence.retry_after_s or (1.0 if absence.reason is Absence.UNKNOWN_MODEL else None)
        super().__init__(
            absence.reason.value,
            code="no_replica_" + absence.reason.name.lower(),
            status=503,
            retry_after_s=retry_after_s,
            outcome=Outcome.SHED,
        )


@dataclass(slots=True)
class Turn:
    """The right to one attempt. `queued_s`: how long it was waited for."""

    decision: RouteDecision
    lease: Lease
    queued_s: float


class _Waiter:
    __slots__ = ("enqueued_at", "granted", "query")

    def __init__(self, query: RouteQuery, granted: "asyncio.Future[Turn]", now: float) -> None:
        self.query = query
        self.granted = granted
        self.enqueued_at = now


Queues = dict[Lane, dict[int, _Waiter]]


class Dispatch:
    """All waiting requests, by model and lane. Bounded by the lanes' `queue` settings."""

    def __init__(self, router: Router, lanes: LanesSection, clock: Callable[[], float]) -> None:
        self._router = router
        self._lanes = lanes
        self._clock = clock
        self._waiting: dict[str, Queues] = {}
        self._num_waiting = dict.fromkeys(Lane, 0)
        self._grant_gap_s = 1.0  # mean time between turns given to waiting requests; for the estimate they are told
        self._last_grant_at = 0.0
        self._recheck: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Requests waiting in all lanes."""
        return sum(self._num_waiting.values())

    def depths(self) -> list[tuple[str, Lane, int]]:
        """(model, lane, requests waiting) for every queue in use."""
        return [(model, lane, len(queue)) for model, queues in self._waiting.items() for lane, queue in queues.items()]

    def turn(self, query: RouteQuery, max_wait_s: float) -> "_TurnHolder":
        """An async context manager that yields a `Turn`. Entering raises `Refused` when there will be none."""
        return _TurnHolder(self, query, max_wait_s)

    def place_of(self, query: RouteQuery) -> tuple[int, float] | None:
        """(position in its lane from 1, seconds it may take) of a waiting request, None once it has its turn."""
        for place, waiter in enumerate(self._queue(query).values(), start=1):
            if waiter.query is query:
                return place, place * self._grant_gap_s
        return None

    def wake(self) -> None:
        """A seat, a replica or a breaker changed: give turns to whoever can have one, in order."""
        now = self._clock()
        for model in list(self._waiting):
            for lane in _LANES:
                self._serve_lane(model, lane, now)
        self._arm_recheck()

    def close(self) -> None:
        """The gateway stops: whoever waits is refused, and so is whoever comes."""
        self._is_closed = True
        for queues in self._waiting.values():
            for queue in queues.values():
                for waiter in queue.values():
                    if not waiter.granted.done():
                        waiter.granted.set_exception(_stopping())

    def enter_nowait(self, query: RouteQuery, now: float) -> Turn | None:
        """A turn right away, or None if one must wait. Raises `Refused` when there will be none."""
        if self._is_closed:
            raise _stopping()
        if query.model in self._waiting:
            if any(not waiter.granted.done() for waiter in self._queue(query).values()):
                return None  # nobody overtakes in a lane
            for lane in _LANES[: query.lane.rank]:
                self._serve_lane(query.model, lane, now)  # a newcomer takes only what higher lanes leave
        return self._try(query, now, now)

    def enqueue(self, query: RouteQuery, now: float) -> "asyncio.Future[Turn]":
        """Wait in the lane. Raises `Refused` (429) when it is full."""
        section = self._lanes.of(query.lane)
        if self._num_waiting[query.lane] >= section.queue:
            raise Refused(
                f"the {query.lane.value} lane is full: {section.queue} requests are waiting",
                code="queue_full",
                status=429,
                retry_after_s=max(1.0, self._grant_gap_s),
            )
        if not self.num_waiting:
            self._last_grant_at = now  # the time before anybody waited says nothing of how long a wait takes
        waiter = _Waiter(query, asyncio.get_running_loop().create_future(), now)
        self._waiting.setdefault(query.model, {}).setdefault(query.lane, {})[id(waiter.granted)] = waiter
        self._num_waiting[query.lane] += 1
        self._arm_recheck()
        return waiter.granted

    def leave_queue(self, query: RouteQuery, granted: "asyncio.Future[Turn]") -> None:
        """Whoever waited has stopped waiting, for whatever reason. A turn granted meanwhile is given back."""
        queues = self._waiting.get(query.model, {})
        queue = queues.get(query.lane, {})
        if queue.pop(id(granted), None) is not None:
            self._num_waiting[query.lane] -= 1
        if not queue:
            queues.pop(query.lane, None)
        if not queues:
            self._waiting.pop(query.model, None)

    def _queue(self, query: RouteQuery) -> dict[int, _Waiter]:
        return self._waiting.get(query.model, {}).get(query.lane, {})

    def _serve_lane(self, model: str, lane: Lane, now: float) -> None:
        for waiter in self._waiting.get(model, {}).get(lane, {}).values():
            if waiter.granted.done():
                continue
            try:
                turn = self._try(waiter.query, waiter.enqueued_at, now)
            except Refused as refused:
                waiter.granted.set_exception(refused)
                continue
            if turn is None:
                return  # order is strict: the head of the lane waits for its seat
            waiter.granted.set_result(turn)
            self._note_grant(now)

    def _try(self, query: RouteQuery, since: float, now: float) -> Turn | None:
        """Route and lease as one step; a seat that is gone by then means routing again, with one replica less."""
        for _ in range(1 + len(self._router.pool)):
            decision = self._router.route(query, now)
            if isinstance(decision, Full):
                return None
            if isinstance(decision, NoReplica):
                raise NoTurn(decision)
            lease = self._router.pool.lease(decision, now)
            if lease is not None:
                return Turn(decision, lease, now - since)
        return None

    def _note_grant(self, now: float) -> None:
        gap_s = min(60.0, max(0.0, now - self._last_grant_at))
        self._grant_gap_s += 0.2 * (gap_s - self._grant_gap_s)
        self._last_grant_at = now

    def _arm_recheck(self) -> None:
        if self._recheck is None and self._waiting and not self._is_closed:
            self._recheck = asyncio.get_running_loop().call_later(RECHECK_S, self._on_recheck)

    def _on_recheck(self) -> None:
        self._recheck = None
        self.wake()


class _TurnHolder:
    """Waits on entering, gives the lease back on leaving; a cancelled wait leaves nothing behind."""

    __slots__ = ("_dispatch", "_max_wait_s", "_query", "_turn")

    def __init__(self, dispatch: Dispatch, query: RouteQuery, max_wait_s: float) -> None:
        self._dispatch = dispatch
        self._query = query
        self._max_wait_s = max_wait_s
        self._turn: Turn | None = None

    async def __aenter__(self) -> Turn:
        dispatch = self._dispatch
        now = dispatch._clock()  # noqa: SLF001  # one module, two halves
        self._turn = dispatch.enter_nowait(self._query, now)
        if self._turn is None:
            self._turn = await self._wait(dispatch.enqueue(self._query, now))
        return self._turn

    async def _wait(self, granted: "asyncio.Future[Turn]") -> Turn:
        try:
            async with asyncio.timeout(self._max_wait_s):
                return await granted
        except TimeoutError:
            self._give_back(granted)
            raise Refused(
                f"no seat became free within {self._max_wait_s:.3g} s",
                code="queue_timeout",
                status=503,
                retry_after_s=1.0,
                outcome=Outcome.SHED,
            ) from None
        except asyncio.CancelledError:
            self._give_back(granted)
            raise
        finally:
            self._dispatch.leave_queue(self._query, granted)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._turn is not None:
            self._end(self._turn)
            self._turn = None

    def _give_back(self, granted: "asyncio.Future[Turn]") -> None:
        """A turn that was granted in the same moment as its waiter left must not keep its seat."""
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self._end(granted.result())
        granted.cancel()

    def _end(self, turn: Turn) -> None:
        turn.lease.end()
        if self._dispatch.num_waiting:
            self._dispatch.wake()


def _stopping() -> Refused:
    return Refused("the gateway is stopping", code="stopping", status=503, retry_after_s=1.0, outcome=Outcome.STOPPED)
