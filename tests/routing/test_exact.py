"""Routing by what engines tell: exact where it is known, predicted otherwise, and both in the receipt."""

import pytest

from cache_affinity.exact import ExactIndex
from cache_affinity.fusion import FRESH_S
from cache_affinity.kv_events import BlocksStored, TokenChain, pack
from routing.decision import Why
from tests.routing.fleet import Fleet

TEXT = "a shared beginning of many words " * 200
TOKENS = list(range(1000))


def holds(index, name, num_blocks, size=16):
    """An engine tells that it holds the first blocks of the prompt."""
    event = BlocksStored(tuple(range(1, num_blocks + 1)), None, pack(TOKENS[: num_blocks * size]), size)
    index.apply(name, [event])


@pytest.fixture
def fleet():
    made = Fleet(3)
    made.router.exact = ExactIndex()
    return made


def route(fleet, tokens=TOKENS):
    return fleet.route(TEXT, tokens=TokenChain(pack(tokens)) if tokens is not None else None)


def hits(decision):
    return {one.replica: one.hit_tokens for one in decision.receipt("x").candidates}


def test_the_replica_that_tells_that_it_holds_the_prompt_is_chosen(fleet):
    """Though nothing was ever routed there by this gateway."""
    for name in ("r1", "r2", "r3"):
        fleet.router.exact.mark(name, is_known=True)
    holds(fleet.router.exact, "r2", 50)
    decision = route(fleet)
    assert (decision.chosen, decision.why) == ("r2", Why.WARM)
    assert (decision.exact_tokens, decision.hit_tokens, decision.prompt_tokens) == (800, 800, 1000)
    assert hits(decision)["r2"].exact == 800
    assert hits(decision)["r1"].exact == 0


def test_who_tells_nothing_has_no_exact_hit_and_is_predicted(fleet):
    """A mixed fleet: a llama-server beside a worker."""
    fleet.router.exact.mark("r1", is_known=True)
    first = fleet.route(TEXT, tokens=TokenChain(pack(TOKENS)), excluded=["r1", "r3"])
    fleet.pool.lease(first, fleet.now)
    decision = route(fleet)
    assert decision.chosen == "r2"
    assert hits(decision)["r2"].exact is None
    assert hits(decision)["r2"].shadow == decision.hit_tokens == 1000


def test_without_tokens_the_shadow_speaks(fleet):
    """A model whose vocabulary is not known here."""
    fleet.router.exact.mark("r1", is_known=True)
    holds(fleet.router.exact, "r1", 50)
    decision = route(fleet, tokens=None)
    assert decision.exact_tokens is None
    assert not fleet.router.exact.is_known_of_any or fleet.router.knows_exactly


def test_a_prompt_just_sent_counts_until_its_engine_must_have_told(fleet):
    """A burst meets; a prediction that no event confirmed is dropped."""
    for name in ("r1", "r2", "r3"):
        fleet.router.exact.mark(name, is_known=True)
    lease = fleet.pool.lease(route(fleet), fleet.now)
    home = lease.replica.name
    fleet.now += FRESH_S - 1
    sibling = route(fleet)
    assert (sibling.chosen, sibling.hit_tokens, sibling.exact_tokens) == (home, 1000, 0)
    fleet.now += 2
    later = route(fleet)
    assert (later.hit_tokens, hits(later)[home].shadow) == (0, 1000)


def test_what_is_partly_known_does_not_hide_a_prediction(fleet):
    """A stream joined in the middle: the engine may hold what it told before."""
    fleet.router.exact.mark("r1", is_known=True, is_partial=True)
    first = fleet.route(TEXT, tokens=TokenChain(pack(TOKENS)), excluded=["r2", "r3"])
    fleet.pool.lease(first, fleet.now)
    fleet.now += FRESH_S + 60
    decision = route(fleet)
    assert (decision.chosen, decision.hit_tokens, decision.exact_tokens) == ("r1", 1000, 0)


def test_reports_teach_how_far_an_engines_word_holds(fleet):
    """An engine that tells more than it hits is believed less, and not held against its prediction's confidence."""
    index = fleet.router.exact
    index.mark("r1", is_known=True)
    holds(index, "r1", 50)
    for _ in range(30):
        decision = fleet.route(TEXT, tokens=TokenChain(pack(TOKENS)), excluded=["r2", "r3"])
        with fleet.pool.lease(decision, fleet.now) as lease:
            fleet.router.settled(decision, lease, now=fleet.now, prompt_tokens=1000, cached_tokens=400)
        fleet.now += FRESH_S + 1
    decision = fleet.route(TEXT, tokens=TokenChain(pack(TOKENS)), excluded=["r2", "r3"])
    assert 400 <= decision.hit_tokens <= 440
    assert decision.exact_tokens == 800
    fleet.pool.get("r1").restart(fleet.now)
    assert fleet.pool.get("r1").exact_confidence.value == 1.0


def test_a_hit_is_never_more_than_the_prompt(fleet):
    """Even of an engine with blocks of one token."""
    fleet.router.exact.mark("r1", is_known=True)
    holds(fleet.router.exact, "r1", 100, size=1)
    decision = route(fleet, tokens=TOKENS[:50])
    assert decision.hit_tokens <= decision.prompt_tokens == 50
