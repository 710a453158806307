"""Steps read from the ledger: what else a replica had to do is in its other rows."""

import csv
import io
import json

import pytest

from gateway.admin.usage_export import COLUMNS
from gateway.replay import ledger_steps
from gateway.replay.ledger_steps import LEAST_TOKENS, NoLedger, Served, observations, read_served
from gateway.replay.step_fit import fit
from gateway.simulation import mooncake
from gateway.simulation.trace_fleet import TraceFleet
from gateway.simulation.trace_policies import POLICIES, FrontPlan
from gateway.simulation.trace_run import BlockReplica
from tests.gateway.simulation.traces_kit import fleet, lines

ROW = {
    "replica": "r1", "started_at": 100.0, "ended_at": 103.0, "queue_s": 0.5, "ttft_s": 1.0, "prompt_tokens": 1000,
    "cached_tokens": 400, "completion_tokens": 21,
}  # fmt: skip


def long_answers(**shape):
    """A recording of answers of 50 to 99 tokens."""
    found = []
    for number, line in enumerate(lines(**shape)):
        found.append(json.dumps(json.loads(line) | {"output_length": 50 + number * 37 % 50}).encode())
    return mooncake.record(found)


def exported(*rows):
    """The lines of an export."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows([{name: row.get(name) for name in COLUMNS} for row in rows])
    return out.getvalue().splitlines()


def test_a_row_becomes_its_times_and_its_work():
    """By replica; what was never streamed or never answered says nothing."""
    rows = [ROW, ROW | {"replica": "r2", "cached_tokens": ""}, ROW | {"ttft_s": ""}, ROW | {"replica": ""}]
    assert read_served(exported(*rows)) == {
        "r1": [Served(100.5, 101.0, 103.0, 600, 21)],
        "r2": [Served(100.5, 101.0, 103.0, 1000, 21)],
    }


def test_of_a_long_ledger_the_first_rows_are_read(monkeypatch):
    """A month of a busy fleet would take minutes and gigabytes."""
    monkeypatch.setattr(ledger_steps, "MOST_ROWS", 3)
    assert [len(of) for of in read_served(exported(*[ROW] * 5)).values()] == [3]


def test_one_alone_is_its_reading_and_its_tokens():
    """600 tokens in two steps of 512, then 20 gaps with itself in the batch."""
    [reading, decoding] = observations([Served(100.5, 101.0, 103.0, 600, 21)], 512)
    assert (reading.steps, reading.row_steps, reading.prompt_tokens, reading.seconds) == (2, 0.0, 600, 0.5)
    assert reading.hops == 1.0
    assert (decoding.steps, decoding.row_steps, decoding.prompt_tokens, decoding.seconds) == (20, 20.0, 0, 2.0)


def test_what_else_was_there_is_counted():
    """Another's answer for half of the time, and a third's prompt that was read in between."""
    served = [Served(0.0, 1.0, 3.0, 100, 21), Served(0.0, 0.5, 2.0, 50, 2), Served(1.0, 1.5, 1.5, 70, 1)]
    [decoding] = observations(served, 512)
    assert (decoding.prompt_tokens, decoding.row_steps / decoding.steps) == (70, 1.5)
    assert LEAST_TOKENS > 2, "shorter answers have no gaps worth the name"


def test_the_way_to_a_first_token_counts_only_of_who_was_alone():
    """Beside others it has waits in it that nothing tells of."""
    beside = [Served(0.0, 1.0, 1.0, 100, 1), Served(0.5, 1.5, 1.5, 50, 1)]
    assert list(observations(beside, 512)) == []
    assert [one.prompt_tokens for one in observations([*beside, Served(5.0, 6.0, 6.0, 70, 1)], 512)] == [70]
    assert list(observations([Served(0.0, 1.0, 1.0, 0, 1)], 512)) == [], "all of it hit"


def test_the_model_of_a_simulated_fleet_is_found_again():
    """Two replicas under a trace: what their ledger would say gives their costs back."""
    settings = fleet(num_replicas=2, speed_error=0.0)
    trace = long_answers(num=120, gap_ms=150)
    engine = settings.engine.settings(settings.kv_tokens, trace.block_tokens)
    replicas = [BlockReplica(f"r{number}", engine) for number in range(2)]
    front = POLICIES["round_robin"].build(FrontPlan(replicas, engine, 1, 1), POLICIES["round_robin"].settings())
    run = TraceFleet(replicas, front)
    run.run(trace.requests, 1.0)
    found = []
    for number in range(2):
        served = [
            Served(
                one.arrived_at, one.first_at, one.over_at, one.request.prompt_tokens - one.cached_tokens,
                one.request.output_tokens,
            )
            for one in run.flights
            if one.replica == number
        ]  # fmt: skip
        found += observations(served, settings.engine.max_step_tokens)
    model, true = fit(found), settings.engine.cost
    assert model.cost.seconds(1, 0) == pytest.approx(true.seconds(1, 0), rel=0.1)
    assert model.cost.seconds(4, 0) == pytest.approx(true.seconds(4, 0), rel=0.1)
    assert model.cost.per_prefill_token_s == pytest.approx(true.per_prefill_token_s, rel=0.1)
    assert model.p90_error < 0.05


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "lacks replica"),
        (["a,b", "1,2"], "lacks replica"),
        (exported(ROW | {"ttft_s": "x"}), "line 2"),
        (["x" * 200_000], "no CSV"),
        ([*exported(), "x" * 200_000], "no CSV"),
    ],
)
def test_what_is_no_export_is_refused_with_what_it_lacks(lines, said):
    """Other CSV files have other columns."""
    with pytest.raises(NoLedger, match=said):
        read_served(lines)
