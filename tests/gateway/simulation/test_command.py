"""`warmlane simulate`, as a shell sees it."""

import json

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.gateway.simulation.traces_kit import SIZE, lines


@pytest.fixture
def trace(tmp_path):
    """A small trace."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines(num=40)))
    return path


def simulate(*words):
    """The command."""
    return CliRunner().invoke(app, ["simulate", *map(str, words)])


def test_it_answers_in_json(trace):
    """With a load, several seeds and gateways, and baselines by name."""
    result = simulate(
        trace, "--replicas", 2, "--kv-tokens", 40 * SIZE, "--load", 0.5, "--seeds", 2, "--gateways", 2,
        "--baselines", "random,additive", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document["policies"]) == ["warmlane", "random", "additive"]
    assert document["settings"]["load"] == pytest.approx(0.5)
    assert document["settings"]["gateways"] == 2
    assert document["settings"]["seeds"] == [1, 2]


def test_it_draws_a_table(trace):
    """A line for each policy, and what was asked of the fleet."""
    result = simulate(trace, "--replicas", 2, "--kv-tokens", 40 * SIZE, "--baselines", "all", "--requests", 10)
    assert result.exit_code == 0, result.output
    told = result.stdout.splitlines()
    assert told[0].startswith("10 requests of ")
    assert [line.split()[0] for line in told[1:]] == [
        "policy", "warmlane", "random", "round_robin", "least_loaded", "bounded_load_hash", "longest_prefix_threshold",
        "additive",
    ]  # fmt: skip


def test_a_baseline_alone_and_another_engine(trace):
    """The policy may be any, the engine's model is the user's."""
    words = (trace, "--replicas", 1, "--kv-tokens", 40 * SIZE, "--policy", "round_robin", "--json", "--speed", 2)
    slow = simulate(*words, "--step-base-ms", 100, "--step-row-ms", 1, "--step-token-ms", 1, "--max-seqs", 2)
    fast = simulate(*words)
    assert slow.exit_code == fast.exit_code == 0
    times = [json.loads(result.stdout)["policies"]["round_robin"]["ttft_s"]["p50"] for result in (slow, fast)]
    assert times[0] > 2 * times[1]
    assert json.loads(slow.stdout)["settings"]["engine"]["max_seqs"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--load", 0.5, "--speed", 2),
        ("--baselines", "all,fastest"),
        ("--baselines", ""),
        ("--policy", "fastest"),
        ("--replicas", 0),
        ("--speed-error", 1),
    ],
)
def test_bad_usage_ends_with_2(trace, words):
    """As every command's."""
    result = simulate(trace, "--replicas", 2, "--kv-tokens", 40 * SIZE, *words)
    assert result.exit_code == 2
    assert "Error" in result.stderr


@pytest.mark.parametrize("kv_tokens", [SIZE, SIZE - 1])
def test_a_replica_too_small_for_the_trace_is_a_sentence(trace, kv_tokens):
    """No traceback, and exit code 1."""
    result = simulate(trace, "--replicas", 2, "--kv-tokens", kv_tokens)
    assert result.exit_code == 1
    assert result.stderr.startswith("warmlane: ")
    assert result.stderr.count("\n") == 1


def test_a_file_that_is_no_trace_is_a_sentence(tmp_path):
    """It is named."""
    result = simulate(tmp_path / "missing.jsonl", "--replicas", 2, "--kv-tokens", 1000)
    assert (result.exit_code, "missing.jsonl cannot be read" in result.stderr) == (1, True)
