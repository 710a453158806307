"""What work costs: whole numbers, rounded up once, never lost."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.prices import Price, Work, cached_weight, charged_tokens, nanodollars, price_of

TOKENS = st.integers(0, 10_000_000)


def test_a_price_is_that_of_a_million_tokens():
    """0.15 USD a million input, 0.075 cached, 0.6 output."""
    price = price_of(0.15, 0.075, 0.6)
    assert price == Price(150_000_000, 75_000_000, 600_000_000)
    assert price.of(Work(1_000_000, 0, 0)) == 150_000_000
    assert price.of(Work(1_000_000, 1_000_000, 0)) == 75_000_000
    assert price.of(Work(1000, 400, 100)) == 600 * 150 + 400 * 75 + 100 * 600


def test_work_with_a_price_is_never_free():
    """A price below a nanodollar a token is rounded up, once for the whole."""
    price = price_of(0.0001, None, 0.0001)
    assert price.of(Work(1, 0, 0)) == 1
    assert price.of(Work(11, 0, 0)) == 2
    assert price.of(Work(0, 0, 0)) == 0


@pytest.mark.parametrize(("given_in", "given_out"), [(None, None), (1.0, None), (None, 1.0)])
def test_half_a_price_is_none(given_in, given_out):
    """What cannot be counted must not be taken for free."""
    assert price_of(given_in, 0.5, given_out) is None


def test_a_cached_token_without_a_price_of_its_own_costs_as_any():
    """Nobody gets a discount that was not set."""
    assert price_of(2.0, None, 4.0).cached == nanodollars(2.0)


@pytest.mark.parametrize(("usd", "nano"), [(0.1, 10**8), (1e-9, 1), (1e9, 10**18), (50, 50 * 10**9), (0.07, 7 * 10**7)])
def test_dollars_are_what_was_written(usd, nano):
    """Binary fractions must not cost a nanodollar."""
    assert nanodollars(usd) == nano


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 100))
def test_charged_tokens_are_exact(uncached, cached, output, percent):
    """As fractions say, rounded up."""
    work = Work(uncached + cached, cached, output)
    exact = uncached + output + ceil(Fraction(cached * (100 - percent), 100))
    assert charged_tokens(work, cached_weight(percent / 100)) == exact


@given(TOKENS, TOKENS, TOKENS, st.tuples(*[st.integers(0, 10**12)] * 3))
def test_money_is_exact(uncached, cached, output, prices):
    """As fractions say, rounded up once."""
    exact = Fraction(uncached * prices[0] + cached * prices[1] + output * prices[2], 1_000_000)
    assert Price(*prices).of(Work(uncached + cached, cached, output)) == ceil(exact)


@given(TOKENS, TOKENS)
def test_what_is_expected_costs_what_it_would_uncached(prompt, output):
    """And its prompt alone what it costs without an answer."""
    price = Price(150_001, 75, 600_007)
    assert price.expected(prompt, output) == (price.of(Work(prompt, 0, output)), price.of(Work(prompt, 0, 0)))
