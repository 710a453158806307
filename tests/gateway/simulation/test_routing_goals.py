"""What routing promises, in virtual time: hot prefixes spread, capacities learned, unlike engines share as they can."""

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


def shares_of(simulation, since_s, until_s):
    """Sampled requests in flight on each replica, its mean over time, in units of the mean of all."""
    totals: Counter[str] = Counter()
    num = 0
    while since_s + num * 0.02 < until_s:
        num += 1
        yield since_s + num * 0.02, totals
    mean = sum(totals.values()) / 8
    assert mean > 0


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
    print(rate_per_s, held)
    assert len(held) == 8
    assert max(held.values()) <= 1.3 * sum(held.values()) / 8


def talks(num_replicas, seed=5):
    """Conversations of about three times what the fleet can hold."""
    shape = Shape(
        200, Spread(250, 0.6), Spread(60, 0.4), num_systems=4, mean_turns=8, num_open=60 * num_replicas,
        max_prompt_tokens=3000,
    )  # fmt: skip
    return PoissonStream("alder", Lane.INTERACTIVE, shape, rate_per_s=12.0 * num_replicas, seed=seed)


def late_hits(guess, num_replicas=4):
    """Hit tokens of the requests after the first 2,000, with the KV size told to the router `guess` times the true."""
    engine = replace(GPU, scheduler=replace(GPU.scheduler, kv_tokens=32_768))
    after_s = 2000 / (12.0 * num_replicas)
    run = RunSettings(2 * after_s, warm_up_s=after_s, tail_s=2)
    simulation = build(FleetSettings(num_replicas, engine, seats=32), run, [talks(num_replicas)])
    pool = simulation.dispatch.router.pool
    for replica in pool:
        pool.upsert(replace(replica.spec, kv_tokens=round(32_768 * guess)), 0.0)
    simulation.run_until(run.duration_s)
    group = simulation.result().lanes[Lane.INTERACTIVE]
    print(guess, group.hit_tokens / group.prompt_tokens, group.predicted_hit_tokens/group.prompt_tokens, [r.shadow._factor.value for r in pool])
    return group.hit_tokens / group.prompt_tokens


@pytest.mark.parametrize("guess", [0.5, 2.0])
def test_a_wrong_capacity_comes_back_within_2000_requests(guess):
    """Predicted hits alone: what engines report mends a KV size that is off by two."""
    assert late_hits(guess) >= 0.9 * late_hits(1.0)


def test_the_same_model_on_unlike_engines_is_one_pool():
    """Two slow replicas beside two that are four times as fast: load shifts in proportion, learned from answers."""
    engine = replace(GPU, scheduler=replace(GPU.scheduler, kv_tokens=32_768))
    fleet = FleetSettings(4, engine, seats=32, speeds=(1.0, 1.0, 4.0, 4.0))
    shape = Shape(20, Spread(1200, 0.5), Spread(20, 0.4))
    stream = PoissonStream("alder", Lane.INTERACTIVE, shape, rate_per_s=24.0, seed=3)
    run = RunSettings(90.0, warm_up_s=30.0, tail_s=2)
    simulation = build(fleet, run, [stream])
    simulation.run_until(run.duration_s)
    prompts = [one.prompt_tokens for one in simulation.result().replicas]
    busy = [one.busy_s for one in simulation.result().replicas]
    print(prompts, busy, simulation.result().lanes[Lane.INTERACTIVE].ttft_s)
