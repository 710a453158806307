"""What reading costs others: nothing is assumed before it is seen, and it grows with what waits."""

import pytest

from routing.replica import ROW_TOKENS
from routing.scorers import Row
from routing.usual import WAITING, Usual


def rows_of(*outstanding, ms=0.3) -> list[Row]:
    """A row for each number of tokens that wait."""
    return [("r", 0, 0, 1.0, None, 100, tokens, 1, ms, 30.0, 4.0, 0.0, 60.0, 0) for tokens in outstanding]


def test_before_anything_is_learned_a_token_costs_others_its_own_time():
    """A model that has answered nothing has replicas of one assumed speed, and nobody knows its prompts."""
    assert Usual().others_ms(rows_of(5000, 0)) == 0.3


def test_in_an_idle_pool_a_token_costs_others_its_usual_time():
    """Of the pool, not of the replica that would read it."""
    usual = Usual()
    usual.observe(1000, 0.5)
    assert usual.others_ms(rows_of(0, 0, 0)) == 0.5


def test_each_request_that_waits_at_a_replica_on_average_is_delayed_too():
    """As many as what is given and not read is usual prompts."""
    usual = Usual()
    usual.observe(1000, 0.5)
    assert usual.others_ms(rows_of(8000, 0)) == pytest.approx(0.5 * (1 + WAITING * 4))


def test_what_is_usual_follows_what_is_seen_and_an_outlier_moves_it_little():
    """Prompts change within some hundred requests; one long one is no change."""
    usual = Usual()
    for _ in range(50):
        usual.observe(1000, 0.5)
    usual.observe(20_000, 0.5)
    assert usual.reading_tokens < 1500
    for _ in range(300):
        usual.observe(4000, 0.1)
    assert usual.reading_tokens == pytest.approx(4000, rel=0.02)
    assert usual.ms_per_token == pytest.approx(0.1, rel=0.02)


def test_prompts_that_were_wholly_cached_do_not_make_waiting_dear_without_bound():
    """One without a token to read still weighs on its replica like any request."""
    usual = Usual()
    usual.observe(0, 0.5)
    assert usual.others_ms(rows_of(2 * ROW_TOKENS)) == pytest.approx(0.5 * (1 + WAITING * 2))
    assert "256 tokens" in repr(usual)
