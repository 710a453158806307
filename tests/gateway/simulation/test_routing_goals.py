"""What routing promises, in virtual time: hot prefixes spread, capacity is learned, unlike engines share the work."""

import functools
from collections import Counter
from dataclasses import replace

import pytest

from gateway.simulation.prompts import Passage
from gateway.simulation.run import FleetSettings, RunSettings, build
from gateway.simulation.workload import PoissonStream, Shape, SimulatedRequest, Spread, Trace
from policies.lane import Lane
from tests.benchmarks.simulated import PROFILES

GPU = PROFILES["gpu"].engine
HEAD_TOKENS, NUM_TAILS = 4000, 1000


def hot_requests(rate_per_s):
    """One system prompt, a thousand distinct tails, one after the other."""
    head = Passage(1, HEAD_TOKENS)
    return [
        SimulatedRequest(
            f"{n}", "alder", Lane.INTERACTIVE, n / rate_per_s, (head, Passage(10 + n, 60)), Passage(5000 + n, 100)
        )
        for n in range(NUM_TAILS)
    ]


@pytest.mark.parametrize("rate_per_s", [60.0, 250.0])
def test_a_hot_prefix_loads_no_replica_above_its_share(rate_per_s):
    """A 4,000-token system prompt with 1,000 tails over 8 replicas: the busiest has at most 1.3 times the mean."""
    fleet = FleetSettings(8, GPU, seats=32)
    end_s = NUM_TAILS / rate_per_s
    simulation = build(fleet, RunSettings(end_s + 30), [Trace(hot_requests(rate_per_s))])
    held = Counter()
    pool, lease = simulation.dispatch.router.pool, simulation.dispatch.router.pool.lease

    def counted(decision, now):
        if now > 0.3 * end_s:
            held.update({replica.name: replica.num_in_flight for replica in pool})
        return lease(decision, now)

    pool.lease = counted
    simulation.run_until(end_s + 30)
    assert len(held) == 8
    assert max(held.values()) <= 1.3 * sum(held.values()) / 8


KV_TOKENS, RATE_PER_S, NUM_LEARNING = 12_288, 60.0, 2000


@functools.cache
def late_hits(guess):
    """(hit share of requests after the first 2,000, learned capacity), told `guess` times the true KV size."""
    engine = replace(GPU, scheduler=replace(GPU.scheduler, kv_tokens=KV_TOKENS))
    shape = Shape(
        100, Spread(120, 0.5), Spread(10, 0.3), num_systems=4, mean_turns=8, num_open=100, max_prompt_tokens=1200
    )
    talks = PoissonStream("alder", Lane.INTERACTIVE, shape, rate_per_s=RATE_PER_S, seed=5)
    after_s = NUM_LEARNING / RATE_PER_S
    run = RunSettings(after_s + 12.0, warm_up_s=after_s, tail_s=0.5)
    simulation = build(FleetSettings(4, engine, seats=32), run, [talks])
    pool = simulation.dispatch.router.pool
    for replica in pool:
        pool.upsert(replace(replica.spec, kv_tokens=round(KV_TOKENS * guess)), 0.0)
    simulation.run_until(run.duration_s)
    group = simulation.result().lanes[Lane.INTERACTIVE]
    return group.hit_tokens / group.prompt_tokens, next(iter(pool)).shadow.capacity_bytes / (4 * KV_TOKENS)


@pytest.mark.parametrize("guess", [0.5, 2.0])
def test_a_wrong_capacity_comes_back_within_2000_requests(guess):
    """Predicted hits alone: what engines report mends a KV size that is off by two."""
    hits, capacity = late_hits(guess)
    rightly_guessed, _ = late_hits(1.0)
    assert hits >= 0.9 * rightly_guessed
    assert capacity == pytest.approx(1.0, abs=0.25)


def test_the_same_model_on_unlike_engines_is_one_pool():
    """Two replicas and two that take four times as long: near saturation each reads in proportion to what it can."""
    engine = replace(GPU, scheduler=replace(GPU.scheduler, kv_tokens=32_768))
    fleet = FleetSettings(4, engine, seats=32, speeds=(1.0, 1.0, 4.0, 4.0))
    shape = Shape(20, Spread(1200, 0.5), Spread(20, 0.4))
    stream = PoissonStream("alder", Lane.INTERACTIVE, shape, rate_per_s=38.0, seed=3)
    run = RunSettings(40.0, warm_up_s=20.0, tail_s=1)
    simulation = build(fleet, run, [stream])
    simulation.run_until(run.duration_s)
    tokens = [replica.prompt_tokens for replica in simulation.result().replicas]
    assert 3.0 <= sum(tokens[:2]) / sum(tokens[2:]) <= 6.0, tokens
    assert 0.8 <= tokens[0] / tokens[1] <= 1.25
    assert 0.7 <= tokens[2] / tokens[3] <= 1.4
