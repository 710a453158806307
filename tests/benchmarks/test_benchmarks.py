"""The benchmark's own parts run and count right; what they measure is not asserted here."""

import sys

import pytest

from tests.benchmarks import limits_cost
from tests.benchmarks.gateway_cpu import _summary, table_of
from tests.benchmarks.load import percentiles, run
from tests.benchmarks.processes import cpu_s, family, memory_mb, running
from tests.benchmarks.workloads import WORKLOADS, Workload

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="CPU is read from /proc")


def test_the_prompts_are_the_same_in_every_run_and_of_the_stated_size():
    """Two runs are compared, so they must ask the same."""
    for workload in WORKLOADS.values():
        bodies = workload.bodies()
        assert bodies == workload.bodies()
        assert len(set(bodies)) == len(bodies)
        assert all(workload.prompt_bytes <= len(body) < workload.prompt_bytes + 300 for body in bodies)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "workload",
    [
        Workload("unary", "request", 4, 1024, 16, is_streaming=False),
        Workload("stream", "chunk", 4, 1024, 16, is_streaming=True),
        Workload("stamped", "chunk", 4, 1024, 8, is_streaming=True, orders="bench:itl_ms=5,stamp=1;"),
    ],
    ids=lambda workload: workload.name,
)
async def test_load_through_the_floor_counts_without_errors(workload, tmp_path):
    """Mock, relay and load together, as in a measurement, for a moment."""
    mock = [sys.executable, "-m", "tests.benchmarks.mock_engine"]
    with running(mock, core=None, log=tmp_path / "mock.log") as (_, ready):
        floor = [sys.executable, "-m", "tests.benchmarks.relay_floor", "--backend", *ready["url"]]
        with running(floor, core=None, log=tmp_path / "floor.log") as (pid, floor_ready):
            url = floor_ready["url"][0]
            found = await run(url, "none", workload, pid, seconds=0.3, warm_up_s=0.1)
    assert (found["errors"], found["last_error"]) == (0, "")
    assert found["requests_per_s"] > 0
    assert found["memory_mb"] > 0
    if workload.is_streaming:
        # Role chunk, tokens, finish chunk, as the mock sends them; streams cut by the window's ends blur it.
        per_request = found["chunks_per_s"] / found["requests_per_s"]
        assert per_request == pytest.approx(workload.num_tokens + 2, rel=0.4)
    assert bool(found["transit_ms"]) == ("stamp" in workload.orders)


def test_a_process_that_never_becomes_ready_is_shown_with_its_log(tmp_path):
    """A gateway that refuses its configuration must say so here."""
    command = [sys.executable, "-c", "import sys; print('hello'); sys.exit('a clear sentence')"]
    with pytest.raises(RuntimeError, match="a clear sentence"), running(command, core=None, log=tmp_path / "log"):
        pass


def test_a_process_that_is_gone_costs_nothing():
    """It may end between two readings."""
    import os

    assert os.getpid() in family(os.getpid())
    assert cpu_s([2**22 + 1]) == 0
    assert memory_mb([2**22 + 1]) == 0


def test_percentiles():
    """Of few values the last stands for the tail."""
    assert percentiles([]) == {}
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p95": 3.0, "p99": 3.0}


def test_the_ratio_is_the_median_of_neighbouring_runs():
    """A slow moment of the machine hits both of a pair."""

    def ran(*costs):
        return [
            {
                "cpu_us": cost,
                "requests_per_s": 1.0,
                "chunks_per_s": 1.0,
                "ttft_ms": {},
                "transit_ms": {},
                "memory_mb": 1.0,
            }
            for cost in costs
        ]

    row = _summary(WORKLOADS["small"], {"floor": ran(10, 20, 10), "gateway": ran(20, 60, 90)})
    assert (row["ratio"], row["ratio_range"]) == (3.0, [2.0, 9.0])
    assert row["gateway"]["cpu_us"] == 60
    assert table_of({"workloads": {"small": row}}).row_count == 1


def test_the_cost_of_limits_is_measured_for_every_case():
    """A short run: every case has a number."""
    rows = {row["limits"]: row["1 least"] for row in limits_cost.rows_of(repeats=1, num=200)}
    assert set(rows) == set(limits_cost.CASES)
    assert min(rows.values()) > 0
