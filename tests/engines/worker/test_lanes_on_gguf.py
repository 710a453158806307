"""Lanes inside the batch of a real worker with a real model, checked from its step log."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from engines.step_cost import StepCost
from engines.worker.step_log import LoggedStep, read_step_log
from tests.engines.worker.processes import WorkerProcess, until

pytestmark = [pytest.mark.model, pytest.mark.e2e, pytest.mark.timeout(180)]

PROMISED_GROWTH = 1.15
PATIENCE_S = 5.0  # after which bulk gets a row in spite of the objective
INTERACTIVE, BULK = 0, 2


def complete(worker, prompt, priority, max_tokens):
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "priority": priority,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    answer = httpx.post(f"{worker.ready.url}/completions", json=body, timeout=150).raise_for_status()
    return answer.json()["choices"][0]["text"]


def has_bulk(step: LoggedStep) -> bool:
    return any(row.lane == "bulk" for row in step.rows)


def modelled(step: LoggedStep, *, without_bulk: bool) -> float:
    """Our own sum, from the rows and the cost in the line. A row's drafts cost as much as rows; no rows cost nothing."""
    counted = [row for row in step.rows if not (without_bulk and row.lane == "bulk")]
    rows = sum(row.num_tokens for row in counted if row.num_tokens == 1 + row.num_drafts)
    prefill_tokens = sum(row.num_tokens for row in counted) - rows
    return step.copy_s + (StepCost(*step.cost).seconds(rows, prefill_tokens) if step.rows else 0.0)


@pytest.mark.parametrize("options", [(), ("--itl-p95-s", "0.08")], ids=["by-growth", "by-objective"])
def test_no_bulk_row_is_in_a_step_in_which_it_would_break_the_objective(demo_model, tmp_path, options):
    """The promise of the worker, step by step, on a mix of interactive requests and a flood of bulk."""
    log = tmp_path / "steps"
    sizes = ("--max-seqs", "4", "--kv-tokens", "4096", "--step-log", str(log))
    bulk_prompts = [f"Item {number}: " + "a shelf of old books. " * 6 for number in range(6)]
    with (
        WorkerProcess("--path", str(demo_model), "--model", "smollm2", *sizes, *options) as worker,
        ThreadPoolExecutor(8) as threads,
    ):
        bulk = [threads.submit(complete, worker, prompt, BULK, 24) for prompt in bulk_prompts]
        until(lambda: worker.load()["lanes"]["bulk"]["running"] == 4)
        for number in range(4):
            assert complete(worker, f"Question {number}: what is a library?", INTERACTIVE, 10)
        assert all(future.result() for future in bulk)
        until(lambda: worker.load()["running"] == 0)
        load = worker.load()
        assert worker.stop() == 0
    steps = read_step_log(log)
    _check_every_line(steps, itl_p95_s=0.08 if options else None)
    left_out = sum(step.bulk_left_out for step in steps)
    assert load["bulk_rows_left_out"] == left_out
    assert load["lanes"]["bulk"] == {"running": 0, "waiting": 0}
    assert any(has_bulk(step) and step.objective_s is None for step in steps), "bulk never ran"
    assert left_out > 0, "interactive never came between"


def _check_every_line(steps: list[LoggedStep], *, itl_p95_s: float | None) -> None:
    urgent_s = 0.0
    for step in steps:
        assert step.modelled_s == pytest.approx(modelled(step, without_bulk=False))
        urgent = [row for row in step.rows if row.lane != "bulk"]
        if not urgent:
            assert step.objective_s is None
            continue
        urgent_s += step.seconds
        alone_s = modelled(step, without_bulk=True)
        assert step.modelled_urgent_s == pytest.approx(alone_s)
        allowed_s = max(alone_s, itl_p95_s) if itl_p95_s is not None else PROMISED_GROWTH * alone_s
        assert step.objective_s <= allowed_s * (1 + 1e-9)
        if has_bulk(step) and not step.is_lifted:
            assert step.modelled_s <= step.objective_s
    assert sum(step.is_lifted for step in steps) <= urgent_s / PATIENCE_S + 1
