"""The step-cost model, and how it is learned."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.step_cost import StepCost, StepCostFitter

TRUE = StepCost(base_s=0.004, per_row_s=0.001, per_prefill_token_s=0.0002)
PRIOR = StepCost(base_s=0.01, per_row_s=0.002, per_prefill_token_s=0.001)


def feed(fitter, cost, num, *, seed=1, noise=0.05, prefill=True):
    """Steps of mixed size, off by `noise`."""
    chance = random.Random(seed)
    for _ in range(num):
        rows = chance.randint(0, 16)
        tokens = chance.choice([0, 0, chance.randint(2, 256)]) if prefill else 0
        if rows + tokens:
            fitter.observe(rows, tokens, cost.seconds(rows, tokens) * chance.uniform(1 - noise, 1 + noise))


def closeness(fitter, cost, sizes=((1, 0), (8, 0), (16, 0), (8, 64), (0, 256))):
    """The largest relative error of the modelled time over these steps."""
    return max(abs(fitter.cost.seconds(*size) / cost.seconds(*size) - 1) for size in sizes)


def test_a_step_is_base_plus_rows_plus_prefill_tokens():
    """The formula that scheduler, router and simulator share."""
    assert TRUE.seconds(3, 100) == pytest.approx(0.004 + 0.003 + 0.02)


def test_cold_is_the_prior():
    """Nothing seen, nothing claimed."""
    assert StepCostFitter(PRIOR).cost == PRIOR


def test_learns_the_cost_from_mixed_steps():
    """A hundred noisy steps are enough for a few per cent."""
    fitter = StepCostFitter(PRIOR)
    feed(fitter, TRUE, 150)
    assert closeness(fitter, TRUE) < 0.06
    assert fitter.num_observations > 100


def test_follows_a_lasting_change():
    """Another process takes half of the machine: the model must not call that an outlier for ever."""
    fitter = StepCostFitter(PRIOR)
    feed(fitter, TRUE, 300)
    slower = StepCost(TRUE.base_s * 3, TRUE.per_row_s * 3, TRUE.per_prefill_token_s * 3)
    feed(fitter, slower, 50, seed=2)
    assert closeness(fitter, slower) < 0.15


def test_one_hiccup_moves_little():
    """A page fault of a second is not what a step costs."""
    fitter = StepCostFitter(PRIOR)
    feed(fitter, TRUE, 300)
    fitter.observe(8, 0, 1.0)
    assert closeness(fitter, TRUE) < 0.08


def test_terms_without_evidence_keep_the_prior():
    """Decode alone says nothing of prefill."""
    fitter = StepCostFitter(PRIOR)
    feed(fitter, TRUE, 500, prefill=False)
    assert fitter.cost.per_prefill_token_s == pytest.approx(PRIOR.per_prefill_token_s, rel=0.2)
    assert closeness(fitter, TRUE, ((1, 0), (8, 0), (16, 0))) < 0.06


@pytest.mark.parametrize(
    ("rows", "tokens", "seconds"), [(0, 0, 1.0), (1, 0, 0.0), (1, 0, -1.0), (1, 0, float("nan")), (1, 0, float("inf"))]
)
def test_senseless_steps_are_ignored(rows, tokens, seconds):
    """A stepped clock must not teach anything."""
    fitter = StepCostFitter(PRIOR)
    fitter.observe(rows, tokens, seconds)
    assert (fitter.cost, fitter.num_observations) == (PRIOR, 0)


def test_forgetting_must_be_a_weight():
    """Zero would remember nothing, above one would explode."""
    for forgetting in (0.0, 1.1):
        with pytest.raises(ValueError, match="forgetting"):
            StepCostFitter(PRIOR, forgetting=forgetting)


@given(
    prior=st.builds(StepCost, *[st.floats(0, 1)] * 3),
    steps=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 4096), st.floats(1e-6, 100)), max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_never_negative_whatever_is_seen(prior, steps):
    """A negative cost would invite the scheduler to add rows for free."""
    fitter = StepCostFitter(prior)
    for rows, tokens, seconds in steps:
        fitter.observe(rows, tokens, seconds)
        cost = fitter.cost
        assert min(cost.base_s, cost.per_row_s, cost.per_prefill_token_s) >= 0
        assert cost.seconds(64, 4096) < 1e6


def test_a_term_that_would_be_negative_is_zero_and_the_others_fit_best_without_it():
    """Steps that get shorter with more rows say that rows cost nothing, not that they save time."""
    fitter = StepCostFitter(StepCost(), forgetting=1.0, tolerance=1e9)
    for _ in range(50):
        for rows, seconds in ((1, 0.012), (2, 0.011), (4, 0.010)):
            fitter.observe(rows, 0, seconds)
    assert fitter.cost.per_row_s == 0
    assert 0.010 < fitter.cost.base_s < 0.012


@given(
    true=st.tuples(*[st.sampled_from([0.0, 1e-4, 2e-3, 1e-2])] * 3),
    steps=st.lists(st.tuples(st.integers(0, 16), st.sampled_from([0, 0, 3, 64, 512])), min_size=5, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_steps_without_noise_are_explained(true, steps):
    """Whichever terms are zero in truth, and whichever the steps do not tell apart."""
    cost = StepCost(*true)
    fitter = StepCostFitter(cost)
    for rows, tokens in steps:
        fitter.observe(rows, tokens, cost.seconds(rows, tokens))
    for rows, tokens in steps:
        assert fitter.cost.seconds(rows, tokens) == pytest.approx(cost.seconds(rows, tokens), rel=1e-3, abs=1e-9)
