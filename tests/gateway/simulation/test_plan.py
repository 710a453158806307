"""Which fleet a trace needs: searched by growth and halving, the cheapest that holds."""

import pytest

from engines.step_cost import StepCost
from gateway.simulation import plan as planning
from gateway.simulation.plan import Kind, Objective, PlanSettings, plan
from gateway.simulation.trace_run import TraceEngine
from tests.gateway.simulation.traces_kit import SIZE, recording

ENGINE = TraceEngine(StepCost(0.010, 0.001, 0.0002), max_seqs=4, max_step_tokens=1024)
FAST = TraceEngine(StepCost(0.005, 0.0005, 0.0001), max_seqs=4, max_step_tokens=1024)
TRACE = recording(num=40, gap_ms=40)
PLENTY = 100 * SIZE


def ignore(*_):
    """Nobody watches."""


def planned(*kinds, ttft_p95_s=1.0, trace=TRACE, **settings):
    """A plan for the small trace."""
    return plan(trace, kinds, Objective(ttft_p95_s), PlanSettings(speed_error=0.0, **settings), ignore)


class Fleet:
    """Stands for the simulation: this many replicas of a kind hold, fewer do not."""

    def __init__(self, monkeypatch, needed):
        self.tried = []
        needs = dict(needed)

        def simulated(search, num):
            kind = search._kind
            self.tried.append((kind.name, num))
            holds = num >= needs[kind.name]
            return planning.Candidate(
                kind=kind.name, replicas=num, kv_tokens=kind.kv_tokens, cost=num * kind.cost, load=1 / num,
                ttft_p50_s=0.1, ttft_p95_s=1 / num, itl_p95_s=0.01, hit_ratio=0.5, peak_in_flight=1, holds=holds,
            )  # fmt: skip

        monkeypatch.setattr(planning._Search, "_simulated", simulated)
        monkeypatch.setattr(planning._Search, "_fewest", lambda _: 1)


@pytest.mark.parametrize("needed", [*range(1, 20), 31, 64])
def test_the_fewest_that_hold_are_found(monkeypatch, needed):
    """Whatever the number, in few runs, and no fleet twice."""
    fleet = Fleet(monkeypatch, {"a": needed})
    found = planned(Kind("a", PLENTY), most=64)
    assert found.chosen.replicas == needed
    assert len(set(fleet.tried)) == len(fleet.tried) <= 16


def test_the_cheapest_kind_is_chosen_and_dearer_fleets_are_not_simulated(monkeypatch):
    """Two fast ones at 3 beat eight slow ones at 1; of those only as many as cost no more are tried."""
    fleet = Fleet(monkeypatch, {"fast": 2, "slow": 8})
    found = planned(Kind("fast", PLENTY, 3.0), Kind("slow", PLENTY, 1.0))
    assert (found.chosen.kind, found.chosen.replicas, found.chosen.cost) == ("fast", 2, 6.0)
    assert max(num for kind, num in fleet.tried if kind == "slow") == 6


def test_of_equally_dear_fleets_the_faster_is_chosen(monkeypatch):
    """More small ones of the same cost here answer sooner."""
    Fleet(monkeypatch, {"a": 2, "b": 4})
    found = planned(Kind("a", PLENTY, 2.0), Kind("b", PLENTY, 1.0))
    assert found.chosen.kind == "b"


def test_where_none_holds_none_is_chosen(monkeypatch):
    """All that were tried are told, up to the most that are allowed."""
    fleet = Fleet(monkeypatch, {"a": 100})
    found = planned(Kind("a", PLENTY), most=10)
    assert (found.chosen, fleet.tried[-1]) == (None, ("a", 10))


def test_a_real_search_ends_at_its_border():
    """The chosen fleet keeps the promise, the one below was simulated and does not."""
    found = planned(Kind("small", PLENTY, engine=ENGINE))
    chosen = found.chosen
    assert chosen.ttft_p95_s <= 1.0
    below = [one for one in found.candidates if one.replicas == chosen.replicas - 1]
    assert below == [] or not below[0].holds
    assert below or chosen.load > 0.5, "fewer could not even compute it"
    assert 0 < chosen.hit_ratio < 1
    assert 1 <= chosen.peak_in_flight <= 40


def test_a_faster_engine_needs_fewer():
    """And gaps may be promised, too."""
    slow, fast = (planned(Kind("x", PLENTY, engine=engine)).chosen.replicas for engine in (ENGINE, FAST))
    assert fast < slow
    objective = Objective(60.0, itl_p95_s=1e-6)
    found = plan(TRACE, [Kind("x", PLENTY, engine=FAST)], objective, PlanSettings(most=2), ignore)
    assert found.chosen is None


def test_what_cannot_do_it_at_all_is_not_simulated():
    """Too little KV for the longest request, or more replicas than are allowed for the work alone."""
    found = planned(Kind("tiny", SIZE), Kind("slow", PLENTY, engine=TraceEngine(StepCost(5.0, 1.0, 1.0))), most=3)
    assert found.candidates == ()
    assert [kind for kind, _ in found.unfit] == ["tiny", "slow"]
    assert "do not hold the longest request" in found.unfit[0][1]
    assert "3 are the most allowed" in found.unfit[1][1]


def test_the_median_of_seeds_is_judged():
    """Each fleet is run with each seed."""
    seen = set()
    plan(
        TRACE, [Kind("x", PLENTY, engine=FAST)], Objective(1.0), PlanSettings(seeds=(1, 2)),
        lambda what, num, of: seen.add((what, num, of)),
    )  # fmt: skip
    assert {of for *_, of in seen} == {40}


def test_a_trace_without_time_cannot_be_planned_for():
    """There is no rate in it."""
    with pytest.raises(ValueError, match="no load to plan for"):
        planned(Kind("x", PLENTY), trace=TRACE.first(1))
