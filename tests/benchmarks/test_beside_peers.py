"""The sums behind the table of other gateways."""

import pytest

from tests.benchmarks.beside_peers import medians, ratios, text_of
from tests.benchmarks.peers import PEERS


def run(cpu_us, ttft=1.0):
    """One measured run."""
    return {"cpu_us": cpu_us, "ttft_ms": {"p50": ttft}, "memory_mb": 50.0}


RUNS = {
    workload: {
        "direct": [run(5), run(5), run(5)],
        "warmlane": [run(50), run(90), run(40)],
        "sglang-router": [run(100, 45.0), run(100, 44.0), run(10, 44.0)],
        "smg": [run(200), run(200), run(200)],
        "litellm": [run(5000), run(6000), run(4000)],
    }
    for workload in ("small", "large", "stream20")
}


def test_the_median_of_the_rounds_counts_and_what_the_engine_takes_is_no_added_time():
    """One disturbed round moves nothing."""
    found = medians(RUNS)["small"]
    assert (found["warmlane"]["cpu_us"], found["warmlane"]["least"], found["warmlane"]["most"]) == (50, 40, 90)
    assert found["sglang-router"]["added_ms"] == 43.0


def test_ratios_are_to_the_cheapest_router_and_litellm_is_none():
    """A router of Rust is who we compare with; litellm has a line of its own."""
    ratio, cheapest, times = ratios(medians(RUNS))["small"]
    assert (ratio, cheapest, times) == (0.5, "sglang-router", 100.0)
    alone = {"small": {name: rounds for name, rounds in RUNS["small"].items() if name in ("direct", "warmlane")}}
    assert ratios(medians(alone)) == {}


def test_the_table_tells_a_late_first_token():
    """40 ms of Nagle and delayed acknowledgements are a step that users feel."""
    text = text_of({"runs": RUNS})
    (row,) = [line for line in text.splitlines() if line.startswith("| sglang-router")]
    assert "43.00, 43.0 ms, **a step**" in row
    assert "step" not in next(line for line in text.splitlines() if line.startswith("| warmlane"))


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_is_started_with_what_it_was_given(name, tmp_path):
    """Its port and both engines stand in the command, or in the file that the command names."""
    engines = ["http://127.0.0.1:1111", "http://127.0.0.1:2222"]
    words = PEERS[name].command(tmp_path, 3333, engines, tmp_path)
    said = " ".join(words) + "".join(path.read_text() for path in tmp_path.glob("*.yaml"))
    assert all(part in said for part in (*engines, "3333"))
