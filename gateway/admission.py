"""A request waits its turn: what is asynchronous about it. Whose turn it is, `model_queue.py` says.

A request is bound to a replica only when a seat is free, so that engine queues stay short. Whoever gets a turn holds it
by `async with`; leaving gives everything back, whatever happened.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

from gateway.errors import Refused
from gateway.lane_settings import LanesSection
from gateway.model_queue import MarketRules, ModelQueue
from gateway.turn import Absent, Turn, Waiting
from gateway.turned_away import NoTurn, gave_way, no_seats, queue_full, queue_timeout, shed, stopping
from policies.caps import CapLimits, Caps
from policies.entry import Entry
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.leases import Holdings
from policies.saturation import Saturation, SaturationSettings
from routing.router import Router

# Chosen: how often waiting requests look again for what no event announces (a breaker's end). Well below the half lease
# for which a demand is remembered, or a tenant that waits for a leased cap would be forgotten before it is granted.
RECHECK_S = 0.25


class Dispatch:
    """All waiting requests, one fair queue a model. Bounded by the lanes' `queue` settings, for each model."""

    def __init__(
        self,
        router: Router,
        lanes: LanesSection,
        clock: Callable[[], float],
        *,
        holdings: Holdings | None = None,
        kv_used_ratio: Callable[[str], float] = lambda _name: 0.0,
    ) -> None:
        self._router = router
        self._clock = clock
        self._rules = MarketRules(kv_used_ratio, holdings)
        self._fair = _fair_settings(lanes)
        self._saturation = _saturation_settings(lanes)
        self._caps = Caps(holdings, self._on_give_back)
        self._models: dict[str, ModelQueue] = {}
        self._recheck: asyncio.TimerHandle | None = None
        self._recheck_at = 0.0
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Requests waiting, all models and lanes."""
        return sum(map(len, self._models.values()))

    @property
    def num_turns(self) -> int:
        """Turns given and not ended."""
        return sum(queue.num_turns for queue in self._models.values())

    def configure(self, lanes: LanesSection) -> None:
        """Other queues, weights and waits from now on. Whoever waits goes on waiting, for as long as it was told."""
        self._fair, self._saturation = _fair_settings(lanes), _saturation_settings(lanes)
        for queue in self._models.values():
            queue.queue.configure(self._fair)
            queue.saturation.settings = self._saturation
        self.wake()

    def statistics(self) -> dict[str, int]:
        """All zero when quiescent. `holds`: parts of tenants' caps. `in_flight`: charges that are not settled."""
        in_flight = sum(queue.queue.in_flight(lane) for queue in self._models.values() for lane in Lane)
        return {
            "waiting": self.num_waiting,
            "turns": self.num_turns,
            "holds": self._caps.num_holds,
            "in_flight": in_flight,
        }

    def cost(self, uncached_tokens: float, output_tokens: float) -> float:
        """What a request costs in weighted tokens."""
        return self._fair.cost(uncached_tokens, output_tokens)

    def depths(self) -> list[tuple[str, Lane, int]]:
        """(model, lane, requests waiting) for every lane in use."""
        found = ((queue.model, lane, queue.queue.depth(lane)) for queue in self._models.values() for lane in Lane)
        return [(model, lane, depth) for model, lane, depth in found if depth]

    def turn(self, entry: Entry) -> "TurnHolder":
        """An async context manager that yields a `Turn`. Entering raises `Refused` when there will be none.

        `entry.request` is a `Waiting`; `entry.deadline` is when waiting longer is of no use.
        """
        return TurnHolder(self, entry)

    def place_of(self, entry: Entry) -> tuple[int, float] | None:
        """(position from 1, seconds it may take) of a waiting request, None once it has its turn."""
        queue = self._models.get(entry.request.query.model)
        found = queue.place_of(entry, self._clock()) if queue is not None else None
        return None if found is None else (found[0].position, found[1])

    def wake(self) -> None:
        """A replica, a breaker or a lease changed: give turns to whoever can have one."""
        for queue in self._models.values():
            queue.wake()
            self._serve(queue)
        self._arm_recheck()

    def wake_caps(self) -> None:
        """Caps are others now: those that waited for them are asked again."""
        self._caps.granted()
        for queue in self._models.values():
            queue.queue.wake(with_capped=True)
        self.wake()

    def recheck(self) -> None:
        """Leases left more, or some time has passed: ask again also for what a lease refused.

        Also after a while alone, so that the demand for it stays known.
        """
        for tenant, lane in self._caps.granted():
            self._on_give_back(tenant, lane)
        self.wake()

    def recap(self, caps_of: Callable[[str, Lane], CapLimits | None]) -> None:
        """Limits changed: whoever waits is under its tenant's new caps, or its old ones where `caps_of` knows none."""
        now = self._clock()
        for queue in self._models.values():
            for entry in queue.queue.entries():
                waiting: Waiting = entry.request
                waiting.caps = caps_of(entry.tenant, entry.lane) or waiting.caps
                if waiting.caps.per_replica == 0:
                    queue.leave(entry, now)
                    _refuse(entry, no_seats(entry.lane))
        self.wake_caps()

    def close(self) -> None:
        """The gateway stops: whoever waits is refused, and so is whoever comes."""
        self._is_closed = True
        now = self._clock()
        for queue in self._models.values():
            for entry in queue.queue.entries():
                queue.leave(entry, now)
                _refuse(entry, stopping())

    def enter(self, entry: Entry) -> "asyncio.Future[Turn]":
        """Queue a request and serve its model: the future is often done when this returns. Raises `Refused`."""
        if self._is_closed:
            raise stopping()
        now = self._clock()
        waiting: Waiting = entry.request
        if waiting.caps.per_replica == 0:
            raise no_seats(entry.lane)
        queue = self._queue(waiting.query.model)
        granted: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        waiting.ticket = granted
        queue.enter(entry, now)
        self._serve(queue)
        if not granted.done():  # those who find a seat at once never waited
            self._keep_bounds(queue, entry, now)
            self._arm_recheck()
        return granted

    def leave(self, entry: Entry, granted: "asyncio.Future[Turn]") -> None:
        """Whoever waited has stopped waiting, for whatever reason; a turn granted in the same moment is given back."""
        self._queue(entry.request.query.model).leave(entry, self._clock())
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self.end(granted.result())
        granted.cancel()

    def end(self, turn: Turn) -> None:
        """A turn is over; its seat goes to whoever is next."""
        queue = self._queue(turn.decision.model)
        queue.end(turn, self._clock())
        if queue:
            self._serve(queue)

    def _queue(self, model: str) -> ModelQueue:
        queue = self._models.get(model)
        if queue is None:
            queue = ModelQueue(
                model,
                self._router,
                self._caps,
                queue=FairQueue(self._fair),
                saturation=Saturation(self._saturation),
                rules=self._rules,
            )
            self._models[model] = queue
        return queue

    def _keep_bounds(self, queue: ModelQueue, entry: Entry, now: float) -> None:
        """Refuse the newcomer where it may not wait; where too many wait now, another's surplus gives way to it."""
        overflow = queue.queue.overflow(entry)
        if overflow is not None and overflow.entry is entry:
            retry_after_s = queue.retry_after_s(entry.lane, now)
            queue.leave(entry, now)
            raise queue_full(overflow, retry_after_s)
        refusal = queue.refusal(entry, now)
        if refusal is not None:
            queue.leave(entry, now)
            raise shed(refusal, has_deadline=entry.request.has_deadline)
        if overflow is not None:
            refused = gave_way(overflow, queue.retry_after_s(entry.lane, now))
            queue.leave(overflow.entry, now)
            _refuse(overflow.entry, refused)

    def _serve(self, queue: ModelQueue) -> None:
        now = self._clock()
        if now >= queue.queue.due_at:
            for entry in queue.expire(now):
                _refuse(entry, queue_timeout(now - entry.queued_at))
        for found in queue.turns(now):
            if isinstance(found, Absent):
                _refuse(found.entry, NoTurn(found.reason))
            elif _ticket(found.entry).done():
                queue.end(found, now)  # cancelled in this very turn of the loop, before it could leave the queue
            else:
                _ticket(found.entry).set_result(found)

    def _on_give_back(self, tenant: str, lane: Lane) -> None:
        for queue in self._models.values():
            queue.queue.wake_flow(tenant, lane)

    def _arm_recheck(self) -> None:
        """Look again soon while anybody waits, and in time for the first who has waited long enough."""
        waiting = [queue for queue in self._models.values() if queue]
        if not waiting or self._is_closed:
            return
        now = self._clock()
        at = max(now, min(now + RECHECK_S, *(queue.queue.due_at for queue in waiting)))
        if self._recheck is not None:
            if self._recheck_at <= at:
                return
            self._recheck.cancel()
        self._recheck_at = at
        self._recheck = asyncio.get_running_loop().call_later(at - now, self._on_recheck)

    def _on_recheck(self) -> None:
        self._recheck = None
        self.recheck()


