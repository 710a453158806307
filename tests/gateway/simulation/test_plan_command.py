"""`warmlane plan`, as a shell sees it."""

import json

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.gateway.simulation.traces_kit import SIZE, lines


@pytest.fixture
def trace(tmp_path):
    """A small trace."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines(num=30, gap_ms=40)))
    return path


@pytest.fixture
def engine(tmp_path):
    """A slow engine, as calibrate writes it."""
    path = tmp_path / "engine.json"
    numbers = {"base_s": 0.01, "per_row_s": 0.001, "per_prefill_token_s": 0.0002, "max_seqs": 4}
    path.write_text(json.dumps({"engine": numbers}))
    return path


def planned(*words):
    """The command."""
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def test_it_answers_in_json(trace, engine):
    """Candidates, the chosen one and why; kinds with their own engines."""
    kinds = ("--kind", f"slow,kv={40 * SIZE},cost=1,engine={engine}", "--kind", f"fast,kv={40 * SIZE},cost=4")
    result = planned(trace, *kinds, "--ttft-p95", 1, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document) == [
        "trace", "settings", "objective", "candidates", "unfit", "chosen", "reason",
    ]  # fmt: skip
    assert document["chosen"] in document["candidates"]
    assert document["chosen"]["ttft_p95_s"] <= 1
    assert document["trace"]["requests_per_s"] == pytest.approx(30 / 1.16)
    assert document["reason"].startswith(f"{document['chosen']['replicas']} x {document['chosen']['kind']} is the ch")


def test_it_draws_a_table_with_the_reason(trace, engine):
    """The cheapest first, the chosen one marked; a kind that cannot do it in words."""
    kinds = ("--kind", f"slow,kv={40 * SIZE},engine={engine}", "--kind", f"tiny,kv={SIZE}")
    result = planned(trace, *kinds, "--ttft-p95", 1, "--rate", 10)
    assert result.exit_code == 0, result.output
    told = result.stdout.splitlines()
    assert told[0].startswith("30 requests at 10 a second")
    assert told[1].split()[:2] == ["replicas", "kind"]
    assert sum("yes, chosen" in line for line in told) == 1
    assert any(line.startswith("tiny: not simulated, its 512 KV tokens") for line in told)
    assert "is the cheapest that holds" in told[-1]
    assert "working set" in told[-1]


def test_one_kind_by_its_kv(trace, engine):
    """For who has no choice."""
    result = planned(trace, "--kv-tokens", 40 * SIZE, "--engine", engine, "--ttft-p95", 5, "--json")
    assert {one["kind"] for one in json.loads(result.stdout)["candidates"]} == {"replica"}


def test_where_nothing_holds_the_exit_code_is_1(trace, engine):
    """With the best of what was tried; the table is there all the same."""
    words = (trace, "--kv-tokens", 40 * SIZE, "--engine", engine, "--ttft-p95", 0.001, "--max-replicas", 9)
    result = planned(*words)
    assert (result.exit_code, "no candidate holds: the best, " in result.stderr) == (1, True), result.output
    assert "replicas" in result.stdout
    assert json.loads(planned(*words, "--json").stdout)["chosen"] is None
    result = planned(trace, "--kv-tokens", SIZE)
    assert (result.exit_code, "no kind can do it" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--kv-tokens", 5, "--kind", "a,kv=5"),
        ("--kind", "kv=5"),
        ("--kind", "a"),
        ("--kind", "a,kv=0"),
        ("--kind", "a,kv=x"),
        ("--kind", "a,kv=5,cost=-1"),
        ("--kind", "a,kv=5,cost=inf"),
        ("--kind", "a,kv=5,gpu=2"),
        ("--kind", "a,kv=5", "--kind", "a,kv=6"),
        ("--kv-tokens", 5, "--speed", 1, "--rate", 1),
        ("--kv-tokens", 5, "--ttft-p95", 0),
    ],
)
def test_bad_usage_ends_with_2(trace, words):
    """As every command's, with what is wrong."""
    result = planned(trace, *words)
    assert (result.exit_code, "Error" in result.stderr) == (2, True), result.output


def test_files_that_cannot_be_used_are_sentences(trace, tmp_path):
    """Exit code 1, one line."""
    for words in (
        (tmp_path / "none.jsonl", "--kv-tokens", 5),
        (trace, "--kv-tokens", 5, "--engine", tmp_path / "none.json"),
        (trace, "--kind", f"a,kv=5,engine={tmp_path / 'none.json'}"),
        (trace, "--kv-tokens", 99999, "--requests", 1),
    ):
        result = planned(*words)
        assert (result.exit_code, result.stderr.count("\n"), result.stderr[:10]) == (1, 1, "warmlane: ")
