"""Lines out of pipes."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.launch.lines import LineSplitter


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(max_size=30)), st.integers(1, 12))
def test_no_byte_is_lost_and_no_line_passes_the_bound(pieces, limit):
    """However the pipe cuts, the content survives and the memory is bounded."""
    splitter = LineSplitter(limit)
    lines = [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()
    assert all(len(line) <= limit for line in lines)
    assert b"".join(lines).replace(b"\r", b"") == b"".join(pieces).replace(b"\n", b"").replace(b"\r", b"")


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text("abc {}", max_size=20)), st.lists(st.integers(0, 200), max_size=5))
def test_lines_are_the_same_wherever_the_pipe_cuts(lines, cuts):
    """A JSON log line is passed on whole although it arrived in two reads."""
    sent = "".join(f"{line}\n" for line in lines).encode()
    borders = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    splitter = LineSplitter()
    got = [line for start, end in itertools.pairwise(borders) for line in splitter.feed(sent[start:end])]
    assert got + splitter.end() == [line.encode() for line in lines]


def test_a_last_line_without_an_end_is_given_at_the_end():
    """The last words of a process that dies often lack their line end."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\r\ntw") == [b"one"]
    assert splitter.end() == [b"tw"]
    assert splitter.end() == []
