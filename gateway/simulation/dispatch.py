"""Who gets which seat, in virtual time: the router, pool and queue of live traffic, driven by events.

`LaneOrder` is the order of `gateway.admission` today. A turn's story is the lifecycle's: lease, first content, settle
(what the engine reported teaches router and queue), lease ended, and whoever waits is looked at again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from gateway.simulation.workload import SimulatedRequest
from policies.lane import Lane
from routing.decision import RouteDecision
from routing.lease import Lease
from routing.query import RouteQuery
from routing.router import Router


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request in the gateway's queue."""

    request: SimulatedRequest
    query: RouteQuery
    since: float


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The right to one attempt: a seat on the replica the decision chose, from `at` on."""

    waiting: Waiting
    decision: RouteDecision
    lease: Lease
    at: float


@dataclass(frozen=True, slots=True)
class Served:
    """The work a request really was, whether it ended well or its client left: what its flow is charged for."""

    uncached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine reported of a request. `ttft_s`: from dispatch; None if no token came."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None


class TurnOrder(Protocol):
    """The queue before the replicas: who is next, and where."""

    def __len__(self) -> int:
        """Requests waiting."""
        ...

    def push(self, waiting: Waiting, now: float) -> bool:
        """Let a request wait; False if its queue is full."""
        ...

    def leave(self, waiting: Waiting, now: float) -> None:
        """Its client has left; harmless if it does not wait (any more)."""
        ...

    def turns(self, now: float) -> Iterator[Turn]:
        """The turns that can be given now, each with its lease already taken."""
        ...

    def settle(self, turn: Turn, served: Served, now: float) -> None:
        """A turn is over. Its lease is still open, and ended before anybody is asked for turns again."""
        ...


class LaneOrder:
    """Lanes strictly in order, first come first served in each; the head of a lane waits for its seat."""

    def __init__(self, router: Router, bounds: dict[Lane, int] | None = None) -> None:
        self._router = router
        self._bounds = bounds or {}
        self._lanes: dict[Lane, dict[int, Waiting]] = {lane: {} for lane in sorted(Lane, key=lambda lane: lane.rank)}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def push(self, waiting: Waiting, now: float) -> bool:  # noqa: ARG002 - others order by time
        """Let a request wait; False if its lane is full."""
        lane = self._lanes[waiting.request.lane]
        if len(lane) >= self._bounds.get(waiting.request.lane, 1 << 30):
            return False
        lane[id(waiting)] = waiting
        return True

    def leave(self, waiting: Waiting, now: float) -> None:  # noqa: ARG002 - others count it
        """Its client has left."""
        self._lanes[waiting.request.lane].pop(id(waiting), None)

    def turns(self, now: float) -> Iterator[Turn]:
        """Turns until the head of every lane has no seat."""
        for lane in self._lanes.values():
            while lane:
                waiting = next(iter(lane.values()))
                turn = lease_of(self._router, waiting, now)
                if turn is None:
                    break
                del lane[id(waiting)]
                yield turn

    def settle(self, turn: Turn, served: Served, now: float) -> None:
        """Nothing to learn here."""


class Dispatch:
    """Queue, router and pool together, as the simulation drives them."""

    def __init__(self, router: Router, order: TurnOrder) -> None:
        self.router = router
        self.order = order

    def turns(self, now: float) -> list[Turn]:
        """All turns that can be given now."""
        return list(self.order.turns(now)) if len(self.order) else []

    def first_token(self, turn: Turn) -> None:
        """The prompt is read."""
        turn.lease.prefilled()

    def finished(self, turn: Turn, usage: Usage, now: float) -> None:
        """The answer is complete: learn from it, give the seat back."""
        self.router.settled(
            turn.decision, turn.lease, now=now, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens,
            ttft_s=usage.ttft_s,
        )  # fmt: skip
        self.order.settle(turn, Served(usage.prompt_tokens - usage.cached_tokens, usage.output_tokens), now)
        turn.lease.end()

    def abandoned(self, turn: Turn, served: Served, now: float) -> None:
        """Its client has left: the work is charged and nothing else learned."""
        self.order.settle(turn, served, now)
        turn.lease.end()


def lease_of(router: Router, waiting: Waiting, now: float) -> Turn | None:
    """Route and lease as one step; None if there is no seat for it now."""
    decision = router.route(waiting.query, now)
    if not isinstance(decision, RouteDecision):
        return None
    lease = router.pool.lease(decision, now)
    return Turn(waiting, decision, lease, now) if lease is not None else None
