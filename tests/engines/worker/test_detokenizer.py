"""Bytes of tokens become text."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.detokenizer import Detokenizer


@given(text=st.text(max_size=30), places=st.lists(st.integers(0, 120), max_size=10))
@settings(max_examples=200, deadline=None)
def test_any_split_of_the_bytes_gives_the_same_text(text, places):
    """A character may be spread over several tokens."""
    data = text.encode(errors="replace")
    borders = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    detokenizer = Detokenizer()
    parts = [detokenizer.feed((data[start:end],)) for start, end in itertools.pairwise(borders)]
    assert "".join(parts) + detokenizer.flush() == data.decode()


@given(data=st.binary(max_size=30))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_text_decode_as_in_one_piece(data):
    """A model may emit any bytes; streamed and whole answers must agree on them."""
    detokenizer = Detokenizer()
    streamed = "".join(detokenizer.feed((bytes((byte,)),)) for byte in data) + detokenizer.flush()
    assert streamed == data.decode(errors="replace")


def test_half_a_character_waits_and_is_marked_at_the_end():
    """Nothing half is ever sent; a half that stays half is shown as the replacement character."""
    detokenizer = Detokenizer()
    assert detokenizer.feed((b"a\xf0\x9f",)) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
