"""Predicted time to first token: sane when cold, follows the machine, shrugs off outliers."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.ttft import DEFAULT_BASE_S, DEFAULT_RATE, LEAST_RATE, MAX_BASE_S, MOST_RATE, TtftModel


def trained(rate: float, base_s: float, num: int = 60, outlier_s: float = 0.0, seed: int = 1) -> TtftModel:
    """A model that saw `num` requests of a machine; each tenth took `outlier_s` longer."""
    rng, model = random.Random(seed), TtftModel()
    for number in range(num):
        tokens = rng.choice([10, 50, 500, 2000, 8000])
        pause = outlier_s if number % 10 == 9 else 0.0
        model.observe(tokens, (base_s + tokens / rate) * rng.uniform(0.9, 1.1) + pause)
    return model


def test_a_cold_model_is_sane():
    """Before anything was seen, longer prompts take longer."""
    model = TtftModel()
    assert model.predict_s(0) == DEFAULT_BASE_S
    assert abs(model.predict_s(2000) - (DEFAULT_BASE_S + 2000 / DEFAULT_RATE)) < 1e-9


def test_learns_slow_and_fast_machines_within_tens_of_requests():
    """From a laptop to a large GPU, one model."""
    for rate, base_s in [(150.0, 0.08), (2000.0, 0.03), (30_000.0, 0.015)]:
        model = trained(rate, base_s)
        for tokens in (20, 1000, 6000):
            truth = base_s + tokens / rate
            assert abs(model.predict_s(tokens) - truth) < 0.25 * truth, (rate, tokens, model)


def test_outliers_move_it_little():
    """A tenth of the requests paused for a minute: still the right order for the others."""
    calm, shaken = trained(1000.0, 0.05), trained(1000.0, 0.05, outlier_s=60.0)
    assert shaken.predict_s(2000) < 1.6 * calm.predict_s(2000)


def test_follows_a_machine_that_changed():
    """Throttled to a third: learned again."""
    model = trained(3000.0, 0.03)
    for _ in range(40):
        model.observe(2000, 0.03 + 2000 / 1000.0)
    assert 800 < model.prefill_rate < 1300


def test_impossible_observations_teach_nothing():
    """A clock that stood still or a negative count is no observation."""
    model = TtftModel()
    model.observe(100, 0.0)
    model.observe(-1, 1.0)
    assert repr(model) == "<TtftModel 2000 tokens/s, base 30.0 ms>"


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(1e-6, 1e6)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_stays_within_its_bounds(observations):
    """Whatever is reported, predictions stay positive and finite."""
    model = TtftModel()
    for observation in observations:
        model.observe(*observation)
    assert LEAST_RATE * 0.999 <= model.prefill_rate <= MOST_RATE * 1.001
    assert 0.0 < model.base_s <= MAX_BASE_S


def test_what_more_observations_made_elsewhere_is_taken_over():
    """Of as many the larger value; nothing told is no reason to forget that nothing is learned."""
    model = TtftModel()
    model.adopt_rate(0.1, 0)
    model.adopt_base(900.0, 0)
    assert (model.ms_per_token, model.base_ms, model.unlearned) == (0.5, 30.0, 3)
    model.adopt_rate(0.1, 5)
    model.adopt_base(9.0, 3)
    assert (model.ms_per_token, model.base_ms, model.unlearned, model.weights) == (0.1, 9.0, 0, (5, 3))
    model.adopt_rate(0.2, 4)
    assert model.ms_per_token == 0.1
    model.adopt_rate(0.2, 5)
    assert model.ms_per_token == 0.2
    model.adopt_rate(1e9, 9)
    model.adopt_base(1e9, 9)
    assert (model.ms_per_token, model.base_ms) == (1000.0 / LEAST_RATE, 1000.0 * MAX_BASE_S)
