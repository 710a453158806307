"""Whole runs of a trace: ours and baselines on the same fleet."""

import numpy as np
import pytest

from gateway.simulation.mooncake import read
from gateway.simulation.recording import BlockKeys, RecordedRequest, Recording
from gateway.simulation.replica import EngineSettings
from gateway.simulation.run import FleetSettings, RunSettings, simulate
from gateway.simulation.trace_policies import OURS, POLICIES, OurSettings
from gateway.simulation.trace_run import TraceEngine, replica_s, run_trace, speed_at
from gateway.simulation.workload import Trace
from policies.lane import Lane
from tests.benchmarks.affinity_grid import TRACE
from tests.gateway.simulation.traces_kit import SIZE, fleet, recording

TRACED = recording()


def run(policy=OURS, settings=None, seed=1, num_replicas=3, **fleet_settings):
    """A run with the policy's defaults."""
    return run_trace(
        TRACED, fleet(num_replicas, **fleet_settings), policy, settings or POLICIES[policy].settings(), seed
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_once(policy):
    """A policy that loses one would look fast."""
    result = run(policy)
    assert len(result.ttft_s) == len(TRACED.requests) == sum(replica.requests for replica in result.replicas)
    assert sum(replica.prompt_tokens for replica in result.replicas) == TRACED.facts().prompt_tokens
    assert (result.ttft_s > 0).all()
    assert (result.e2e_s >= result.ttft_s).all()
    assert result.gap_counts.sum() == TRACED.facts().output_tokens - len(TRACED.requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_run(policy):
    """Results are compared to the last digit."""
    one, other = run(policy, num_gateways=2), run(policy, num_gateways=2)
    assert (one.ttft_s == other.ttft_s).all()
    assert one.replicas == other.replicas


def test_seeds_draw_the_speeds_within_their_bounds():
    """What the router believes is off by that."""
    speeds = [replica.speed for seed in range(5) for replica in run(seed=seed, speed_error=0.2).replicas]
    assert len(set(speeds)) == 15
    assert 0.8 <= min(speeds) < 0.95
    assert 1.05 < max(speeds) <= 1.2
    assert {replica.speed for replica in run(speed_error=0.0).replicas} == {1.0}


def test_affinity_finds_what_was_cached():
    """Chats go back to their replica, where chance hits little more than the system block."""
    by_chance = run("random", num_replicas=12).hit_tokens
    assert run(num_replicas=12).hit_tokens > 1.3 * by_chance
    assert run(settings=OurSettings(events=False), num_replicas=12).hit_tokens > 1.3 * by_chance
    assert run(num_replicas=12).hit_tokens <= TRACED.facts().oracle_hit_tokens


def test_several_gateways_share_the_seats_and_still_meet_by_hash():
    """No replica is given more than its seats, and prompts are at home at the same replica for all."""
    result = run(num_gateways=4)
    assert result.hit_tokens > 0.5 * TRACED.facts().oracle_hit_tokens


def test_a_load_is_replica_seconds_at_oracle_hits_over_what_there_are():
    """Twice the replicas, twice the speed."""
    facts, engine = TRACED.facts(), TraceEngine().settings(10 * SIZE, SIZE)
    speed = speed_at(0.5, facts, engine, 2)
    assert replica_s(facts, engine) == pytest.approx(0.5 * 2 * facts.duration_s / speed)
    assert speed_at(0.5, facts, engine, 4) == pytest.approx(2 * speed)


def test_a_trace_without_duration_has_no_load():
    """It would come infinitely fast."""
    with pytest.raises(ValueError, match="same time"):
        speed_at(0.5, TRACED.first(1).facts(), TraceEngine().settings(10 * SIZE, SIZE), 2)


@pytest.mark.parametrize(
    "wrong", [{"num_replicas": 0}, {"num_gateways": 0}, {"speed": 0.0}, {"speed_error": 1.0}, {"speed": float("inf")}]
)
def test_a_fleet_that_cannot_be_is_refused(wrong):
    """At once, not in mid-run."""
    with pytest.raises(ValueError, match="must be"):
        fleet(**wrong)


def test_a_fleet_of_one_does_what_the_simulation_with_the_engines_scheduler_does():
    """On a slice of the real trace at a sixteenth of its lengths: times, gaps and hits, request by request."""
    import gzip

    size = SIZE // 16
    with gzip.open(TRACE, "rb") as file:
        requests = list(read([next(file) for _ in range(60)], scale=16, speed=0.5))
    model = TraceEngine(max_seqs=8, max_step_tokens=128)
    engine: EngineSettings = model.settings(300 * size, size)
    expected = simulate(FleetSettings(1, engine, 8), RunSettings(1e6), [Trace(requests)])
    keys = BlockKeys(size)
    recorded = tuple(
        RecordedRequest(
            number, request.tenant, request.arrival_s, request.prompt_tokens, request.answer.num_tokens,
            tuple(passage.content for passage in request.prompt[: request.prompt_tokens // size]),
            keys.key([passage.content for passage in request.prompt], request.prompt_tokens),
        )
        for number, request in enumerate(requests)
    )  # fmt: skip
    settings = fleet(1, speed_error=0.0)
    settings = type(settings)(1, 300 * size, speed_error=0.0, engine=model)
    ours = OurSettings(events=False, seats_per_row=1.0)
    found = run_trace(Recording(recorded, size), settings, OURS, ours, 1)
    group = expected.lanes[Lane.INTERACTIVE]
    assert found.hit_tokens == group.hit_tokens > 0
    assert found.replicas[0].evicted_blocks == expected.replicas[0].evictions > 0
    for times, told in ((found.ttft_s, group.ttft_s), (found.e2e_s, group.e2e_s)):
        assert np.percentile(times, [50, 95, 99]) == pytest.approx([told.p50, told.p95, told.p99])
        assert times.mean() == pytest.approx(told.mean)
