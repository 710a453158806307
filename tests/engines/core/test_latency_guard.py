"""How long a step may take."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.latency_guard import LatencyGuard, LatencySettings, StepCounts
from engines.step_cost import StepCost

COST = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)


def guard(cost=COST, **fields):
    return LatencyGuard(LatencySettings(**fields), cost)


def test_the_objective_is_a_little_more_than_the_same_step_without_bulk():
    """Without a number from the operator, bulk may stretch a gap by a twentieth, and never a prompt's step."""
    assert guard().objective_s(StepCounts(rows=4)) == pytest.approx(0.014 * 1.05)
    assert guard(bulk_growth=1.15).objective_s(StepCounts(rows=4)) == pytest.approx(0.014 * 1.15)
    assert guard().objective_s(StepCounts(rows=4, prefill_tokens=100)) == pytest.approx(0.024)


def test_the_operators_objective_is_taken_as_it_is():
    """`itl_p95_s` is a gap that the operator allows, whatever it would be without bulk."""
    assert guard(itl_p95_s=0.03).objective_s(StepCounts(rows=1)) == 0.03
    assert guard(itl_p95_s=0.005).objective_s(StepCounts(rows=1)) == 0.005
    assert guard(itl_p95_s=0.03).objective_s(StepCounts(rows=1, prefill_tokens=10)) == pytest.approx(0.012)


def test_without_urgent_rows_there_is_no_objective():
    """Nobody waits for the step's tokens."""
    assert guard().objective_s(StepCounts()) is None
    assert guard(itl_p95_s=0.03).objective_s(StepCounts()) is None


@pytest.mark.parametrize(
    ("fields", "base_s", "expected"),
    [
        ({}, 0.001, 0.03),
        ({}, 0.02, 0.06),
        ({"itl_p95_s": 0.1}, 0.02, 0.1),
        ({"itl_p95_s": 0.1, "max_step_s": 0.04}, 0.02, 0.04),
    ],
)
def test_a_bulk_step_is_short_for_the_device(fields, base_s, expected):
    """What an operator says holds; else a slow device is not cut into steps that are mostly fixed cost."""
    assert guard(StepCost(base_s, 0.001, 0.001), **fields).bulk_step_s() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("decoding", "fields", "expected"),
    [
        (0, {}, 512),  # alone: all of it
        (4, {}, 360),  # up to 50 ms
        (60, {}, 512),  # 70 ms alone may double
        (4, {"itl_p95_s": 0.02}, 60),
        (4, {"itl_p95_s": 0.014}, 32),  # no room at all: the smallest chunk
        (4, {"itl_p95_s": 0.014, "min_chunk_tokens": 8}, 8),
    ],
)
def test_urgent_prompts_leave_urgent_decodes_their_gap(decoding, fields, expected):
    """They grow a step to a bound, and get the smallest chunk in any case."""
    assert guard(**fields).urgent_prompt_tokens(StepCounts(rows=decoding), 512) == expected
    assert guard(**fields).urgent_prompt_tokens(StepCounts(rows=decoding), 5) == 5


COSTS = st.builds(StepCost, *(st.sampled_from([0.0, 0.0003, 0.001, 0.01]) for _ in range(3)))


@given(
    cost=COSTS,
    limit_s=st.floats(0, 0.2),
    rows=st.integers(0, 20),
    prefill=st.integers(0, 50),
    most=st.integers(0, 60),
)
@settings(max_examples=200, deadline=None)
def test_tokens_within_is_the_largest_number_that_fits(cost, limit_s, rows, prefill, most):
    """A row is not the same as a prefill token, so one token may not fit where two do."""
    counts = StepCounts(rows, prefill)
    found = guard(cost).tokens_within(limit_s, counts, most)
    fitting = [n for n in range(1, most + 1) if guard(cost).seconds(counts.plus(n)) <= limit_s]
    assert found == max(fitting, default=0)


