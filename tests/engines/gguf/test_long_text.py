"""Cutting long text before it is tokenized."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.gguf.long_text import MAX_PIECE_CHARACTERS, cut_long_text

_MARKERS = re.compile(re.escape("<|end|>"))
_WORDS = st.sampled_from(["a" * 5000, "word ", "\n", "<|end|>", "漢" * 700, "    ", "x" * 4090, "1" * 9])


@given(words=st.lists(_WORDS, max_size=12))
@settings(deadline=None)
def test_pieces_join_to_the_text_are_short_and_never_split_a_marker(words):
    """Nothing is lost, the tokenizer's stack is safe, and a control token stays one."""
    text = "".join(words)
    pieces = list(cut_long_text(text, _MARKERS, 7))
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= MAX_PIECE_CHARACTERS for piece in pieces)
    assert sum(len(_MARKERS.findall(piece)) for piece in pieces) == len(_MARKERS.findall(text))


def test_words_stay_whole_where_there_are_borders():
    """Cut between words, the tokens are the same as without a cut."""
    text = "some words of text\n" * 1000
    pieces = list(cut_long_text(text, None, 0))
    assert all(piece[0] in " s" and not piece.endswith(" ") for piece in pieces)
    assert len(pieces) < 7


def test_short_text_is_not_cut():
    """The common case is one piece."""
    assert list(cut_long_text("hello", None, 0)) == ["hello"]
    assert list(cut_long_text("", None, 0)) == []
