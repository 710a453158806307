"""Terms of the step-cost model from measurements: recovered, never negative, hiccups left out, errors told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.step_cost import StepCost
from gateway.replay.step_fit import LEAST_OBSERVATIONS, TERMS, Observation, fit

TRUE = StepCost(0.012, 0.0015, 0.0004)
HOP_S = 0.003


def measured(cost=TRUE, hop_s=HOP_S, noise=0.0, seed=1):
    """Prompts alone and answers side by side, as the probe measures them."""
    rng = np.random.default_rng(seed)
    found = []
    for length in (64, 256, 1024, 2048, 4096) * 4:
        steps = -(-length // 2048)
        seconds = cost.base_s * steps + cost.per_prefill_token_s * length + hop_s
        found.append(Observation(steps, 0.0, length, seconds * (1 + noise * rng.standard_normal()), 1.0))
    for rows in (1, 2, 4, 8) * 8:
        seconds = 40 * cost.seconds(rows, 0)
        found.append(Observation(40, 40 * rows, 0, seconds * (1 + noise * rng.standard_normal())))
    return found


def test_exact_measurements_give_the_exact_model():
    """And no error; what it says of a measurement is what was measured."""
    found = fit(measured())
    told = (found.cost.base_s, found.cost.per_row_s, found.cost.per_prefill_token_s, found.hop_s)
    assert told == pytest.approx((0.012, 0.0015, 0.0004, 0.003))
    assert (found.num, found.num_left_out, found.unseen) == (52, 0, ())
    assert found.p90_error < 1e-9
    assert found.seconds(measured()[0]) == pytest.approx(measured()[0].seconds)


@given(st.floats(0.001, 0.1), st.floats(0.0001, 0.01), st.floats(0.00001, 0.005), st.integers(1, 1000))
@settings(max_examples=30, deadline=None)
def test_noise_moves_the_model_little_and_is_told_as_its_error(base, row, token, seed):
    """Two percent of noise: steps within a tenth."""
    cost = StepCost(base, row, token)
    found = fit(measured(cost, noise=0.02, seed=seed))
    for rows, tokens in ((1, 0), (8, 0), (0, 2048)):
        assert found.cost.seconds(rows, tokens) == pytest.approx(cost.seconds(rows, tokens), rel=0.1)
    assert 0.003 < found.median_error < 0.03


def test_hiccups_are_left_out():
    """One in ten measurements took three times as long."""
    observations = [
        Observation(one.steps, one.row_steps, one.prompt_tokens, one.seconds * (3 if n % 10 == 0 else 1), one.hops)
        for n, one in enumerate(measured(noise=0.01))
    ]
    found = fit(observations)
    assert found.cost.seconds(4, 0) == pytest.approx(TRUE.seconds(4, 0), rel=0.03)
    assert 4 <= found.num_left_out <= 8


@given(st.lists(st.builds(Observation, *[st.floats(0, 1e4)] * 3, st.floats(1e-6, 1e3), st.just(0.0)), min_size=4))
@settings(max_examples=50, deadline=None)
def test_no_term_is_ever_negative_and_nothing_breaks(observations):
    """Whatever was measured: a simulator with a negative cost would run backwards."""
    found = fit(observations)
    assert min(found.cost.base_s, found.cost.per_row_s, found.cost.per_prefill_token_s, found.hop_s) >= 0
    assert found.num >= LEAST_OBSERVATIONS


def test_what_was_not_measured_is_said():
    """A ledger of one answer at a time shows no hop, and prompts that all hit show no reading."""
    found = fit([Observation(10, 10.0 * rows, 0.0, 10 * TRUE.seconds(rows, 0)) for rows in (1, 2, 4, 8)])
    assert found.unseen == ("per_prefill_token_s", "hop_s")
    assert (found.cost.per_prefill_token_s, found.hop_s) == (0.0, 0.0)
    assert found.cost.base_s == pytest.approx(TRUE.base_s)
    assert set(found.unseen) <= set(TERMS)


def test_too_few_measurements_are_refused():
    """Also if they are many and of no use."""
    with pytest.raises(ValueError, match="3 measurements are too few"):
        fit([*measured()[:3], *[Observation(1, 1, 1, 0.0)] * 9, Observation(1, 1, 1, float("inf"))])
