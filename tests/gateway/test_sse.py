"""Server-sent events: the same payloads under every legal spelling and every split into reads."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines.contract import Fault, ReplicaError
from gateway import sse
from gateway.sse import EventReader, comment, event

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8).map(str.encode)
END = st.sampled_from([b"\n", b"\r\n", b"\r"])
NOISE = st.sampled_from(
    [b": comment", b":", b"event: x", b"id: 7", b"retry: 10", b"x", b"datax: no", b"dat", b" data: no"]
)


def read(wire, cuts=()):
    """Payloads of the bytes, read in pieces cut at these places."""
    places = sorted({min(cut, len(wire)) for cut in cuts} | {0, len(wire)})
    reader = EventReader()
    payloads = []
    for start, end in zip(places, places[1:] or places, strict=False):
        payloads += reader.feed(wire[start:end])
    return payloads, reader


@st.composite
def streams(draw):
    """(payloads, the bytes of a stream that carries them)."""
    payloads, wire = [], draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    for _ in range(draw(st.integers(0, 5))):
        lines = draw(st.lists(LINE, max_size=3))
        told = [(b"data: " if draw(st.booleans()) or line.startswith(b" ") else b"data:") + line for line in lines]
        for noise in draw(st.lists(NOISE, max_size=2)):
            told.insert(draw(st.integers(0, len(told))), noise)
        blank = [b""] * draw(st.integers(1, 3))  # one ends the event, more end nothing
        for line in [*told, *blank]:
            end = draw(END)
            wire += line + (b"\r" if (wire + line).endswith(b"\r") and end == b"\n" else end)  # CR and LF were one end
        if lines:
            payloads.append(b"\n".join(lines))
    return payloads, wire


@settings(deadline=None, max_examples=200)
@given(streams(), st.lists(st.integers(0, 200), max_size=12))
@example(([b"a"], b"data: a\r\n\r\n"), [8, 8, 9, 10])
@example(([b"a"], b"\xef\xbb\xbfdata: a\n\n"), [1, 2])
@example(([b"a", b"b"], b"data: a\r\r\ndata: b\r\r"), [8, 9])
def test_every_spelling_and_split_gives_the_same_payloads(stream, cuts):
    """What an engine means does not depend on how the network cuts it."""
    payloads, wire = stream
    got, reader = read(wire, cuts)
    assert got == payloads
    assert reader.left_open() is None


@settings(deadline=None, max_examples=200)
@given(streams())
def test_byte_by_byte_and_with_empty_reads_it_is_the_same(stream):
    """The smallest reads there are."""
    payloads, wire = stream
    reader = EventReader()
    got = []
    for place in range(len(wire)):
        got += reader.feed(wire[place : place + 1]) + reader.feed(b"")
    assert got == payloads


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_any_bytes_are_read_alike_under_every_split(wire, cuts):
    """Also what no engine should send."""
    whole, at_once = read(wire)
    split, in_pieces = read(wire, cuts)
    assert split == whole
    assert in_pieces.left_open() == at_once.left_open()


@pytest.mark.parametrize(
    ("wire", "left"),
    [
        (b"data: a", b"a"),
        (b"data: a\n", b"a"),
        (b"data: a\r", b"a"),
        (b"data: [DONE]", sse.DONE),
        (b"data: a\n\n: bye", None),
        (b"data: a\n\n", None),
        (b"", None),
        (b"\xef\xbb", None),
    ],
)
def test_an_event_without_its_blank_line_is_left_open(wire, left):
    """By the standard it is no event; whoever relays decides what a stream cut there is worth."""
    _, reader = read(wire)
    assert reader.left_open() == left


def test_a_payload_over_several_lines_is_one_chunk_of_json():
    """P04: divided at white space."""
    payloads, _ = read(b'data: {"a":\ndata: 1}\n\n')
    assert json.loads(payloads[0]) == {"a": 1}
    assert event(payloads[0]) == b'data: {"a": 1}\n\n'


def test_a_data_line_without_a_colon_is_an_empty_payload():
    """As the standard has it."""
    assert read(b"data\n\n")[0] == [b""]


@pytest.mark.parametrize("piece", [b"x" * 4096, b"data: x\n" * 512], ids=["line", "lines"])
def test_an_event_without_an_end_is_the_engines_fault(monkeypatch, piece):
    """Memory is bounded, however an engine goes wrong."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 64 * 1024)
    reader = EventReader()
    for _ in range(16):
        assert reader.feed(piece) == []
    with pytest.raises(ReplicaError) as caught:
        reader.feed(piece)
    assert caught.value.fault is Fault.PROTOCOL


def test_an_event_at_the_bound_passes(monkeypatch):
    """One byte less than what is refused."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 64)
    reader = EventReader()
    assert reader.feed(b"data: " + b"x" * 58) == []
    assert reader.feed(b"\n\n") == [b"x" * 58]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text("ab\n", max_size=6).map(str.encode), max_size=5))
def test_what_we_write_we_read(payloads):
    """Events and comments of our own; a line break in JSON is white space."""
    wire = b"".join(comment("keep-alive") + event(payload) for payload in payloads)
    assert read(wire)[0] == [payload.replace(b"\n", b" ") for payload in payloads]


def test_a_huge_event_in_tiny_reads_is_joined_once():
    """Reading it costs what its bytes cost: the pieces are kept as they came until the event ends."""
    reader = EventReader()
    assert reader.feed(b"data: ") == []
    for _ in range(2000):
        assert reader.feed(b"a" * 1000) == []
    assert len(reader._pieces) == 2001
    assert reader.feed(b"\n\n") == [b"a" * 2_000_000]
    assert reader._pieces == []
