"""Stop strings: what may be sent, and where a text ends."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.stops import StopMatcher, StopScanner


def cut(text: str, stops: list[str]) -> tuple[int, int] | None:
    """The match a reader would choose: complete first, and among those begun first. As (start, end)."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return start, end
    return None


def whole(text: str, stops: list[str], *, include: bool) -> str:
    found = cut(text, stops)
    if found is None:
        return text
    return text[: found[1] if include else found[0]]


def scan(parts: list[str], stops: list[str], *, include: bool = False) -> tuple[list[str], StopScanner]:
    scanner = StopScanner(StopMatcher(stops), include_stop=include)
    sent = [scanner.feed(part) for part in parts]
    return [*sent, scanner.flush()], scanner


def splits(text: str):
    """Every way to cut a text into pieces."""
    for size in range(len(text)):
        for places in itertools.combinations(range(1, len(text)), size):
            borders = [0, *places, len(text)]
            yield [text[a:b] for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("an ENTRY END x", ["END"]),
        ("the ENDING", ["END", "ENDING"]),
        ("the ENDING", ["ENDING"]),
        ("a\n\n\nb", ["\n\n"]),
        ("tea 🫖 tea", ["🫖"]),
        ("abcdefg", ["bcd", "abcde"]),
        ("xaabaabx", ["aabx", "abaa"]),
        ("aaaaab", ["aab"]),
        ("EN", ["END"]),
        ("abcab", ["ab", "b"]),
    ],
)
def test_every_split_of_a_text_ends_at_the_same_place(text, stops, include):
    """Where tokens end must not decide where an answer ends (P47)."""
    expected = whole(text, stops, include=include)
    for parts in splits(text):
        sent, _ = scan(parts, stops, include=include)
        assert "".join(sent) == expected, parts


words = st.text(alphabet="abE🫖", max_size=12)


@given(
    parts=st.lists(words, max_size=8),
    stops=st.lists(st.text(alphabet="abE🫖", min_size=1, max_size=4), min_size=1, max_size=4),
    include=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_sent_text_is_the_text_before_the_first_complete_match(parts, stops, include):
    """The scanner agrees with a definition of three lines, whatever the text and the stop strings."""
    text = "".join(parts)
    sent, scanner = scan(parts, stops, include=include)
    assert "".join(sent) == whole(text, stops, include=include)
    found = cut(text, stops)
    assert scanner.matched == (text[found[0] : found[1]] if found else None)


@given(
    parts=st.lists(words, min_size=1, max_size=6),
    stops=st.lists(st.text(alphabet="abE🫖", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_only_what_could_still_become_a_stop_string_is_held_back(parts, stops):
    """A client sees text as early as is safe: the rest held is a beginning of some stop string, and the longest one."""
    scanner = StopScanner(StopMatcher(stops))
    text = ""
    sent = ""
    for part in parts:
        sent += scanner.feed(part)
        text += part
        if scanner.matched is not None:
            return
        held = text[len(sent) :]
        beginnings = [text[-n:] for n in range(1, len(text) + 1) if any(s.startswith(text[-n:]) for s in stops)]
        assert held == max(beginnings, key=len, default="")


def test_nothing_is_released_after_a_match():
    """Tokens that were already on their way when the match was found are not part of the answer."""
    scanner = StopScanner(StopMatcher(["END"]))
    assert scanner.feed("x END y") == "x "
    assert scanner.feed("more") == ""
    assert scanner.flush() == ""


def test_held_text_comes_out_at_the_end_once():
    """An answer that ends on half a stop string still has that half."""
    scanner = StopScanner(StopMatcher(["END"]))
    assert scanner.feed("the EN") == "the "
    assert scanner.flush() == "EN"
    assert scanner.flush() == ""
