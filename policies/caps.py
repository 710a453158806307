"""How much of the engines one tenant may hold at once in a lane: requests in flight, and seats in one replica's batch.

A full cap is no refusal: the request waits in its lane while others pass it. Counted here and exactly for one process;
with several gateways each unit is also leased (`policies/leases.py`), and what the lease refused is not asked for
again until something was given back or granted. Knows no clock and no network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from policies.lane import Lane
from policies.leases import Holdings, batch, cap


@dataclass(frozen=True, slots=True)
class CapLimits:
    """A tenant's caps in one lane; None means no cap. 0 lets nothing through: refuse such a request, do not queue it.

    `in_flight`: over all replicas. `per_replica`: seats in one replica's batch (the contract's `batch_cap`).
    """

    in_flight: int | None = None
    per_replica: int | None = None


_NO_LIMITS = CapLimits()


class _Held:
    """What one tenant holds in one lane. `refused`: what the lease refused; "" stands for in flight."""

    __slots__ = ("by_replica", "in_flight", "refused")

    def __init__(self) -> None:
        self.in_flight = 0
        self.by_replica: dict[str, int] = {}
        self.refused: set[str] = set()

    @property
    def is_unused(self) -> bool:
        return not self.in_flight and not self.refused


class Hold:
    """One request's part of its tenant's caps. Given back exactly once; a second time changes nothing."""

    __slots__ = ("_caps", "_leased", "has_ended", "lane", "replica", "tenant")

    def __init__(self, caps: "Caps", tenant: str, lane: Lane, replica: str, leased: tuple[str, ...]) -> None:
        self._caps = caps
        self._leased = leased
        self.tenant = tenant
        self.lane = lane
        self.replica = replica
        self.has_ended = False

    def give_back(self) -> None:
        """The request holds nothing any more."""
        if not self.has_ended:
            self.has_ended = True
            self._caps.end(self, self._leased)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.give_back()

    def __repr__(self) -> str:
        return f"<Hold {self.tenant} {self.lane.value} {self.replica} {'ended' if self.has_ended else 'held'}>"


class Caps:
    """What every tenant holds now; those that hold nothing are dropped. Limits come with each call and act at once.

    `holdings`: the leases where gateways share the caps, None for one process. `on_give_back`: called after a part was
    given back, for `FairQueue.wake_flow`.
    """

    def __init__(
        self, holdings: Holdings | None = None, on_give_back: Callable[[str, Lane], None] = lambda _tenant, _lane: None
    ) -> None:
        self._holdings = holdings
        self._on_give_back = on_give_back
        self._held: dict[tuple[str, Lane], _Held] = {}
        self._refused: dict[tuple[str, Lane], _Held] = {}  # those of `_held` that a lease refused something
        self.num_holds = 0

    def can_take(self, tenant: str, lane: Lane, limits: CapLimits, replica: str | None = None) -> bool:
        """Whether the tenant may have one more in flight, and on this replica if one is given. Does not mutate."""
        held = self._held.get((tenant, lane))
        if held is None:
            return limits.in_flight != 0 and (replica is None or limits.per_replica != 0)
        if held.refused and (  # by a lease; another request of the flow may have limits that this one has not
            (limits.in_flight is not None and "" in held.refused)
            or (limits.per_replica is not None and replica in held.refused)
        ):
            return False
        if limits.in_flight is not None and held.in_flight >= limits.in_flight:
            return False
        return replica is None or limits.per_replica is None or held.by_replica.get(replica, 0) < limits.per_replica

    def take(self, tenant: str, lane: Lane, limits: CapLimits, replica: str, now: float) -> Hold | None:
        """Count one more, or None where a cap or a lease forbids it; then nothing is counted."""
        if not self.can_take(tenant, lane, limits, replica):
            return None
        leased: tuple[str, ...] = ()
        if self._holdings is not None and limits != _NO_LIMITS:
            refusal = self._lease(self._holdings, tenant, lane, limits, replica=replica, now=now)
            if isinstance(refusal, str):
                self._refuse(tenant, lane, refusal)
                return None
            leased = refusal
        held = self._held.setdefault((tenant, lane), _Held())
        held.in_flight += 1
        held.by_replica[replica] = held.by_replica.get(replica, 0) + 1
        self.num_holds += 1
        return Hold(self, tenant, lane, replica, leased)

    def granted(self) -> list[tuple[str, Lane]]:
        """The leases changed: who was refused may ask again. Those flows, to be woken."""
        flows = list(self._refused)
        for flow, held in self._refused.items():
            held.refused.clear()
            if held.is_unused:
                del self._held[flow]
        self._refused.clear()
        return flows

    def in_flight(self, tenant: str, lane: Lane, replica: str | None = None) -> int:
        """What the tenant holds in the lane, on one replica or on all."""
        held = self._held.get((tenant, lane))
        if held is None:
            return 0
        return held.in_flight if replica is None else held.by_replica.get(replica, 0)

    def end(self, hold: Hold, leased: tuple[str, ...]) -> None:
        """Take back a hold; called by the hold itself, once."""
        flow = (hold.tenant, hold.lane)
        held = self._held[flow]
        held.in_flight -= 1
        held.by_replica[hold.replica] -= 1
        if not held.by_replica[hold.replica]:
            del held.by_replica[hold.replica]
        held.refused.clear()
        self._refused.pop(flow, None)
        if held.is_unused:
            del self._held[flow]
        self.num_holds -= 1
        if self._holdings is not None:
            for resource in leased:
                self._holdings.give_back(resource)
        self._on_give_back(hold.tenant, hold.lane)

    def statistics(self) -> dict[str, int]:
        """`holds` is 0 when quiescent; `flows` are those that hold something or were refused by a lease."""
        return {"holds": self.num_holds, "flows": len(self._held), "refused": len(self._refused)}

    def __repr__(self) -> str:
        return f"<Caps holds={self.num_holds} flows={len(self._held)}>"

    def _lease(
        self, holdings: Holdings, tenant: str, lane: Lane, limits: CapLimits, *, replica: str, now: float
    ) -> tuple[str, ...] | str:
        """The resources taken of the lease, or what was refused: "" for in flight, else the replica."""
        leased: list[str] = []
        if limits.in_flight is not None:
            if not holdings.try_take(cap(tenant, lane), limits.in_flight, now):
                return ""
            leased.append(cap(tenant, lane))
        if limits.per_replica is not None:
            resource = batch(tenant, lane, replica)
            if not holdings.try_take(resource, limits.per_replica, now):
                for taken in leased:
                    holdings.give_back(taken)
                return replica
            leased.append(resource)
        return tuple(leased)

    def _refuse(self, tenant: str, lane: Lane, what: str) -> None:
        held = self._held.setdefault((tenant, lane), _Held())
        held.refused.add(what)
        self._refused[tenant, lane] = held