class TurnHolder:
    """Waits on entering, ends the turn on leaving; a cancelled wait leaves nothing behind."""

    __slots__ = ("_dispatch", "_entry", "_turn")

    def __init__(self, dispatch: Dispatch, entry: Entry) -> None:
        self._dispatch = dispatch
        self._entry = entry
        self._turn: Turn | None = None

    def place(self) -> tuple[int, float] | None:
        """(position from 1, seconds it may take) while waiting, else None."""
        return self._dispatch.place_of(self._entry)

    async def __aenter__(self) -> Turn:
        granted = self._dispatch.enter(self._entry)
        try:
            self._turn = granted.result() if granted.done() else await granted
        except asyncio.CancelledError:
            self._dispatch.leave(self._entry, granted)
            raise
        finally:
            self._entry.request.ticket = None  # it holds the turn, a ring that only the collector would free
        return self._turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self._dispatch.end(turn)


def _ticket(entry: Entry) -> "asyncio.Future[Turn]":
    ticket: asyncio.Future[Turn] = entry.request.ticket
    return ticket


def _refuse(entry: Entry, refused: Refused) -> None:
    ticket = _ticket(entry)
    if not ticket.done():
        ticket.set_exception(refused)


def _fair_settings(lanes: LanesSection) -> FairSettings:
    rules = {
        Lane.INTERACTIVE: LaneRule(bound=lanes.interactive.queue),
        Lane.STANDARD: LaneRule(weight=lanes.standard.weight, bound=lanes.standard.queue),
        Lane.BULK: LaneRule(weight=lanes.bulk.weight, bound=lanes.bulk.queue),
    }
    return FairSettings(lanes=rules, lift_after_s=lanes.bulk.lift_after_s)


def _saturation_settings(lanes: LanesSection) -> SaturationSettings:
    return SaturationSettings(max_wait_s={lane: lanes.of(lane).max_wait_s for lane in Lane})
