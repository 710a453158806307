"""Bytes per token: learned, clamped, robust."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity import ratio
from cache_affinity.ratio import DEFAULT_BYTES_PER_TOKEN, LEAST, MOST, TokenRatio, TokenRatios


def test_converts_both_ways_with_the_default():
    """Before any report, chat text is about four bytes a token."""
    assert TokenRatio().tokens(4000) == 1000
    assert TokenRatio().bytes(1000) == 4000


def test_follows_what_the_engine_reports():
    """A model with another tokenizer is learned within a few prompts."""
    learned = TokenRatio()
    for _ in range(50):
        learned.observe(3000, 1000)
    assert abs(learned.bytes_per_token - 3.0) < 0.01


def test_short_prompts_weigh_less_than_long_ones():
    """A one-word prompt is mostly template."""
    short, long = TokenRatio(), TokenRatio()
    short.observe(20, 20)
    long.observe(2000, 2000)
    assert DEFAULT_BYTES_PER_TOKEN > short.bytes_per_token > long.bytes_per_token


def test_what_cannot_be_text_teaches_nothing():
    """Pictures as base64, empty reports and templates around nothing."""
    learned = TokenRatio()
    for num_bytes, num_tokens in [(1_000_000, 300), (1, 400), (0, 10), (10, 0), (-5, 5)]:
        learned.observe(num_bytes, num_tokens)
    assert learned.bytes_per_token == DEFAULT_BYTES_PER_TOKEN


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9)), max_size=50), st.floats(0.001, 1e6))
@settings(max_examples=60, deadline=None)
def test_stays_within_its_bounds(observations, start):
    """No report can make predictions absurd."""
    learned = TokenRatio(start)
    for pair in observations:
        learned.observe(*pair)
    assert LEAST <= learned.bytes_per_token <= MOST


def test_each_model_has_its_own_and_the_number_is_bounded(monkeypatch):
    """Models are configured, but nothing grows without a bound."""
    monkeypatch.setattr(ratio, "MAX_MODELS", 2)
    ratios = TokenRatios()
    assert ratios.of("a") is ratios.of("a") is not ratios.of("b")
    assert ratios.of("c") is ratios.of("d") is not ratios.of("a")
    assert repr(ratios) == "<TokenRatios {'a': 4.0, 'b': 4.0}>"
