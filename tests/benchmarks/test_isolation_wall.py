"""The parts of the wall-time measurement that need no engine: what is said, what is written, how long it may take."""

import io
import json
from argparse import Namespace

import pytest
from rich.console import Console

from tests.benchmarks.isolation_load import Answer, Text, ended_per_s, poisson, talk_summary
from tests.benchmarks.isolation_report import can_draw, draw, markdown_of, rows_of, write_docs
from tests.benchmarks.isolation_stages import Stage, Stages
from tests.benchmarks.isolation_wall import BEHIND, DIRECT, LEAST_S, OWN, Series, main, plan_of

PAGE = "before\n<!-- isolation_wall: begin -->\nold\n<!-- isolation_wall: end -->\nafter\n"


def options(**changes):
    """A command line."""
    given = {"quick": False, "minutes": None, "seconds": None, "seats": 8, "threads": 2, "seed": 1}
    return Namespace(**(given | changes))


def stages_of(*stages, limit_s=100.0):
    """Stages whose lines nobody sees."""
    return Stages(stages, Console(file=io.StringIO()), limit_s)


def result():
    """What a run finds."""
    times = {"p50": 10.0, "p95": 20.0, "p99": 30.0}
    batch = {"steps_per_s": 9.0, "rows": 1.5, "seats": {"interactive": 1.0, "standard": 0.0, "bulk": 8.0}}
    load = {"requests": 40, "unanswered": 0, "ttft_ms": times, "itl_ms": times, "tokens_per_s": 8.0, "batch": batch}
    load |= {"bulk": {"tokens_per_s": 12.0}}
    ratios = dict.fromkeys(("ttft_p50", "ttft_p95", "itl_p50", "itl_p95"), 1.1)
    one = {"name": OWN, "seconds": 60.0, "capacity": {"bulk_tokens_per_s": 30.0}, "ratios": ratios}
    one |= {"alone": load, "beside": load | {"unanswered": 2}}
    plan = {"setup": {"threads": 2, "seats": 8}, "seed": 1}
    told = {"at": "today", "machine": "2 cores", "load_average": 0.1, "model": "small.gguf", "plan": plan}
    return told | {"systems": [one], "failed": {}}


@pytest.mark.parametrize("is_quick", [False, True])
def test_all_stages_fit_into_the_time_that_is_promised(is_quick):
    """Ten minutes, four with `--quick`, with windows of the length that is wanted."""
    plan = plan_of(options(quick=is_quick))
    assert sum(stage.expected_s for stage in plan.stages()) <= plan.limit_s
    assert plan.limit_s <= (240 if is_quick else 600)


def test_windows_are_shorter_where_less_time_is_left():
    """A slow machine needs longer for the rest; a window below the least says nothing."""
    plan = plan_of(options())
    for limit_s, num_loads, seconds in ((90.0, 4, 60.0), (10.0 + 40.0, 4, 50.0), (10.0, 2, 20.0), (1.0, 1, LEAST_S)):
        with stages_of(Stage("a", 90.0), limit_s=limit_s) as stages:
            assert plan.seconds_of(stages, num_loads) == pytest.approx(seconds, abs=0.5)


def test_stages_come_in_their_order_and_failed_ones_are_skipped():
    """The bar is about what is left."""
    with stages_of(Stage("x: a", 1.0), Stage("x: b", 2.0), Stage("y: a", 4.0)) as stages:
        assert stages.spare_s == pytest.approx(93.0, abs=0.5)
        with stages.stage("x: a"):
            pass
        stages.skip("x")
        with pytest.raises(AssertionError, match="comes before"), stages.stage("y: b"):
            pass


