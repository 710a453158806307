"""Isolation in virtual time, small: the promises that seats, lane rule and queue make together."""

from io import StringIO

import pytest
from rich.console import Console

from tests.benchmarks.isolation_sim import isolation, main
from tests.benchmarks.simulated import PROFILES, code_fingerprint, tables, whole_minutes

GPU = PROFILES["gpu"]


@pytest.mark.parametrize("seed", [1, 5])
def test_saturating_bulk_hardly_delays_interactive_and_gets_the_free_time(seed):
    """The published guarantee at the defaults, over one whole minute of which interactive comes in 48 s."""
    found = isolation(GPU, 1, 84.0, seed=seed)
    assert found["free_share"] >= 0.1
    assert found["ttft_p95_ratio"] <= 1.15
    assert found["itl_p95_ratio"] <= 1.15
    assert found["bulk_of_free"] >= 0.8
    assert found["both"]["queue_s"]["p95"] == 0.0, "a seat kept for interactive is there at once"


def test_a_window_holds_whole_minutes_if_any():
    """What comes in a part of each minute then counts by its mean, however long the run."""
    assert [whole_minutes(seconds).warm_up_s for seconds in (84.0, 160.0)] == [19.0, 35.0]
    assert [whole_minutes(seconds).tail_s for seconds in (84.0, 160.0, 20.0)] == [5.0, 5.0, 2.0]
    assert whole_minutes(20.0).warm_up_s == 4.0, "too short for a minute: a fifth"


def test_the_command_writes_what_it_measured(tmp_path, capsys):
    """With the code it was measured on: rows of different rules must not be compared."""
    path = tmp_path / "found.json"
    arguments = ["--replicas", "1", "--profiles", "cpu", "--seconds", "20", "--growth", "1.0", "--only", "isolation"]
    assert main([*arguments, "--json", str(path)]) == 0
    assert code_fingerprint() in path.read_text()
    assert "isolation" in capsys.readouterr().out


def test_tables_are_no_wider_than_a_terminal():
    """With many numbers there are many tables, each with what tells the rows apart; no word or number is cut."""
    names = [f"some_long_quantity_{letter}" for letter in "abcdefghij"]
    labels = {"profile": "gpu", "replicas": 64, "settings": "standard, cap 1/2", "code": "0" * 12}
    rows = [labels | dict.fromkeys(names, 1234.5678)]
    console = Console(width=80, file=StringIO())
    found = list(tables("isolation", rows))
    for table in found:
        console.print(table)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("profile") == text.count("gpu") == len(found) > 1
    assert text.count("quantity") == text.count("1234.568") == len(names)
    assert "…" not in text
    assert all(line.rstrip()[-1] in "┓┃┩│┘n" for line in text.splitlines()), "a border closes every line but the titles"
