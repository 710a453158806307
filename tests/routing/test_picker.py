"""The pick itself: total over all loads and hits, and the same every time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.decision import Why
from routing.picker import FASTER_FACTOR, pick
from routing.ring import work_bounds
from routing.scorers import Row, useful_tokens
from tests.routing.fleet import Fleet, key_of

PROMPT_TOKENS = 1000
CANDIDATES = st.lists(
    st.tuples(st.integers(0, 50_000), st.integers(0, PROMPT_TOKENS), st.floats(0, 1e5)), min_size=1, max_size=12
)


def rows_of(candidates) -> list[Row]:
    """One row for each (work, hit tokens, score)."""
    return [(f"r{n}", hit, hit, 1.0, 0, 0, 0, 1.0, 0.0, False, score) for n, (_, hit, score) in enumerate(candidates)]


@given(CANDIDATES, st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_any_loads_hits_and_scores_give_one_choice_by_a_stated_rule(candidates, number):
    """No combination leaves a request without a place, and each rule keeps its promise."""
    fleet = Fleet(len(candidates))
    replicas = fleet.pool.of_model("m")
    for replica, (work, _, _) in zip(replicas, candidates, strict=True):
        replica.work_tokens = work
    key, rows = key_of("system", f"hello {number}"), rows_of(candidates)
    chosen, why, passed = pick(key, PROMPT_TOKENS, replicas, rows)
    assert (chosen, why, passed) == pick(key, PROMPT_TOKENS, replicas, rows)
    useful = useful_tokens(PROMPT_TOKENS)
    hits = [hit for _, hit, _ in candidates]
    works = [work for work, _, _ in candidates]
    if why in {Why.HOME, Why.NEXT_HOME}:
        assert max(hits) < useful
        assert (chosen == passed) == (why is Why.HOME)
    if why is Why.WARM:
        assert hits[chosen] >= useful
    if why is Why.FASTER:
        assert candidates[chosen][2] * FASTER_FACTOR < candidates[passed][2]
    if why in {Why.SPILLED, Why.SPILLED_HOME}:
        assert hits[passed] >= useful
        assert works[passed] > works[chosen] or hits[chosen] > 0
    if why not in {Why.WARM, Why.SPILLED}:
        assert works[chosen] <= work_bounds(works)[chosen]
