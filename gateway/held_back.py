"""What `/metrics` says of replicas that are held back."""

from observability.metrics import GaugeRows
from routing.pool import ReplicaPool


def gauges(pool: ReplicaPool, now: float) -> GaugeRows:
    """What each replica may have of its seats, and how often any was ejected."""
    for replica in pool:
        yield "warmlane_replica_share", {"replica": replica.name}, pool.holdbacks.share(replica.name, now)
    for (model, because), number in pool.holdbacks.num_ejected.items():
        yield "warmlane_ejections_total", {"model": model, "because": because.value}, number