def test_a_system_that_fails_does_not_end_the_others(monkeypatch, tmp_path):
    """Half a measurement is more than none, and it says what is missing."""
    plan = plan_of(options(quick=True))

    def broken(*_):
        raise RuntimeError("no such engine")

    monkeypatch.setattr("tests.benchmarks.isolation_wall.own_worker", broken)
    monkeypatch.setattr("tests.benchmarks.isolation_wall.llama_server", broken)
    with stages_of(*plan.stages()) as stages:
        series = Series(plan, stages, tmp_path / "model", tmp_path)
        series.run()
    assert series.results == []
    assert series.failed == {
        OWN: "no such engine",
        BEHIND: "no such engine",
        DIRECT: "its capacity is not known",
    }


def test_the_table_has_three_lines_a_system():
    """Without bulk, beside it, and the ratios."""
    lines = list(rows_of(result()))
    assert [line[:3] for line in lines] == [
        (OWN, "none", "10"),
        (f"{OWN} (2 unanswered)", "beside", "10"),
        (OWN, "ratio", "**1.10**"),
    ]
    assert (lines[1][7], lines[1][9]) == ("1.0 + 8.0", "12 of 30")
    assert f"{OWN} 40 in 60 s" in markdown_of(result())


def test_the_table_replaces_what_is_between_the_markers(tmp_path):
    """The text around it is written by people; a picture is shown only where there is one."""
    page = tmp_path / "isolation.md"
    page.write_text(PAGE)
    write_docs(result(), page)
    assert "old" not in page.read_text()
    assert "![" not in page.read_text()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "isolation.png").write_bytes(b"")
    write_docs(result(), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert text.count("today") == 1
    assert "(images/isolation.png)" in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="begin"):
        write_docs(result(), page)


@pytest.mark.skipif(not can_draw(), reason="matplotlib is not installed")
def test_the_picture_is_drawn(tmp_path):
    """Where matplotlib is there."""
    draw(result(), tmp_path / "images" / "p.png")
    assert (tmp_path / "images" / "p.png").stat().st_size > 1000


def test_what_was_measured_can_be_shown_again(tmp_path, capsys):
    """And a missing file is one sentence."""
    path = tmp_path / "r.json"
    assert main(["--from-json", "--json", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    path.write_text(json.dumps(result()))
    assert main(["--from-json", "--json", str(path)]) == 0
    assert "1.10" in capsys.readouterr().out
    path.write_text(json.dumps(result() | {"failed": {BEHIND: "why"}}))
    assert main(["--from-json", "--json", str(path)]) == 1
    assert f"{BEHIND} was not measured: why" in capsys.readouterr().err


def test_every_system_is_asked_the_same_at_the_same_moments():
    """Only the name of the run differs, so that none finds another's prompts in its cache."""

    def asks(name):
        text = Text("m", 1, name)
        return poisson("interactive", text.talk, 2.0, 30.0, 1)

    one, other = asks("run-a"), asks("run-b")
    assert len(one) > 30
    assert [ask.due_s for ask in one] == [ask.due_s for ask in other]
    bodies = [json.dumps([ask.body for ask in found]) for found in (one, other)]
    assert bodies[0] != bodies[1]
    assert bodies[0].replace("run-a", "run-b") == bodies[1]
    assert poisson("bulk", Text("m", 1, "a").bulk, 0.0, 30.0, 1) == []


def test_a_request_without_a_token_counts_with_what_it_waited():
    """Leaving it out would make a starving system look good."""
    answers = [
        Answer("interactive", 1.0, status=200, tokens_at=[1.5, 1.6, 1.8], ended_s=2.0, output_tokens=3),
        Answer("interactive", 2.0),
        Answer("interactive", 99.0),
        Answer("bulk", 1.0, status=200, ended_s=3.0, output_tokens=7),
        Answer("bulk", 1.0, status=429, ended_s=3.0, error="full"),
    ]
    found = talk_summary(answers, (0.0, 10.0), 10.0)
    assert (found["requests"], found["unanswered"], found["num_gaps"]) == (2, 1, 2)
    assert found["ttft_ms"]["p95"] == 8000.0
    assert found["itl_ms"]["p95"] == pytest.approx(200.0)
    assert ended_per_s(answers, "bulk", (0.0, 10.0)) == (0.1, 0.7)
