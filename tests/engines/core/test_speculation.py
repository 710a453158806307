"""Guesses made of a sequence's own tokens, and the account of how often they hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.speculation import _MAX_INDEXED, PromptLookup, Speculation
from tests.engines.core.toy_grammar import ToyGrammar


def find(tokens, most=8):
    lookup = PromptLookup()
    while not lookup.extend(tokens):
        pass
    return lookup.find(tokens, most)


def find_slowly(tokens, most):
    """The same without an index: the longest match of 2 to 4 among the newest 8 places with the pair, newest first."""
    places = [end for end in range(len(tokens) - 1, 1, -1) if tokens[end - 2 : end] == tokens[-2:]][:8]
    if len(tokens) < 3 or not places:
        return ()

    def length(end):
        return max(n for n in (2, 3, 4) if n <= end and tokens[end - n : end] == tokens[-n:])

    best = max(places, key=lambda end: (length(end), end))
    return tuple(tokens[best + index % (len(tokens) - best)] for index in range(most))


@given(tokens=st.lists(st.integers(0, 3), max_size=60), most=st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_the_index_finds_what_a_search_finds(tokens, most):
    """An index that was quicker and wrong would only show as drafts that fail."""
    assert find(tokens, most) == find_slowly(tokens, most)


@given(tokens=st.lists(st.integers(0, 2), min_size=3, max_size=60))
@settings(max_examples=100, deadline=None)
def test_an_index_grown_token_by_token_finds_the_same(tokens):
    """It lives as long as its sequence and sees each token once."""
    grown = PromptLookup()
    for end in range(1, len(tokens) + 1):
        grown.extend(tokens[:end])
        assert grown.find(tokens[:end], 5) == find(tokens[:end], 5)


def test_what_followed_is_guessed_and_repetition_repeats():
    """The newest of equal matches counts; at the end of the text the guess goes round."""
    assert find([1, 2, 3, 4, 9, 1, 2]) == (3, 4, 9, 1, 2, 3, 4, 9)
    assert find([1, 2, 3, 1, 2, 4, 1, 2], 1) == (4,)
    assert find([5, 1, 2, 3, 1, 2, 4, 5, 1, 2], 1) == (3,)  # three tokens match there, two at the newer place
    assert find([7, 7, 7]) == (7,) * 8
    assert find([1, 2]) == find([1, 2, 3]) == ()


def test_an_index_is_bounded_and_grows_in_pieces():
    """Neither a long prompt's first step nor a long sequence's memory may be unbounded."""
    lookup = PromptLookup()
    tokens = list(range(_MAX_INDEXED + 5000))
    calls = 1
    while not lookup.extend(tokens):
        calls += 1
    assert calls == _MAX_INDEXED // 2048
    assert repr(lookup) == f"<PromptLookup {_MAX_INDEXED} tokens>"


def test_drafts_that_fail_are_given_up_for_a_while_and_tried_again():
    """A text that does not repeat itself shall not pay for guesses for ever, and one that begins to shall profit."""
    tokens = [1, 2] * 10
    speculation = Speculation()
    rounds = 0
    while speculation.propose(tokens, None, 4):
        speculation.learn(4, 0, len(tokens))
        rounds += 1
        assert rounds < 30
    assert rounds >= 5
    tokens += [1, 2] * 16
    assert speculation.propose(tokens, None, 4) == (1, 2, 1, 2)
    assert speculation.chance > 0.2


def test_drafts_that_hold_are_believed_in():
    """The chance is what the scheduler weighs against a row's time."""
    speculation = Speculation()
    before = speculation.chance
    for _ in range(10):
        speculation.propose([1, 2] * 4, None, 4)
        speculation.learn(4, 4, 8)
    assert before < 0.95 < speculation.chance <= 1


def test_a_grammar_forces_drafts_and_bars_others():
    """Where it leaves one way its tokens are guessed; what it forbids never is."""
    forcing = ToyGrammar({0: {5: 1}, 1: {6: 2}, 2: {7: 3, 8: 3}, 3: {1: 4}})
    assert Speculation().propose([1, 2, 3, 1, 2], forcing.start(), 8) == (5, 6)
    choosing = ToyGrammar({0: {3: 1, 4: 1}, 1: {1: 2, 9: 2}})
    assert Speculation().propose([1, 2, 3, 1, 2], choosing.start(), 8) == (3, 1)
    barring = ToyGrammar({0: {8: 1, 9: 1}})
    assert Speculation().propose([1, 2, 3, 1, 2], barring.start(), 8) == ()


@pytest.mark.parametrize("most", [0, -1])
def test_no_room_no_drafts(most):
    """The last token allowed needs none."""
    assert Speculation().propose([1, 2] * 9, None, most) == ()
