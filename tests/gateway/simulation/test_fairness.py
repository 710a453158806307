"""Fairness in virtual time, small: shares by weight, hits kept, and how far a flooding tenant is felt by another.

Larger runs and what cannot be reached: docs/design/005-simulation.md.
"""

import pytest

from tests.benchmarks.fairness_sim import FLOODS, flood, locality, weights
from tests.benchmarks.simulated import PROFILES

GPU = PROFILES["gpu"]


def test_two_weights_share_charged_service_by_their_ratio_and_within_the_bound():
    """Weights 2 and 1 in overload, with the default quantum: within 5% of 2, and never further apart than promised."""
    found = weights(GPU, 1, 80.0)[0]
    assert found["charged_ratio"] == pytest.approx(2.0, rel=0.05)
    assert 0 < found["gap"] <= found["bound"]


@pytest.mark.parametrize(("num_replicas", "seconds"), [(1, 15.0), (4, 5.0)])
def test_fairness_costs_few_hits_while_its_bound_holds(num_replicas, seconds):
    """Conversations of four tenants in overload, against a queue whose quantum and skips are unlimited."""
    found = locality(GPU, num_replicas, seconds)[0]
    assert found["of_locality"] >= 0.95
    assert found["gap_of_bound"] <= 1.0


def test_a_flooder_with_half_the_seats_is_no_worse_than_a_tenant_within_its_share():
    """One `batch_cap`: TTFT, ITL and the whole answer within 10% of what they are beside an A that asks for its share."""
    found = flood({"cap": FLOODS["cap 1/2"]}, GPU, 1, 60.0)[0]
    assert found["beside"]["queue_s"]["p95"] == 0.0, "a seat that the flooder may not take is there at once"
    assert found["refused"] == 0.0
    assert max(found["ttft_p95_to_share"], found["e2e_p95_to_share"], found["itl_p95_to_share"]) <= 1.1


def test_a_flooder_in_the_bulk_lane_is_hardly_felt_at_all():
    """One `max_lane`: within 10% of being alone, ITL included, for the worker leaves its rows out of steps."""
    found = flood({"bulk": FLOODS["bulk"]}, GPU, 1, 30.0)[0]
    assert max(found["ttft_p95_to_alone"], found["e2e_p95_to_alone"], found["itl_p95_to_alone"]) <= 1.1
    assert found["flood_tokens_per_s"] > 0
