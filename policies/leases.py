"""What one gateway may use of counted units that all gateways share: seats of a replica, a tenant's caps.

A gateway takes and gives back units here without a round trip; how many it may hold is agreed in the background by
reports and grants (`policies/lease_table.py` is the rule on the other side). Once its lease has run out it takes
nothing new, so that the sum over all gateways stays within the limit. Knows no clock and no network.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies.lane import Lane

LEASE_S = 4.0  # chosen: a few stalls of a gateway or the store fit in, and a dead gateway's units return soon
TRUSTED_RATIO = 0.9  # of a lease, on the gateway's side: what clocks that run apart and a slow abort may use up
MAX_PER_REPORT = 256  # chosen: about 25 kB and well under a millisecond of the store
MAX_RESOURCES = 65_536  # of one gateway; the idle ones are dropped within a lease


def seat(replica: str) -> str:
    """The seats of a replica."""
    return f"seat:{replica}"


def seats(replica: str, lane: Lane, limits: Sequence[int], bulk_seats: int | None = None) -> Iterator[tuple[str, int]]:
    """(resource, limit) of each unit that a request of this lane takes on a replica.

    `limits`: seats below which each lane, by rank, may take one. A lower lane takes a unit at every level down to its
    own, so that what is reserved for a higher lane stays free over all gateways together. `bulk_seats`: bulk's own,
    where it does not share.
    """
    if bulk_seats is not None and lane is Lane.BULK:
        yield f"{seat(replica)}:{lane.value}", bulk_seats
        return
    for above in sorted(Lane, key=lambda one: one.rank)[: lane.rank + 1]:
        yield f"{seat(replica)}:{above.value}", limits[above.rank]


def cap(of: str, lane: Lane) -> str:
    """The requests in flight in a lane of a tenant, or of one of its levels (`project:ID`, `organization:ID`)."""
    return f"cap:{of}:{lane.value}"


def batch(project_id: str, lane: Lane, replica: str) -> str:
    """A tenant's seats in one replica's batch, in a lane."""
    return f"batch:{project_id}:{lane.value}:{replica}"


def family_of(resource: str) -> str:
    """`seat`, `cap` or `batch`."""
    return resource.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Ask:
    """One resource in a report. The gateway uses no more than `held` units until it has an answer.

    `wanted`: how many it had use for lately, those in use included. `limit`: of all gateways together, as it knows it.
    `is_urgent`: who lacks a unit now is refused, not queued, so the others give up at once what they hold unused.
    """

    resource: str
    held: int
    in_use: int
    wanted: int
    limit: int
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a gateway tells. `epoch`: 0 or the last one told to it; `seq` grows; `sent_at`: its own monotonic clock."""

    gateway: str
    epoch: int
    seq: int
    sent_at: float
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True)
class Grants:
    """The answer to one report. `allowed`: units, in the order of the asks.

    `is_stale`: the report was overtaken by a later one and changed nothing. `is_recovering`: nothing new is granted.
    `contended`: resources that another gateway should report on now, for the table's host to pass on. `unused`: units
    of each that nobody uses, as everyone last said, whoever holds them.
    """

    epoch: int
    num_gateways: int
    allowed: tuple[int, ...]
    is_recovering: bool = False
    is_stale: bool = False
    contended: tuple[str, ...] = ()
    unused: tuple[int, ...] = ()


class Holdings(Protocol):
    """The side that dispatch and admission see; the same with one process and with many."""

    def try_take(self, resource: str, limit: int, now: float, waiting: int = 1) -> bool:
        """Whether a unit was taken. `waiting`: requests that could use one now, this one included."""
        ...

    def may_come(self, resource: str, now: float) -> bool:
        """Whether a unit that was refused just now may be had in a moment; for whoever would be refused, not queued."""
        ...

    def give_back(self, resource: str) -> None:
        """A taken unit is free again. Called exactly once for each unit taken."""
        ...

    def relimit(self, resource: str, limit: int) -> None:
        """A limit changed; what is above it in use stays in use until it is given back."""
        ...

    def overdue(self, now: float) -> dict[str, int]:
        """Units in use that this gateway has no valid lease for; a strict gateway ends what uses them."""
        ...

    def statistics(self) -> dict[str, int]:
        """`units_in_use` is 0 when quiescent."""
        ...


class SoleHoldings:
    """One process: every limit is its own, exact and without reports."""

    def __init__(self) -> None:
        self._in_use: dict[str, int] = {}

    def try_take(self, resource: str, limit: int, now: float, waiting: int = 1) -> bool:  # noqa: ARG002
        """Whether fewer than `limit` were in use."""
        in_use = self._in_use.get(resource, 0)
        if in_use >= limit:
            return False
        self._in_use[resource] = in_use + 1
        return True

    def may_come(self, resource: str, now: float) -> bool:  # noqa: ARG002
        """Never: what is free is here."""
        return False

    def give_back(self, resource: str) -> None:
        """A taken unit is free again."""
        in_use = self._in_use.get(resource, 0)
        assert in_use > 0, f"{resource} was given back more often than taken"
        if in_use == 1:
            del self._in_use[resource]
        else:
            self._in_use[resource] = in_use - 1

    def relimit(self, resource: str, limit: int) -> None:
        """Nothing to do: the limit comes with every take."""

    def overdue(self, now: float) -> dict[str, int]:  # noqa: ARG002
        """Nothing, ever."""
        return {}

    def statistics(self) -> dict[str, int]:
        """`resources` are those with units in use."""
        return {"units_in_use": sum(self._in_use.values()), "resources": len(self._in_use)}

    def __repr__(self) -> str:
        return f"<SoleHoldings units_in_use={sum(self._in_use.values())}>"
