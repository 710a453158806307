"""What `/metrics` reads at each scrape: the gauges, and what is counted elsewhere."""

from collections.abc import Callable

from gateway import held_back
from gateway.parts import Parts
from observability.metrics import GaugeRows


def gauges(parts: Callable[[], Parts]) -> Callable[[], GaugeRows]:
    """The gauges of `/metrics` and what is counted elsewhere, read at each scrape."""

    def rows() -> GaugeRows:
        now = parts()
        for model, lane, depth in now.dispatch.depths():
            yield "warmlane_queue_depth", {"model": model, "lane": lane.value}, depth
        if now.peers is not None:
            yield "warmlane_gateways", {}, now.peers.num_gateways
            yield "warmlane_gateways_degraded", {}, now.peers.is_degraded
            yield "warmlane_limits_degraded", {}, now.peers.is_limits_degraded
        yield from () if now.gossip is None else now.gossip.gauges()
        yield from now.kept_answers.gauges()
        yield from now.traffic.gauges()
        yield from held_back.gauges(now.router.pool, now.clock())
        ledger = ledger_counts(now)
        yield "warmlane_ledger_dropped_total", {}, ledger["dropped"]
        yield "warmlane_ledger_restored_total", {}, ledger["restored"]
        loads = dict(now.fleet.loads())
        for replica in now.router.pool.statistics().replicas:
            label = {"replica": replica.name}
            yield "warmlane_replica_seats", label, replica.seats
            yield "warmlane_bulk_seats", label, replica.bulk_seats
            yield "warmlane_replica_state", {**label, "state": replica.state.value}, 1
            load = loads.get(replica.name)
            running = load.running if load and load.running is not None else sum(replica.in_flight.values())
            yield "warmlane_replica_running", label, running
            if load is not None and load.waiting is not None:
                yield "warmlane_replica_waiting", label, load.waiting
            if load is not None and load.kv_used_ratio is not None:
                yield "warmlane_replica_kv_used_ratio", label, load.kv_used_ratio
            yield from now.kv_streams.gauges(replica.name)

    return rows


def ledger_counts(parts: Parts) -> dict[str, int]:
    """Lines that found no room, and files that were made again."""
    parts.journal.check()  # an idle gateway has no other occasion to notice that its file was taken away
    return {"dropped": parts.journal.num_dropped, "restored": parts.journal.num_restored}
