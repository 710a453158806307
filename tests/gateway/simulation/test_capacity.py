"""What "load" is a share of."""

import pytest

from gateway.simulation.capacity import OracleCache, demand, rate_at
from gateway.simulation.prompts import Passage
from tests.gateway.simulation.kit import ask, engine


def test_the_oracle_reads_every_passage_once_for_each_salt():
    """And at least one token always, as engines do."""
    oracle = OracleCache()
    prompt = (Passage(1, 100), Passage(2, 50))
    assert oracle.uncached_tokens(prompt, "a") == 150
    assert oracle.uncached_tokens((*prompt, Passage(3, 7)), "a") == 7
    assert oracle.uncached_tokens(prompt, "a") == 1
    assert oracle.uncached_tokens((Passage(2, 50),), "a") == 50, "the same text behind something else is not cached"
    assert oracle.uncached_tokens(prompt, "b") == 150


def test_demand_counts_answers_as_known():
    """The next turn of a conversation does not read its own answers again."""
    first = ask("a", prompt=((1, 100),), answer=20)
    second = ask("b", prompt=((1, 100), (first.answer.content, 20), (5, 10)), answer=20)
    asked = demand([first, second])
    assert (asked.num_requests, asked.prompt_tokens, asked.uncached_tokens, asked.output_tokens) == (2, 230, 110, 40)


def test_modelled_time_shares_the_base_among_a_full_batch():
    """38 rows in steps of 4, and 110 prompt tokens in the same steps."""
    asked = demand([ask("a", prompt=((1, 110),), answer=40)])
    assert asked.replica_s(engine()) == pytest.approx(39 / 4 * 0.010 + 39 * 0.001 + 110 * 0.0001)
    long = demand([ask("a", prompt=((1, 2000),), answer=1)])
    assert long.replica_s(engine()) == pytest.approx(2000 / 256 * 0.010 + 2000 * 0.0001)


def test_the_rate_of_a_load_is_its_share_of_the_fleet():
    """Twice the replicas, twice the rate."""
    sample = [ask("a", prompt=((1, 110),), answer=40)]
    seconds = demand(sample).replica_s(engine())
    assert rate_at(0.4, sample, engine(), 8) == pytest.approx(0.4 * 8 / seconds)
