"""`warmlane calibrate`, as a shell sees it; and the file it writes, as `simulate` reads it."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.simulation.engine_file import read_engine
from tests.gateway.replay.test_ledger_steps import ROW, exported
from tests.scripted_engine import ScriptedEngine, answer


@pytest.fixture(autouse=True)
def no_demo(tmp_path, monkeypatch):
    """Nothing of this machine."""
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))


def calibrate(*words):
    """The command."""
    return CliRunner().invoke(app, ["calibrate", *map(str, words)])


@pytest.fixture
def ledger(tmp_path):
    """Answers of two replicas, one after the other: 10 ms a step, half a millisecond a token."""
    rows = []
    for number in range(20):
        start, prompt, tokens = 100.0 + 100 * number, 100 + 50 * number, 10 + number
        ttft = 0.011 + 0.0005 * prompt
        times = {"started_at": start, "ttft_s": ttft, "ended_at": start + ttft + 0.011 * (tokens - 1), "queue_s": 0.0}
        lengths = {"prompt_tokens": prompt, "cached_tokens": 0, "completion_tokens": tokens}
        rows.append(ROW | times | lengths | {"replica": f"r{1 + number % 2}"})
    path = tmp_path / "november.csv"
    path.write_text("\n".join(exported(*rows)))
    return path


def test_a_ledger_gives_the_numbers_and_their_error(ledger, tmp_path):
    """In JSON, in the file, and in words with the flags that take them."""
    out = tmp_path / "engine.json"
    result = calibrate("--ledger", ledger, "--max-seqs", 16, "--json", "--out", out)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads(out.read_text())
    assert document["engine"]["per_prefill_token_s"] == pytest.approx(0.0005, rel=0.01)
    assert document["engine"]["base_s"] + document["engine"]["per_row_s"] == pytest.approx(0.011, rel=0.01)
    assert (document["source"]["requests"], document["source"]["replicas"]) == (20, ["r1", "r2"])
    assert document["fit"]["median_error"] < 0.02
    assert {"seconds", "modelled_s"} <= document["measured"][0].keys()
    engine = read_engine(out)
    assert (engine.max_seqs, engine.max_step_tokens) == (16, 2048)
    assert engine.cost.per_prefill_token_s == document["engine"]["per_prefill_token_s"]
    told = calibrate("--ledger", ledger).stdout
    assert "--step-token-ms 0.5" in told
    assert "off by" in told


def test_one_replica_of_a_ledger(ledger):
    """By its name; an unknown one is a sentence that tells which there are."""
    document = json.loads(calibrate("--ledger", ledger, "--replica", "r2", "--json").stdout)
    assert (document["source"]["requests"], document["source"]["replicas"]) == (10, ["r2"])
    result = calibrate("--ledger", ledger, "--replica", "r9")
    assert (result.exit_code, "of these it has: r1, r2" in result.stderr) == (1, True)


async def test_a_live_engine_is_measured():
    """With prompts of its own; here it answers at once, so only the way is tested."""
    async with ScriptedEngine() as engine:
        engine.default = answer(*"abcdefghijkl", prompt_tokens=100)
        words = (engine.url, "--model", "m", "--max-prompt", 128, "--max-rows", 2, "--repeats", 2, "--json")
        result = await asyncio.to_thread(calibrate, *words)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["source"] == {"url": engine.url, "model": "m", "requests": 1 + 2 * (2 + 3)}
    assert document["fit"]["measurements"] + document["fit"]["left_out"] <= 10


async def test_an_engine_that_refuses_is_a_sentence():
    """With what it said."""
    result = await asyncio.to_thread(calibrate, "http://127.0.0.1:1", "--model", "m")
    assert (result.exit_code, result.stderr) == (
        1, "warmlane: http://127.0.0.1:1/v1/chat/completions did not answer: no connection\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    "words", [(), ("http://x", "--ledger", "y"), ("http://x", "--surface", "audio"), ("http://x", "--max-prompt", 1)]
)
def test_bad_usage_ends_with_2(words):
    """As every command's."""
    assert calibrate(*words).exit_code == 2


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read"), (b"a,b\n1,2\n", "lacks replica"), (b"", "lacks replica")]
)
def test_a_file_that_is_no_ledger_is_a_sentence(tmp_path, content, said):
    """Exit code 1."""
    path = tmp_path / "x.csv"
    if content is not None:
        path.write_bytes(content)
    result = calibrate("--ledger", path)
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (1, True, 1)


def test_too_little_of_a_ledger_is_a_sentence(tmp_path):
    """One answer is no model."""
    path = tmp_path / "x.csv"
    path.write_text("\n".join(exported(ROW)))
    assert "2 measurements are too few" in calibrate("--ledger", path).stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("[", "is no output of `warmlane calibrate --json`"),
        ('{"engine": {"base_s": -1, "per_row_s": 0, "per_prefill_token_s": 0}}', "is no output of"),
        ('{"engine": {"base_s": 0, "per_row_s": 0, "per_prefill_token_s": 0}}', "take no time"),
    ],
)
def test_simulate_refuses_a_file_of_something_else(tmp_path, trace, content, said):
    """With the file's name, and takes one that calibrate wrote."""
    path = tmp_path / "engine.json"
    if content is not None:
        path.write_text(content)
    result = CliRunner().invoke(
        app, ["simulate", str(trace), "--replicas", "1", "--kv-tokens", "99999", "--engine", str(path)]
    )
    assert (result.exit_code, said in result.stderr) == (1, True)


def test_simulate_takes_the_file_and_flags_win(tmp_path, trace):
    """Of the file's numbers those that are given again are given again."""
    path = tmp_path / "engine.json"
    engine = {"base_s": 0.5, "per_row_s": 0.25, "per_prefill_token_s": 0.001, "max_seqs": 3}
    path.write_text(json.dumps({"engine": engine}))
    words = ["simulate", str(trace), "--replicas", "1", "--kv-tokens", "99999", "--engine", str(path), "--json"]
    result = CliRunner().invoke(app, [*words, "--step-row-ms", "1"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["settings"]["engine"]
    assert (told["base_s"], told["per_row_s"], told["max_seqs"], told["max_step_tokens"]) == (0.5, 0.001, 3, 2048)
