"""What interactive requests notice of saturating bulk, in virtual time on the cost model."""

import dataclasses

import pytest

from engines.core.latency_guard import LatencySettings
from engines.step_cost import StepCost
from policies.lane import Lane
from tests.engines.core.virtual import Load, p95, run

DURATION_S = 200.0


@pytest.fixture(scope="module")
def alone():
    """What bulk makes where nobody else asks for anything."""
    return run(Load(bulk=16), DURATION_S)


@pytest.mark.parametrize("rate", [0.5, 1.0, 1.5, 2.0])
def test_saturating_bulk_is_hardly_noticed_and_uses_what_is_left(rate, alone):
    """TTFT and ITL p95 within 1.15 times those without; bulk makes 80% of what the free time would give it alone."""
    load = Load(rate=rate)
    without = run(load, DURATION_S)
    beside = run(dataclasses.replace(load, bulk=16), DURATION_S)
    assert p95(beside.itl_s) <= 1.15 * p95(without.itl_s)
    assert p95(beside.ttft_s) <= 1.15 * p95(without.ttft_s)
    assert beside.bulk_tokens >= 0.8 * alone.bulk_tokens * beside.alone_s / DURATION_S
    for outlook in beside.outlooks:
        if Lane.BULK in outlook.lanes and outlook.objective_s is not None and not outlook.is_lifted:
            assert outlook.modelled_s <= 1.15 * outlook.modelled_urgent_s


def test_with_an_objective_bulk_takes_all_that_it_leaves(alone):
    """The operator's p95 holds, and bulk makes more than twice what it would in the free time."""
    load = Load(rate=1.5, bulk=16, latency=LatencySettings(itl_p95_s=0.03))
    beside = run(load, DURATION_S)
    assert p95(beside.itl_s) <= 0.03 + 1e-9
    assert beside.bulk_tokens >= 2 * alone.bulk_tokens * beside.alone_s / DURATION_S


def test_where_a_row_costs_much_bulk_lives_on_free_time_and_patience():
    """A device on which no row is free: bulk still gets its share of the time that nobody else needs."""
    dear = StepCost(0.010, 0.004, 0.0004)
    load = Load(rate=0.4, bulk=16, cost=dear)
    beside, alone = run(load, 200.0), run(dataclasses.replace(load, rate=0.0), 200.0)
    assert beside.bulk_tokens >= 0.8 * alone.bulk_tokens * beside.alone_s / 200.0
    lifted = sum(outlook.is_lifted for outlook in beside.outlooks)
    assert lifted <= beside.urgent_s / load.latency.bulk_patience_s + 1


@pytest.mark.parametrize("rate", [0.8, 1.6])
def test_on_a_slow_device_an_arrival_waits_out_no_long_chunk_of_bulk(rate):
    """A prompt token costs half a row there, so that a chunk is longer than all else that an arrival may wait for."""
    slow = StepCost(base_s=0.006, per_row_s=0.004, per_prefill_token_s=0.0023)
    load = Load(rate, 0, (30, 70), (16, 16), (60, 130), (8, 32), cost=slow)
    without, beside = run(load, 300.0), run(dataclasses.replace(load, bulk=16), 300.0)
    alone = run(dataclasses.replace(load, rate=0.0, bulk=16), 60.0)
    assert p95(beside.ttft_s) <= 1.15 * p95(without.ttft_s)
    assert p95(beside.itl_s) <= 1.15 * p95(without.itl_s)
    assert beside.bulk_tokens / beside.alone_s >= 0.8 * alone.bulk_tokens / 60.0
