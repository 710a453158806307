"""Reasoning told from the answer."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.output.parts import Content, Reasoning, merged
from engines.worker.output.reasoning import FAMILIES, THINK, tags_of
from engines.worker.output.reply import ReplyStyle


def read(pieces, *, is_open=False, shows=True, tags=THINK):
    reader = ReplyStyle(tags=tags, is_open=is_open, shows_reasoning=shows).reader()
    parts = [part for piece in pieces for part in reader.feed(piece)]
    return merged([*parts, *reader.finish(is_cut=False)])


@pytest.mark.parametrize("tags", FAMILIES.values())
def test_reasoning_is_between_its_tags(tags):
    """White space around it is layout."""
    parts = read([f"\n{tags.begin}\nHmm, a < b.\n\n{tags.end}\n\nYes. "], tags=tags)
    assert parts == (Reasoning("Hmm, a < b."), Content("Yes. "))


def test_a_prompt_may_have_opened_it():
    """DeepSeek's and others' templates write the tag; some models write it again."""
    expected = (Reasoning("Hmm"), Content("Yes"))
    assert read(["Hmm</think>Yes"], is_open=True) == expected
    assert read(["\n<think>\nHmm\n</think>Yes"], is_open=True) == expected


def test_without_a_tag_at_the_beginning_all_is_content():
    """Also when it comes later, as quoted text."""
    for text in ("Yes <think>no</think>", "<thin", " ", "<b>"):
        assert read([text]) == (Content(text),)


def test_reasoning_that_never_ends_is_reasoning():
    """An answer cut by its length."""
    assert read(["<think>so much </thin"]) == (Reasoning("so much </thin"),)
    assert read(["", ""], is_open=True) == ()


def test_reasoning_can_be_left_out():
    """By `include_reasoning`: false."""
    assert read(["<think>Hmm</think>Yes"], shows=False) == (Content("Yes"),)


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", "<", "thi", "\n", " ", "a", "</"]), max_size=12).map("".join),
    is_open=st.booleans(),
    cuts=st.lists(st.integers(0, 80), max_size=5),
)
@settings(max_examples=300, deadline=None)
def test_every_division_reads_the_same_and_loses_only_layout(text, is_open, cuts):
    """Chunked equals whole; all characters but tags and white space come out."""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    parts = read(pieces, is_open=is_open)
    assert parts == read([text], is_open=is_open) == read(text, is_open=is_open)
    kept = "".join("".join(part.text for part in parts).split())
    bare = "".join(text.split())
    assert len(bare) - len(kept) in (0, 7, 8, 15)


def test_templates_show_their_tags():
    """One that only cuts them from history counts too."""
    assert tags_of("{{ content.split('</think>')[-1] }}") is THINK
    assert tags_of("[THINK]") == FAMILIES["think-brackets"]
    assert tags_of("{{ messages }}") is None
