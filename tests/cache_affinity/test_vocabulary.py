"""A vocabulary is taken only if tiktoken's engine makes of it what its listed merges make."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cache_affinity.tokens import Tokenizer
from cache_affinity.vocabulary import UnknownVocabulary, Vocabulary
from cache_affinity.word_patterns import WHOLE_WORDS

LETTERS = "abc"


def vocabulary(merges, *, pre="gpt-2"):
    """Three letters and what these merges make of them."""
    made = dict.fromkeys(left + right for left, right in merges)
    return Vocabulary(pre=pre, texts=(*LETTERS, *made), merges=tuple(merges), special=frozenset())


def by_merges(vocabulary, word):
    """As Hugging Face's and llama.cpp's engines do it: listed pairs only, the best first, the leftmost of equals."""
    ranks = {pair: rank for rank, pair in reversed([*enumerate(vocabulary.merges)])}
    texts = {text: token for token, text in enumerate(vocabulary.texts)}
    if vocabulary.pre in WHOLE_WORDS and word in texts:
        return [texts[word]]
    parts = list(word)
    while len(parts) > 1:
        rank, at = min((ranks.get(pair, len(ranks)), at) for at, pair in enumerate(pairwise(parts)))
        if rank == len(ranks):
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [texts[part] for part in parts]


@st.composite
def merge_lists(draw):
    """Merges of letters and of what earlier ones made, as training lists them, or not."""
    known, merges = list(LETTERS), []
    for _ in range(draw(st.integers(1, 8))):
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        if pair not in merges and len("".join(pair)) <= 6:
            merges.append(pair)
            known.append("".join(pair))
    return merges


@settings(deadline=None, max_examples=400)
@given(merge_lists(), st.lists(st.text(LETTERS, min_size=1, max_size=9), min_size=1, max_size=8), st.booleans())
def test_what_is_taken_is_tokenised_as_by_the_listed_merges(merges, words, takes_words):
    """Any vocabulary, any words: equal, or refused."""
    tried = vocabulary(merges, pre="llama-bpe" if takes_words else "gpt-2")
    try:
        tokenizer = Tokenizer(tried)
    except UnknownVocabulary:
        assume(False)
    for word in words:
        assert tokenizer.encode(word, special=False) == by_merges(tried, word)


@pytest.mark.parametrize(
    "merges",
    [
        [("b", "c"), ("a", "b"), ("ab", "c")],  # b and c are merged first, so a never meets an ab
        [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "c"), ("a", "bc")],  # two ways to abc, far apart
    ],
)
def test_merges_that_would_be_taken_otherwise_are_refused(merges):
    """The engine here would make abc of a and bc."""
    with pytest.raises(UnknownVocabulary):
        Tokenizer(vocabulary(merges))


def test_all_ways_to_a_token_one_after_the_other_are_taken():
    """As Llama 3's file lists them."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    taken = vocabulary(merges)
    for word in ("abc", "abcabc", "cabca", "bcabc"):
        assert Tokenizer(taken).encode(word, special=False) == by_merges(taken, word)
