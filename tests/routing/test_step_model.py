"""What a step costs, learned from streams and times to first token alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.step_cost import StepCost
from routing.step_model import LEARN_EVERY_S, PRIOR, Gaps, StepModel

TRUE = StepCost(base_s=0.010, per_row_s=0.0002, per_prefill_token_s=0.00005)


def test_learns_the_cost_from_one_observation_a_request():
    """Mean rows and the mean gap, and prompts read alone: within some per cent after a hundred requests."""
    model, rng, now = StepModel(), random.Random(1), 0.0
    for _ in range(120):
        urgent, bulk, prompt = rng.randint(1, 4), rng.choice([0, 2, 8, 30]), rng.choice([0, 0, 800])
        model.note_rows(urgent, bulk, now)
        since = model.mark()
        model.note_prompt(prompt)
        gap_s = TRUE.seconds(urgent + bulk, prompt / 100) * rng.uniform(0.95, 1.05)
        now += 100 * gap_s
        model.note_rows(urgent, bulk, now)
        model.learn_gaps(since, Gaps(100, gap_s, ()), now)
        tokens = rng.randint(300, 2000)
        num_steps = -(-tokens // 512)
        model.learn_ttft(tokens, bulk, num_steps * TRUE.seconds(bulk, tokens / num_steps) * rng.uniform(0.9, 1.1), now)
    cost = model.cost
    assert cost.base_s == pytest.approx(TRUE.base_s, rel=0.08)
    assert cost.per_row_s == pytest.approx(TRUE.per_row_s, rel=0.2)
    assert cost.per_prefill_token_s == pytest.approx(TRUE.per_prefill_token_s, rel=0.2)
    assert model.reading_s(800, 10) == pytest.approx(800 / 512 * TRUE.seconds(10, 512), rel=0.1)


def test_rows_are_averaged_over_the_time_a_request_decoded():
    """Half its time with four bulk rows are two on average."""
    model = StepModel()
    model.note_rows(1, 0, 10.0)
    since = model.mark()
    model.note_rows(1, 4, 11.0)
    model.note_rows(1, 4, 12.0)
    rows = model.learn_gaps(since, Gaps(100, 0.02, ()), 12.0)
    assert (rows.urgent, rows.bulk) == (1.0, 2.0)


def test_no_time_no_rows():
    """A clock that stood still or went back adds nothing and teaches nothing."""
    model = StepModel()
    model.note_rows(3, 3, 10.0)
    since = model.mark()
    model.note_rows(3, 3, 9.0)
    assert model.learn_gaps(since, Gaps(10, 0.02, ()), 9.0) is None
    assert model.cost == PRIOR


def test_learns_some_times_a_second_only():
    """Learning costs more than most requests are worth."""
    model = StepModel()
    for number in range(100):
        at = 1.0 + number * LEARN_EVERY_S / 100
        model.learn_ttft(1000, 0, 0.5, at)
        model.note_rows(1, 0, at)
    assert "1 seen" in repr(model)


def test_short_prompts_and_short_answers_teach_nothing():
    """Their times are mostly the way there and back."""
    model = StepModel()
    model.learn_ttft(100, 0, 0.5, 1.0)
    assert model.cost == PRIOR
    assert Gaps.between(None, None, 0, ()) is None
    assert Gaps.between(1.0, 2.0, 3, ()) is None
    assert Gaps.between(1.0, 1.0, 30, ()) is None
    assert Gaps.between(1.0, 2.0, 11, [0.1]) == Gaps(10, 0.1, (0.1,))


def test_unstreamed_answers_teach_it_too():
    """A replica that has bulk alone must be known as well: its prompts are paced by it."""
    model, rng, now = StepModel(), random.Random(2), 0.0
    for _ in range(150):
        bulk, prompt, answer = rng.choice([1, 4, 16, 31]), rng.choice([100, 800, 2000]), rng.randint(20, 200)
        model.note_prompt(prompt)
        model.note_rows(0, bulk, now)
        since = model.mark()
        num_steps = answer - 1 + -(-prompt // 512)
        now += num_steps * TRUE.seconds(bulk, 0)
        model.note_rows(0, bulk, now)
        model.learn_whole(since, prompt, answer, now)
    assert model.cost.seconds(1, 0) == pytest.approx(TRUE.seconds(1, 0), rel=0.05)
    assert model.cost.seconds(31, 0) == pytest.approx(TRUE.seconds(31, 0), rel=0.05)
    model.learn_whole(model.mark(), 10, 100, now)
    model.learn_whole(since, 10, 1, now + 10)
    assert "150 seen" in repr(model)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 5000), st.floats(0, 10), st.floats(1e-6, 10)),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_never_negative_whatever_is_seen(events):
    """A negative row would let any number in."""
    model, now = StepModel(), 0.0
    since = model.mark()
    for urgent, bulk, tokens, pause, seconds in events:
        now += pause
        model.note_rows(urgent, bulk, now)
        model.note_prompt(tokens)
        model.learn_ttft(tokens, bulk, seconds, now)
        rows = model.learn_gaps(since, Gaps(5, seconds, ()), now)
        assert rows is None or min(rows) >= 0
        assert min(model.cost.base_s, model.cost.per_row_s, model.cost.per_prefill_token_s) >= 0
