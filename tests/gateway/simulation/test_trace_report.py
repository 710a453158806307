"""What runs are told as."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.simulation.trace_comparison import Comparison, compare
from gateway.simulation.trace_policies import OURS, POLICIES, OurSettings
from gateway.simulation.trace_report import counted_percentiles, percentiles
from gateway.simulation.trace_tuning import tune
from tests.gateway.simulation.traces_kit import fleet, recording

TRACED = recording(num=60)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=30))
def test_counted_values_are_as_if_each_was_told(values):
    """The least value that so many are not above."""
    seconds, counts = np.array([one for one, _ in values]), [num for _, num in values]
    every = np.sort(np.repeat(seconds, counts))
    found = counted_percentiles(seconds, counts)
    for share in (50, 95, 99):
        assert found[f"p{share}"] == every[int(np.ceil(share / 100 * len(every))) - 1]


def test_nothing_has_zeros_for_percentiles():
    """A trace of one-token answers has no gap."""
    nothing = {"p50": 0.0, "p95": 0.0, "p99": 0.0}
    assert percentiles(np.array([])) == counted_percentiles(np.array([]), []) == nothing


def test_the_document_has_the_shape_of_the_contract():
    """Scripts read it."""
    comparison = Comparison(fleet(2), (OURS, "round_robin"), (1, 2, 3), OurSettings())
    heard = []
    document = compare(TRACED, comparison, lambda *told: heard.append(told))
    facts = TRACED.facts()
    assert document["trace"]["requests"] == 60
    assert document["trace"]["oracle_hit_tokens"] == facts.oracle_hit_tokens
    assert document["settings"]["load"] > 0
    assert list(document["policies"]) == [OURS, "round_robin"]
    for found in document["policies"].values():
        assert found["hit_ratio"] == pytest.approx(found["hit_tokens"] / facts.prompt_tokens)
        assert [list(found[kind]) for kind in ("ttft_s", "itl_s", "e2e_s")] == [["p50", "p95", "p99"]] * 3
        assert [replica["name"] for replica in found["per_replica"]] == ["r1", "r2"]
        assert found["ttft_s"]["p95"] == sorted(run["ttft_s"]["p95"] for run in found["by_seed"])[1]
    assert heard[-1][1:] == (6 * 60, 6 * 60)
    assert [num for _, num, _ in heard] == sorted(num for _, num, _ in heard)


def test_tuning_tries_the_grid_and_tells_the_best_first():
    """By p95 of the time to first token, on one seed."""
    told = []
    tried = tune(TRACED, fleet(2), "bounded_load_hash", 1, lambda *progress: told.append(progress))
    assert len(tried) == len(POLICIES["bounded_load_hash"].candidates()) == 15
    assert [one.ttft_p95_s for one in tried] == sorted(one.ttft_p95_s for one in tried)
    assert told[-1] == (15, 15)


def test_a_tuned_comparison_tells_its_parameters():
    """And counts the tuning's runs as progress."""
    heard = []
    comparison = Comparison(fleet(2), ("least_loaded", "random"), (1,), OurSettings(), tunes=True)
    document = compare(TRACED, comparison, lambda *told: heard.append(told))
    assert set(document["policies"]["least_loaded"]["parameters"]) == {"by_tokens"}
    assert "by_seed" not in document["policies"]["random"]
    assert heard[-1][1:] == (4 * 60, 4 * 60)


@pytest.mark.parametrize("name", POLICIES)
def test_the_defaults_of_a_policy_are_in_its_grid(name):
    """So tuned is never worse than not, on the seed it was tuned on."""
    policy = POLICIES[name]
    defaults = policy.parameters(policy.settings())
    assert all(defaults[field] in values for field, values in policy.grid.items())
