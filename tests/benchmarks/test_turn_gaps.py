"""Streams do not stand still for long while others' prompts are read by turns."""

import pytest

from tests.benchmarks.turn_gaps import Arrival, crowd, newcomers, run, step_s, turns_of, whole_prompts


@pytest.mark.parametrize(
    ("arrivals", "longest_s"),
    [
        (newcomers(0.5, 40.0, seed=4), 0.3),
        ([Arrival(1.5 * number, 200, 120) for number in range(20)], 0.3),
        (crowd(4), 0.3),
        (crowd(16), 0.55),
    ],
    ids=["by chance", "one after the other", "a few at once", "a crowd"],
)
def test_no_gap_is_longer_than_a_turn_and_a_step(arrivals, longest_s):
    """A quarter of a second, half of one in a large crowd; the model of a step's time errs by a little."""
    gaps = run(arrivals)
    assert 0.1 < max(gaps.gap_s) < longest_s
    assert len(gaps.ttft_s) == len(arrivals)
    assert len(gaps.ttft_s) + len(gaps.gap_s) == sum(one.output for one in arrivals)


def test_without_turns_they_do():
    """What the rule is for: whole prompts beside decodes, and all that the comparison's switches do."""
    with whole_prompts():
        assert max(run(crowd(4), mixes_prompts=True, max_step_tokens=2048).gap_s) > 0.7
    with turns_of(1.0):
        assert max(run(crowd(4)).gap_s) > 0.7
    assert max(run(crowd(4)).gap_s) < 0.3


def test_the_devices_steps_are_those_that_were_measured():
    """At the measured sizes, and between them."""
    assert step_s(4, 0) == pytest.approx(0.0261)
    assert 0.0261 < step_s(8, 0) < 0.076
    assert step_s(0, 100) == pytest.approx(0.196)
    assert step_s(8, 100) == pytest.approx(step_s(8, 0) + 0.196 + 0.03)
