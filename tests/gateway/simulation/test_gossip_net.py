"""Simulated gateways that gossip: eight hit as one does, and deaf ones do not."""

from dataclasses import replace

from gateway.simulation.gossip_net import GossipNet, gossiper
from gateway.simulation.trace_policies import OURS, OurSettings
from gateway.simulation.trace_run import run_trace
from tests.gateway.simulation.traces_kit import fleet, recording
from tests.routing.fleet import Fleet

CHATS = recording(num=400, num_chats=24, gap_ms=150)


def hits(num_gateways, seed, gossip_s=0.02):
    """Tokens hit of conversations that are longer than what a fleet holds; engines tell nothing."""
    settings = replace(fleet(6, kv_blocks=60), num_gateways=num_gateways)
    return run_trace(CHATS, settings, OURS, OurSettings(events=False, gossip_s=gossip_s), seed).hit_tokens


def test_eight_gateways_hit_as_one():
    """At least 97% of one's hit tokens with 20 ms until the others know; deaf ones lose most of it."""
    one = sum(hits(1, seed) for seed in range(1, 5))
    assert sum(hits(8, seed) for seed in range(1, 5)) >= 0.97 * one
    assert 4 * hits(8, 1, gossip_s=None) < 0.8 * one


def test_the_same_seed_gives_the_same_gossip():
    """A run repeats to the last digit, gossip and all."""
    assert hits(3, 1) == hits(3, 1)


def test_what_is_told_arrives_after_its_time_and_not_before():
    """20 ms to be made into a message, then the way."""
    fleets = [Fleet(2), Fleet(2)]
    ours = [gossiper(one.router, number, 2) for number, one in enumerate(fleets, start=1)]
    net = GossipNet(ours, 0.1)
    lease = fleets[0].dispatch("some words " * 100)
    net.noted(0, 100.0)
    for at, num in ((100.05, 0), (100.119, 0), (100.121, 1)):
        net.advance(at)
        assert fleets[1].pool.get(lease.replica.name).num_flying == num
    lease.end()
    net.noted(0, 100.2)
    net.advance(101.0)
    assert fleets[1].pool.get(lease.replica.name).num_flying == 0
    assert repr(net).startswith("<GossipNet 2 gateways")
    net.advance(1000.0)
    assert len(net._timeline) == 0, "nothing goes on when nothing is under way"
