"""The local tokenizer: what it refuses, what it remembers, and control tokens; equality is tested beside the engine."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity import tokens as module
from cache_affinity.tokens import Tokenizer
from cache_affinity.vocabulary import UnknownVocabulary, Vocabulary

CONTROL, DEFINED = "<|end|>", "[tool]"
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"))


def vocabulary(**changes):
    """Bytes a to z and a space, a few merges, a control token and one that always counts."""
    letters = (*"abcdefghijklmnopqrstuvwxyz", "Ġ")
    texts = (CONTROL, *letters, *(left + right for left, right in MERGES), DEFINED)
    fields = {
        "pre": "smollm",
        "texts": texts,
        "merges": MERGES,
        "special": frozenset({0}),
        "defined": frozenset({len(texts) - 1}),
    }
    return Vocabulary(**(fields | changes))


def test_words_become_their_merges():
    """Best first, as byte-level BPE does."""
    texts = vocabulary().texts
    ids = Tokenizer(vocabulary()).encode("hello hello hex", special=False)
    assert [texts[token] for token in ids] == ["hello", "Ġhello", "Ġ", "he", "x"]


def test_a_control_tokens_text_becomes_one_only_where_that_is_wanted():
    """In a client's content it stays text; a user-defined one counts always."""
    tokenizer, texts = Tokenizer(vocabulary()), vocabulary().texts
    assert tokenizer.encode(f"a{CONTROL}b{DEFINED}", special=True) == [1, 0, 2, len(texts) - 1]
    plain = tokenizer.encode(f"a{CONTROL}b{DEFINED}", special=False)
    assert 0 not in plain
    assert plain[-1] == len(texts) - 1


def test_bytes_that_the_vocabulary_lacks_are_left_out():
    """As llama.cpp leaves them out."""
    assert Tokenizer(vocabulary()).encode("aÿb", special=False) == [1, 2]


def test_half_a_surrogate_pair_counts_as_a_question_mark():
    """Which this vocabulary lacks."""
    assert Tokenizer(vocabulary()).encode("a\ud800b", special=False) == [1, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"pre": "unheard of"},
        {"pre": "llama-bpe", "texts": (*vocabulary().texts, "zzz")},  # a word that no merge makes
        {"merges": (*MERGES, ("h", "ell"))},  # another way to `hell`, ranked far from the first
        {
            "merges": (("l", "l"), ("h", "e"), ("e", "ll"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"))
        },  # `hell`: h, ell
        {"merges": (("q", "z"),)},
        {"merges": (("日", "x"),)},
    ],
)
def test_a_vocabulary_that_is_not_known_to_be_equal_is_refused(changes):
    """No tokens rather than wrong ones."""
    with pytest.raises(UnknownVocabulary):
        Tokenizer(vocabulary(**changes))


def test_a_next_turn_makes_only_what_is_new(monkeypatch):
    """Special tokens are borders, and what lies between them is remembered."""
    tokenizer, made = Tokenizer(vocabulary()), []
    make = tokenizer._made
    monkeypatch.setattr(tokenizer, "_made", lambda text: made.append(text) or make(text))
    first = f"hello hello hello hello{CONTROL}"
    second = first + f"hex hex hex hex hex hex{CONTROL}"
    head = tokenizer.encode(first, special=True)
    whole = tokenizer.encode(second, special=True)
    assert made == ["hello hello hello hello", "hex hex hex hex hex hex"]
    assert whole[: len(head)] == head
    assert "2 segments" in repr(tokenizer)


def test_what_is_remembered_is_bounded(monkeypatch):
    """By characters; a document longer than the bound for one is not kept at all."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(module, "_LONGEST_KEPT", 200)
    tokenizer = Tokenizer(vocabulary())
    for number in range(100):
        tokenizer.encode("hello " * 5 + "abcdefghij"[number % 10] * (1 + number // 10), special=False)
    assert tokenizer._kept_chars <= 1000
    assert tokenizer._kept_chars == sum(map(len, tokenizer._kept))
    tokenizer.encode("hello " * 100, special=False)
    assert "hello " * 100 not in tokenizer._kept


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["hello", " ", "hex", CONTROL, DEFINED, "12", "\n", "é"]), max_size=30), st.booleans())
def test_remembering_changes_nothing(parts, special):
    """A tokenizer that has seen everything says what a fresh one says."""
    text = "".join(parts)
    used = Tokenizer(vocabulary())
    used.encode(text, special=special)
    assert used.encode(text, special=special) == Tokenizer(vocabulary()).encode(text, special=special)
