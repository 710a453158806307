"""The grid's parts run and count right; what it measures is not asserted here."""

import json

import pytest

from tests.benchmarks import affinity_grid
from tests.benchmarks.affinity_grid import BASELINES, OURS, Results, main, mean_ratio


@pytest.fixture
def small(monkeypatch):
    """One combination of each baseline."""
    policies = {
        name: type(policy)(policy.build, policy.settings, {field: values[:1] for field, values in policy.grid.items()})
        for name, policy in affinity_grid.POLICIES.items()
    }
    monkeypatch.setattr(affinity_grid, "POLICIES", policies)


def test_a_part_of_the_grid_is_run_once_and_drawn(small, tmp_path, capsys):
    """A second call finds everything in the file."""
    kept = tmp_path / "grid.jsonl"
    words = ["--replicas", "2", "--kv", "0.5", "--loads", "0.5", "--seeds", "1", "2", "--requests", "40"]
    assert main([*words, "--json", str(kept)]) == 0
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == 6 + 2 * (6 + 1)  # tuning at 75%; then all with two seeds at 50%
    assert main([*words, "--json", str(kept)]) == 0
    assert len(kept.read_text().splitlines()) == len(rows)
    told = capsys.readouterr().out
    assert "geometric mean of p95" in told
    (cell,) = json.loads(kept.with_suffix(".cells.json").read_text())
    assert set(cell["all"]) == {OURS, *BASELINES}
    assert cell["fastest_p95_s"] == min(cell["all"][name]["p95_s"] for name in BASELINES)
    assert cell["p95_ratio"] == pytest.approx(cell["p95_s"] / cell["fastest_p95_s"])


def test_the_mean_is_geometric():
    """Twice and half are as good as once."""
    rows = [{"p95_s": p95, "all": {"random": {"p95_s": 1.0}}} for p95 in (2.0, 0.5)]
    assert mean_ratio(rows, "random") == pytest.approx(1.0)


def test_a_file_that_is_not_there_holds_nothing(tmp_path):
    """The first call makes it."""
    assert Results(tmp_path / "none.jsonl").rows == {}
