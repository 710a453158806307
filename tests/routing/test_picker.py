"""The pick itself: total over all loads and hits, the same every time, and each reason true."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.fusion import LEAST_TOKENS
from routing.decision import Why
from routing.picker import TIE_MS, TIE_SHARE, pick, prices_of
from routing.ring import heaviest
from routing.scorers import Row, useful_tokens
from routing.usual import Usual
from tests.routing.fleet import Fleet, key_of

PROMPT_TOKENS = 1000
CANDIDATES = st.lists(
    st.tuples(
        st.integers(0, PROMPT_TOKENS), st.integers(0, 5000), st.integers(0, 64), st.sampled_from([0.05, 0.5, 3.0])
    ),
    min_size=1,
    max_size=12,
)


def rows_of(candidates) -> list[Row]:
    """One row for each (hit tokens, outstanding tokens, requests in flight, ms a token)."""
    rows = []
    for number, (hit, outstanding, flying, ms) in enumerate(candidates):
        uncached = PROMPT_TOKENS - hit
        score_ms = 30.0 + (outstanding + uncached + 4 * flying) * ms
        rows.append((f"r{number}", hit, hit, 1.0, None, uncached, outstanding, flying, ms, 30.0, 4.0, 0.0, score_ms, 0))
    return rows


def usual_of(reading_tokens=PROMPT_TOKENS, ms_per_token=0.5):
    """What a model has learned from one answer."""
    usual = Usual()
    usual.observe(reading_tokens, ms_per_token)
    return usual


def picked(candidates, number=0, usual=None):
    """What is picked of these candidates; `usual`: of their model, half a millisecond a token if not given."""
    fleet = Fleet(len(candidates))
    replicas = fleet.pool.of_model("m")
    for replica, (_, outstanding, flying, _) in zip(replicas, candidates, strict=True):
        replica.work_tokens = outstanding + 256 * flying
    key = key_of("system", f"hello {number}")
    return replicas, key, pick(key, PROMPT_TOKENS, replicas, rows_of(candidates), usual or usual_of())


@given(CANDIDATES, st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_any_loads_hits_and_speeds_give_one_cheap_choice_by_a_true_reason(candidates, number):
    """No combination leaves a request without a place, and each rule keeps its promise."""
    replicas, key, (chosen, why, passed) = picked(candidates, number)
    assert (chosen, why, passed) == picked(candidates, number)[2]
    rows, useful = rows_of(candidates), useful_tokens(PROMPT_TOKENS)
    hits = [row[2] for row in rows]
    prices, is_crowded = prices_of(replicas, rows, usual_of().others_ms(rows), counts_hits=max(hits) >= useful)
    assert prices[chosen] <= min(prices) * (1 + TIE_SHARE) + TIE_MS
    if why is Why.WARM:
        assert passed == chosen
        assert hits[chosen] >= max(useful, max(hits) - LEAST_TOKENS)
    elif why in {Why.CHEAPER, Why.REPLICATED}:
        assert hits[passed] == max(hits) >= useful
        assert passed != chosen
        assert is_crowded or why is Why.CHEAPER
    else:
        assert max(hits) < useful
        assert passed == heaviest(key, replicas)
        assert (chosen == passed) == (why is Why.HOME)


@given(CANDIDATES, st.integers(0, 11), st.integers(1, PROMPT_TOKENS))
@settings(max_examples=100, deadline=None)
def test_holding_more_never_makes_a_replica_dearer(candidates, index, more):
    """Nobody is left because it holds more of the prompt."""
    index %= len(candidates)
    hit, *rest = candidates[index]
    warmer = [*candidates]
    warmer[index] = (min(PROMPT_TOKENS, hit + more), *rest)
    replicas = Fleet(len(candidates)).pool.of_model("m")
    before, after = (prices_of(replicas, rows_of(some), 0.7)[0] for some in (candidates, warmer))
    assert after[index] <= before[index]
    assert after[:index] == before[:index]


def test_of_equally_warm_replicas_the_one_with_less_work_is_chosen():
    """A prefix that lies on several is spread over them."""
    _, _, (chosen, why, _) = picked([(900, 0, 3, 0.5), (900, 0, 1, 0.5), (900, 0, 2, 0.5)])
    assert (chosen, why) == (1, Why.WARM)


def test_a_hit_is_left_when_waiting_costs_more_than_reading_it_twice():
    """And not before: reading again delays those who come after."""
    usual = usual_of(reading_tokens=1_000_000)  # so that what waits here is next to nothing
    edge = 2 * 800
    assert picked([(800, int(edge * 0.9), 0, 0.5), (0, 0, 0, 0.5)], usual=usual)[2][:2] == (0, Why.WARM)
    assert picked([(800, int(edge * 1.2), 0, 0.5), (0, 0, 0, 0.5)], usual=usual)[2] == (1, Why.CHEAPER, 0)


def test_in_a_busy_pool_a_hit_is_kept_longer():
    """Every prompt that is read again there delays all who wait, so the same wait is now worth it."""
    usual = usual_of(reading_tokens=500)
    ahead = int(2.4 * 800)
    assert picked([(800, ahead, 0, 0.5), (0, 0, 0, 0.5)], usual=usual_of(10**6))[2][:2] == (1, Why.CHEAPER)
    busy = [(800, 8000 + ahead, 0, 0.5), (0, 8000, 0, 0.5)]
    assert picked(busy, usual=usual)[2][:2] == (0, Why.WARM)


def test_a_long_queue_at_the_fastest_replica_is_not_made_longer():
    """What a prompt costs others is the same wherever it is read: who holds nothing goes where it is answered first."""
    assert picked([(0, 400, 0, 0.4), (0, 0, 0, 0.5)])[2][0] == 1


def test_a_hot_prefix_is_replicated_before_its_replica_is_full():
    """With far more requests than the others, the next one pays for a second copy."""
    idle = [(0, 0, 0, 0.5)] * 7
    assert picked([(950, 0, 5, 0.5), *idle])[2][:2] == (0, Why.WARM)
    assert picked([(950, 0, 20, 0.5), *idle])[2][1:] == (Why.REPLICATED, 0)


def test_a_cold_prompt_goes_to_the_faster_engine_until_that_is_busy():
    """Of two kinds of engine the learned costs decide."""
    assert picked([(0, 0, 0, 0.5), (0, 0, 0, 0.05)])[2][0] == 1
    assert picked([(0, 0, 0, 0.5), (0, 30_000, 0, 0.05)])[2][0] == 0


def test_among_equal_replicas_a_cold_prompt_goes_home_by_hash():
    """So that gateways that share nothing agree."""
    replicas, key, (chosen, why, _) = picked([(0, 0, 0, 0.5)] * 5)
    assert (chosen, why) == (heaviest(key, replicas), Why.HOME)
