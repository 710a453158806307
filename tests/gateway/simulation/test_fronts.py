"""Our gateways in front of a simulated fleet: seats, events, and what several of them share."""

import pytest

from gateway.simulation.block_cache import FRONT, GONE
from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.fronts import kv_events, packed
from gateway.simulation.trace_fleet import TraceFleet
from gateway.simulation.trace_policies import OURS, POLICIES, FrontPlan, OurSettings
from tests.gateway.simulation.traces_kit import SIZE, fleet, recording

TRACED = recording(num=150, gap_ms=60)


class Watched(BlockReplica):
    """Remembers the most it ever had."""

    most = 0

    def submit(self, sequence, now):
        """As it is."""
        was_cut = super().submit(sequence, now)
        self.most = max(self.most, self.num_open)
        return was_cut


def ran(num_gateways, *, kv_blocks=60, **ours):
    """(replicas, front) after a run at more than they can do at once."""
    settings = fleet(3, kv_blocks=kv_blocks)
    engine = settings.engine.settings(settings.kv_tokens, SIZE)
    replicas = [Watched(f"r{number}", engine) for number in range(3)]
    front = POLICIES[OURS].build(FrontPlan(replicas, engine, num_gateways, 1), OurSettings(**ours))
    gateway_of = lambda request: request.number % num_gateways  # noqa: E731 - named for the reader
    TraceFleet(replicas, front, gateway_of=gateway_of).run(TRACED.requests, 1.0)
    return replicas, front


@pytest.mark.parametrize(("num_gateways", "seats_per_row", "most"), [(1, 1.0, 4), (4, 1.0, 4), (1, 4 / 3, 5)])
def test_no_replica_is_given_more_than_its_seats(num_gateways, seats_per_row, most):
    """Requests wait in the gateways, however many there are, but for those that may wait where their prefix is."""
    replicas, front = ran(num_gateways, seats_per_row=seats_per_row)
    assert [replica.most for replica in replicas] == [most] * 3
    assert all(len(gateway.dispatch.queue) == 0 for gateway in front._gateways)
    assert all(gateway.dispatch.router.pool.statistics().num_leases == 0 for gateway in front._gateways)


def test_the_exact_index_holds_what_the_replicas_hold():
    """Through evictions, by events alone: as many blocks, and hits as deep."""
    replicas, front = ran(2, kv_blocks=16)
    assert all(replica.cache.evictions > 0 for replica in replicas)
    for gateway in front._gateways:
        gateway.exact.check_integrity()
        for replica in replicas:
            assert gateway.exact.num_held(replica.name) == len(replica.cache.names)
        for request in TRACED.requests[-20:]:
            found = gateway.exact.hits(front._tokens(request)).tokens
            hittable = request.blocks[: (request.prompt_tokens - 1) // SIZE]
            assert found == {replica.name: replica.cache.depth(hittable) * SIZE for replica in replicas}


def test_without_events_nobody_listens():
    """Gateways go by what they sent."""
    replicas, front = ran(1, events=False)
    assert all(replica.cache.changes is None for replica in replicas)
    assert front._gateways[0].exact is None


def test_events_name_blocks_and_parents():
    """As an engine publishes them."""
    stored, child, gone = kv_events([(7, FRONT), (8, 7), (8, GONE)], 16)
    assert (stored.hashes, stored.parent, child.parent) == ((7,), None, 7)
    assert gone.hashes == (8,)
    assert len(stored.packed) == 64
    assert stored.packed != child.packed == packed(8, 16)
