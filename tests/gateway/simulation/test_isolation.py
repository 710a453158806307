"""Isolation and fairness in virtual time, small: the promises that seats, lane rule and queue make together."""

from dataclasses import replace

import pytest

from tests.benchmarks.isolation_sim import PROFILES, code_fingerprint, isolation, locality, main, weights

GPU = PROFILES["gpu"]
# Four times the KV: with less, bulk evicts interactive's prefixes, which costs TTFT (docs/design/005-simulation.md).
ROOMY = replace(GPU, engine=replace(GPU.engine, scheduler=replace(GPU.engine.scheduler, kv_tokens=4 * 65_536)))


def test_saturating_bulk_hardly_delays_interactive_and_gets_the_free_time():
    """The published guarantee, where KV is no bottleneck."""
    found = isolation(ROOMY, 1, 75.0)
    assert found["free_share"] >= 0.1
    assert found["ttft_p95_ratio"] <= 1.15
    assert found["itl_p95_ratio"] <= 1.15
    assert found["bulk_of_free"] >= 0.8
    assert found["both"]["queue_s"]["p95"] == 0.0, "a seat kept for interactive is there at once"


def test_the_gap_between_two_weights_is_bounded_by_the_quantum():
    """Two quanta, and as much again for the requests in flight; what a short run makes of the ratio is its own affair."""
    assert abs(weights(GPU, 1, 30.0)["gap"]) <= 2 * 8192 + 2 * GPU.seats * 1000


def test_two_weights_share_service_by_their_ratio():
    """With a quantum that is small against the service of the run."""
    assert weights(GPU, 1, 30.0, quantum_tokens=512.0)["charged_ratio"] == pytest.approx(2.0, rel=0.05)


def test_fairness_costs_few_hits():
    """Against a queue that looks at hits alone."""
    assert locality(GPU, 1, 15.0)["of_locality"] >= 0.95


def test_the_command_writes_what_it_measured(tmp_path, capsys):
    """With the code it was measured on: rows of different rules must not be compared."""
    path = tmp_path / "found.json"
    arguments = ["--replicas", "1", "--profiles", "cpu", "--seconds", "20", "--growth", "1.0", "--only", "isolation"]
    assert main([*arguments, "--json", str(path)]) == 0
    assert code_fingerprint() in path.read_text()
    assert "isolation" in capsys.readouterr().out