@pytest.mark.parametrize(
    ("prefill_s", "resting", "fields", "num_overtaken", "expected"),
    [
        (0.002, 4, {}, 0, 118),  # (250 - 14) ms
        (0.001, 4, {}, 0, 128),  # enough for any device, in less than 250 ms
        (0.0001, 4, {}, 0, 360),  # (50 - 14) ms: what would go in beside them
        (0.02, 4, {}, 0, 32),  # the smallest chunk, longer though it is
        (0.001, 4, {}, 900, 236),  # (250 - 14) ms: a small crowd
        (0.002, 4, {}, 1600, 193),  # an eighth of 3.2 s, less 14 ms
        (0.002, 4, {}, 9000, 243),  # (500 - 14) ms: as long as it may be for any crowd
        (0.002, 4, {"itl_p95_s": 0.1}, 9000, 43),  # the operator's wish is the gap: (100 - 14) ms
    ],
)
def test_prompts_that_have_a_step_of_their_own_keep_others_waiting_for_a_bounded_time(
    prefill_s, resting, fields, num_overtaken, expected
):
    """The gap is that step and the one of those that rest."""
    apart = guard(StepCost(0.010, 0.001, prefill_s), **fields)
    assert apart.turn_tokens(StepCounts(resting), 512, num_overtaken) == expected
    assert apart.turn_tokens(StepCounts(resting), 5, num_overtaken) == 5


def test_an_unknown_cost_bounds_nothing():
    """A scheduler without a model is one without these rules."""
    unknown = guard(StepCost())
    assert unknown.tokens_within(unknown.objective_s(StepCounts(rows=1)), StepCounts(rows=1), 512) == 512
    assert unknown.urgent_prompt_tokens(StepCounts(rows=1), 512) == 512


@pytest.mark.parametrize(
    "fields",
    [
        {"itl_p95_s": 0},
        {"max_step_s": -1},
        {"itl_p95_s": float("inf")},
        {"bulk_growth": 0.9},
        {"min_chunk_tokens": 0},
        {"bulk_chunk_tokens": 0},
        {"bulk_patience_s": -1},
    ],
)
def test_senseless_settings_are_refused(fields):
    """At start, with a sentence."""
    with pytest.raises(ValueError, match="must be"):
        LatencySettings(**fields)


@pytest.mark.parametrize(
    ("fields", "decoding", "has_prompts", "expected"),
    [
        ({}, 4, False, 0.0),  # decodes alone have no time to give
        ({"itl_p95_s": 0.054}, 4, False, 0.01),  # a quarter of what the objective leaves beside 14 ms
        ({}, 4, True, 0.009),  # a quarter of what prompts may add: 50 ms less 14 ms
        ({"itl_p95_s": 0.054}, 4, True, 0.01),
        ({"itl_p95_s": 0.012}, 4, True, 0.0),  # over it already
        ({}, 0, True, 0.01),
        ({"max_step_s": 0.04}, 0, False, 0.01),  # only bulk: a quarter of its step
    ],
)
def test_saves_get_a_share_of_what_a_step_may_take(fields, decoding, has_prompts, expected):
    """Copies to host memory are worth something, and nobody's next token."""
    cost = StepCost(base_s=0.010, per_row_s=0.001, per_prefill_token_s=0.0001)
    assert guard(cost, **fields).save_s(decoding, has_prompts=has_prompts) == pytest.approx(expected)


def test_copies_leave_less_to_all_else():
    """They are part of the step, so prompts and bulk get what is left of it."""
    with_copies = dataclasses.replace(guard(), copy_s=0.01)
    decoding = StepCounts(rows=4)
    assert with_copies.seconds(decoding) == pytest.approx(guard().seconds(decoding) + 0.01)
    assert with_copies.urgent_prompt_tokens(decoding, 512) < guard().urgent_prompt_tokens(decoding, 512)
    assert with_copies.tokens_within(0.05, decoding, 512) < guard().tokens_within(0.05, decoding, 512)
