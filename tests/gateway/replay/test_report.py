"""What a replay came to, in numbers, and beside an earlier run's."""

import pytest

from gateway.replay.exchange import Heard
from gateway.replay.report import COMPARED, at, compared, plot, replayed
from gateway.simulation.recording import TraceFacts

FACTS = TraceFacts(requests=4, prompt_tokens=4000, output_tokens=40, oracle_hit_tokens=2000, duration_s=3.0)
SETTINGS = {"requests": 4, "scale": 1, "speed": 1.0, "surface": "chat"}


def heard(number, ttft_s=0.5, cached=450, fault=""):
    """An answer of three tokens, 0.1 s apart, due at its number."""
    due = float(number)
    times = [due + ttft_s + 0.1 * n for n in range(3)]
    return Heard(due, due + 0.01, times, times[-1] + 0.1, 1000, cached, 3, fault)


def run(*changes):
    """A document of four answers."""
    return replayed([heard(number, *of) for number, of in enumerate(changes)], FACTS, SETTINGS, 2.0)


def test_numbers_are_of_the_answers_that_were_complete():
    """Failures are counted by their words, and are no goodput."""
    target = run((0.5,), (1.0,), (3.0,), (0.1, 450, "cut"))["target"]
    assert (target["requests"], target["failed"], target["faults"]) == (4, 1, {"cut": 1})
    assert target["ttft_s"]["p50"] == pytest.approx(1.0)
    assert target["itl_s"]["p95"] == pytest.approx(0.1)
    assert target["duration_s"] == pytest.approx(5.3)
    assert target["goodput_per_s"] == pytest.approx(2 / 5.3)
    assert target["goodput_ratio"] == 0.5
    assert (target["hit_tokens"], target["hit_ratio"]) == (1350, 0.45)
    assert target["hit_of_oracle"] == pytest.approx(0.9)
    assert target["sent_late_s"]["p95"] == pytest.approx(0.01)


def test_hits_are_of_those_that_were_reported():
    """Silence is not zero."""
    target = run((0.5, None), (0.5,), (0.5, None), (0.5, None))["target"]
    assert (target["reported"], target["hit_ratio"]) == (1, 0.45)
    nobody = run(*[(0.5, None)] * 4)["target"]
    assert (nobody["reported"], nobody["hit_ratio"], nobody["hit_of_oracle"]) == (0, None, None)


def test_a_run_without_an_answer_has_its_document_too():
    """Nothing divides by zero."""
    target = run(*[(0.5, 0, "503")] * 4)["target"]
    assert (target["failed"], target["goodput_per_s"], target["ttft_over_time_s"]) == (4, 0.0, [])


def test_an_earlier_run_is_compared_number_by_number():
    """Which is better depends on the number."""
    rows = compared(run((1.0,), (1.0,), (1.0,), (1.0,)), run(*[(2.0, 300)] * 4))
    found = {row["what"]: row for row in rows}
    assert list(found) == [name for name, _, _ in COMPARED]
    assert (found["TTFT p95, s"]["ratio"], found["TTFT p95, s"]["better"]) == (pytest.approx(0.5), True)
    assert (found["hit ratio"]["ratio"], found["hit ratio"]["better"]) == (pytest.approx(1.5), True)
    assert (found["failed"]["ratio"], found["failed"]["better"]) == (None, None)
    assert {row["better"] for row in compared(run(*[(1.01,)] * 4), run(*[(1.0,)] * 4))} == {None}
    worse = compared(run(*[(2.0, 300)] * 4), run(*[(1.0,)] * 4))
    assert {row["better"] for row in worse if row["what"] in {"TTFT p95, s", "hit ratio"}} == {False}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({}, "no output of `warmlane replay"),
        ({"settings": SETTINGS, "trace": {}}, "another trace"),
        ({"settings": {**SETTINGS, "scale": 16}}, "another scale"),
        ({"settings": 5}, "no output of"),
        ({"settings": SETTINGS, "trace": run()["trace"], "target": {}}, "no output of"),
    ],
)
def test_a_baseline_of_something_else_is_refused(before, said):
    """Two numbers that mean different things are no comparison."""
    with pytest.raises(ValueError, match=said):
        compared(run((1.0,)), {"trace": run()["trace"], **before})


def test_a_plot_is_as_wide_as_its_values():
    """The highest is full, nothing is blank."""
    assert plot([0.0, 1.0, None, 2.0]) == "▁▄ █" or plot([0.0, 1.0, None, 2.0]) == "▁▅ █"
    assert plot([]) == ""
    assert plot([0.0, None]) == "▁ "
    assert at({"a": {"b": 5}}, ("a", "b")) == 5
