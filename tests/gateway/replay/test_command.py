"""`warmlane replay`, as a shell sees it, against a whole gateway."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from tests.gateway.kit import MODEL
from tests.scripted_engine import answer, status


@pytest.fixture
def replay(gateway, trace, tmp_path, monkeypatch):
    """Runs the command against the gateway."""
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))

    async def run(*words, of=trace):
        given = ["--url", f"http://127.0.0.1:{gateway.port}/v1", "--key", gateway.key, "--model", MODEL]
        return await asyncio.to_thread(CliRunner().invoke, app, ["replay", str(of), *given, *map(str, words)])

    return run


async def test_it_answers_in_json_and_writes_a_file(replay, gateway, tmp_path):
    """The contract's shape, with `target` for policies."""
    gateway.engine.default = gateway.engines.all[1].default
    result = await replay("--speed", 50, "--requests", 5, "--scale", 16, "--json", "--out", tmp_path / "run.json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "run.json").read_text())
    assert list(document) == ["trace", "settings", "target"]
    assert (document["trace"]["requests"], document["settings"]["scale"]) == (5, 16)
    assert set(document["target"]) >= {"hit_tokens", "hit_ratio", "ttft_s", "itl_s", "e2e_s", "goodput_per_s"}
    assert document["target"]["failed"] == 0


async def test_it_compares_with_an_earlier_run(replay, tmp_path):
    """A table with what was before, is now, and whether that is better; in JSON under `baseline`."""
    words = ("--rate", 500, "--requests", 4)
    assert (await replay(*words, "--out", tmp_path / "run.json")).exit_code == 0
    result = await replay(*words, "--baseline", tmp_path / "run.json")
    assert result.exit_code == 0, result.output
    assert "TTFT p95, s" in result.stdout
    assert "change" in result.stdout
    document = json.loads((await replay(*words, "--baseline", tmp_path / "run.json", "--json")).stdout)
    assert {row["what"] for row in document["baseline"]} >= {"TTFT p95, s", "goodput, requests/s"}


async def test_failures_are_told_and_only_a_run_without_an_answer_fails(replay, gateway):
    """Exit code 1 with one sentence then."""
    gateway.script(status(400, {"error": {"message": "no", "code": "too_long", "type": "x"}}))
    result = await replay("--rate", 500, "--requests", 3)
    assert result.exit_code == 0, result.output
    assert "3 requests in" in result.stdout
    assert "failed: 1 times 400" in result.stdout
    result = await replay("--key", "wl-none", "--rate", 500, "--requests", 2)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1, "warmlane: no request was answered: 401 invalid_api_key",
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [("--speed", 1, "--rate", 1), ("--surface", "embeddings"), ("--speed", 0), ("--scale", 0), ("--max-open", 0)],
)
async def test_bad_usage_ends_with_2(replay, words):
    """As every command's; nothing is sent."""
    assert (await replay(*words)).exit_code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--baseline", "none.json"), "cannot read none.json"),
        (("--url", "ftp://x"), "must begin with http"),
        (("--url", "http://x:port"), "cannot be read"),
    ],
)
async def test_what_cannot_be_used_is_a_sentence(replay, words, said):
    """Before anything is sent, exit code 1."""
    result = await replay(*words)
    assert (result.exit_code, said in result.stderr, result.stderr.count("\n")) == (1, True, 1), result.stderr


async def test_a_baseline_that_is_none_and_a_trace_without_time_are_sentences(replay, trace, tmp_path, gateway):
    """Files of a person's are named."""
    (tmp_path / "b.json").write_text("[")
    result = await replay("--baseline", tmp_path / "b.json")
    assert (result.exit_code, "b.json is no output of `warmlane replay --json`" in result.stderr) == (1, True)
    result = await replay("--rate", 5, "--requests", 1)
    assert (result.exit_code, "leave out --rate" in result.stderr) == (1, True)
    result = await replay(of=tmp_path / "missing.jsonl")
    assert (result.exit_code, "missing.jsonl cannot be read" in result.stderr) == (1, True)
    result = await replay("--requests", 1, "--out", tmp_path)
    assert (result.exit_code, "cannot write" in result.stderr) == (1, True)


def test_without_a_demo_the_target_must_be_given(trace, tmp_path, monkeypatch):
    """And with one its key goes to its own address alone."""
    monkeypatch.setenv("WARMLANE_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["replay", str(trace)])
    assert (result.exit_code, "give --url" in result.stderr) == (1, True)
    (tmp_path / "demo.json").write_text('{"url": "http://127.0.0.1:1/v1", "key": "wl-demo", "model": "m"}')
    result = CliRunner().invoke(app, ["replay", str(trace), "--url", "http://127.0.0.1:2"])
    assert (result.exit_code, "give --model" in result.stderr) == (1, True)
    result = CliRunner().invoke(app, ["replay", str(trace), "--requests", "1"])
    assert (result.exit_code, "no connection" in result.stderr) == (1, True)


def test_help_has_an_example():
    """As every command's."""
    assert "Example: warmlane replay" in CliRunner().invoke(app, ["replay", "--help"]).stdout


async def test_the_rest_of_an_engine_that_reports_hits_is_compared_with_the_oracle(replay, gateway):
    """Cached tokens as the engine reports them."""
    gateway.script(*[answer("a", prompt_tokens=1000, cached=800)] * 3)
    document = json.loads((await replay("--rate", 500, "--requests", 3, "--json")).stdout)
    assert document["target"]["hit_ratio"] == pytest.approx(0.8)
