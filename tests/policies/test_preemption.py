"""Who gives way on an engine without priorities, and that little work is lost by it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.preemption import BulkRun, PreemptionSettings, WasteBudget


def run(name: str, tokens: int, begun: float = 0.0, **changes) -> BulkRun:
    """One bulk request."""
    return BulkRun(name, begun, tokens, **changes)


def names(runs) -> list[str]:
    """Who was chosen."""
    return [one.request_id for one in runs]


def test_the_least_work_goes_first_then_the_youngest():
    """Each cancelled row frees the same room, so the cheapest go."""
    budget = WasteBudget(PreemptionSettings())
    runs = [run("old", 500, 1.0), run("young", 500, 2.0), run("little", 10, 0.0), run("much", 4000, 3.0)]
    assert names(budget.preempt(runs, 3)) == ["little", "young", "old"]


def test_who_has_shown_text_or_gave_way_often_enough_stays():
    """An answer cannot begin twice, and nobody is sent back for ever."""
    budget = WasteBudget(PreemptionSettings(max_times=2))
    runs = [
        run("shown", 1, has_sent_content=True),
        run("often", 2, times_preempted=2),
        run("once", 3, times_preempted=1),
    ]
    assert names(budget.preempt(runs, 9)) == ["once"]


def test_the_budget_bounds_the_loss_and_refills_by_finished_work():
    """Nothing goes when nothing is left; a tenth of what was finished comes back, never above the burst."""
    budget = WasteBudget(PreemptionSettings(share=0.1, burst_tokens=1000))
    assert names(budget.preempt([run("a", 900), run("b", 901)], 9)) == ["a"]
    assert budget.preempt([run("c", 200)], 1) == ()
    budget.earn(1000)
    assert names(budget.preempt([run("c", 200)], 1)) == ["c"]
    budget.earn(1_000_000)
    assert budget.left_tokens == 1000
    assert repr(budget) == "<WasteBudget 1000 left, 1100 wasted of 1001000 finished>"


def test_little_is_lost_before_anything_was_finished():
    """A slow engine with short pauses would lose all it begins for minutes; the whole burst has to be earned."""
    budget = WasteBudget(PreemptionSettings(share=0.1, burst_tokens=5000, first_tokens=300))
    assert names(budget.preempt([run("a", 200), run("b", 200)], 9)) == ["a"]
    budget.earn(1000)
    assert budget.left_tokens == 200
    budget.earn(1_000_000)
    assert budget.left_tokens == 5000


def test_none_is_asked_for_none_goes():
    """Zero is a number of rows, too; and without a budget nothing is ever cancelled."""
    assert WasteBudget(PreemptionSettings()).preempt([run("a", 1)], 0) == ()
    assert WasteBudget(PreemptionSettings(share=0.0, burst_tokens=0)).preempt([run("a", 1)], 5) == ()


@given(
    st.lists(
        st.one_of(
            st.integers(-100, 50_000),
            st.tuples(
                st.lists(st.tuples(st.integers(-5, 5000), st.booleans(), st.integers(0, 3)), max_size=12),
                st.integers(0, 12),
            ),
        ),
        max_size=40,
    ),
    st.floats(0, 0.5),
    st.integers(0, 20_000),
)
@settings(max_examples=120, deadline=None)
def test_in_every_stretch_the_loss_is_within_its_share_plus_the_burst(events, share, burst):
    """The stated bound, over all stretches of any history, and the rules for each one chosen."""
    budget = WasteBudget(PreemptionSettings(share=share, burst_tokens=burst))
    history = [(0, 0)]
    for event in events:
        if isinstance(event, int):
            budget.earn(event)
        else:
            runs = [
                run(str(n), tokens, has_sent_content=sent, times_preempted=times)
                for n, (tokens, sent, times) in enumerate(event[0])
            ]
            chosen = budget.preempt(runs, event[1])
            assert len(chosen) <= event[1]
            assert all(not one.has_sent_content and one.times_preempted < 2 for one in chosen)
        assert budget.left_tokens >= 0
        history.append((budget.wasted_tokens, budget.finished_tokens))
    for index, (wasted, finished) in enumerate(history):
        for later_wasted, later_finished in history[index:]:
            assert later_wasted - wasted <= share * (later_finished - finished) + burst + 1e-6


@pytest.mark.parametrize("changes", [{"share": 1.0}, {"share": -0.1}, {"burst_tokens": -1}, {"max_times": -1}])
def test_senseless_settings_are_refused(changes):
    """A share of one would throw everything away."""
    with pytest.raises(ValueError, match="share"):
        PreemptionSettings(**changes)
