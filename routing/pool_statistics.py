"""What can be counted of a pool and its replicas, as values for the admin plane and the metrics."""

from dataclasses import dataclass

from policies.lane import Lane
from routing.replica import Replica, ReplicaState


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """One replica for the admin plane and the metrics. `in_flight`: open leases by lane.

    `bulk_seats`: what bulk may hold of it beside the present interactive work.
    """

    name: str
    model: str
    state: ReplicaState
    seats: int
    in_flight: dict[Lane, int]
    outstanding_tokens: int
    shadow_nodes: int
    shadow_bytes: int
    prefill_rate: float
    hit_confidence: float
    bulk_seats: int


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """`num_leases`: open ones, those on removed replicas included; zero when quiescent."""

    num_leases: int
    replicas: tuple[ReplicaStatistics, ...]


def statistics_of(replica: Replica) -> ReplicaStatistics:
    """One replica's, at this moment."""
    shadow = replica.shadow.statistics()
    return ReplicaStatistics(
        name=replica.name, model=replica.spec.model, state=replica.state, seats=replica.spec.seats,
        in_flight={lane: replica.in_flight[lane.rank] for lane in Lane},
        outstanding_tokens=replica.own_tokens, shadow_nodes=shadow.num_nodes, shadow_bytes=shadow.held_bytes,
        prefill_rate=replica.ttft.prefill_rate, hit_confidence=replica.confidence.value,
        bulk_seats=min(replica.bulk_seats, replica.seat_limits[Lane.BULK.rank]),
    )  # fmt: skip
