"""Where two prompts differ: borders by halving, bytes by a watch that gets finer with each pair."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.first_difference import Watch, num_shared, pieces_of, place_of, range_of
from cache_affinity.prefix import BLOCK_BYTES, prefix_key


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20))
@settings(max_examples=80, deadline=None)
def test_shared_borders_are_counted_as_one_by_one(one, other):
    """Halving needs chains, in which each hash stands for all before it."""
    chains = [[hash((*steps[: n + 1],)) for n in range(len(steps))] for steps in (one, other)]
    plainly = 0
    for a, b in zip(*chains, strict=False):
        if a != b:
            break
        plainly += 1
    assert num_shared(*chains) == plainly


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_every_byte_of_a_prompt_is_found_in_its_segment(segments):
    """Empty segments have none, and behind the end there is none."""
    whole = b"".join(segments)
    for size, byte in enumerate(whole):
        segment, at = place_of(size, segments)
        assert segments[segment][at] == byte
    with pytest.raises(IndexError):
        place_of(len(whole), segments)


@given(st.integers(0, 1023), st.integers(1, 1024))
@settings(max_examples=60, deadline=None)
def test_pieces_cover_all_bytes_once(first, length):
    """At most eight, in order, and one byte has one piece."""
    places = pieces_of(first, first + length)
    assert (places[0], places[-1]) == (first, first + length)
    assert list(places) == sorted(set(places))
    assert len(places) <= 9


@given(st.integers(0, 1023), st.integers(BLOCK_BYTES, 3 * BLOCK_BYTES))
@settings(max_examples=60, deadline=None)
def test_a_watch_narrows_to_the_byte_in_four_pairs(byte, length):
    """1,024, 128, 16, 2, 1: whichever byte it is that differs."""
    one = b"a" * length
    other = one[:byte] + b"b" + one[byte + 1 :]
    watch = Watch(0, 0, 0, 0, pieces_of(0, BLOCK_BYTES))
    for _ in range(4):
        digests = [watch.digests(prefix_key("m", "s", [text]).hashes, [text]) for text in (one, other)]
        first, end = range_of(*digests, watch, length)
        assert first <= byte < end
        watch = watch.within(first, end)
    assert (first, end, watch.is_exact) == (byte, byte + 1, True)
    digests = [watch.digests(prefix_key("m", "s", [text]).hashes, [text]) for text in (one, other)]
    assert watch.confirms(0, *digests)
    assert not watch.confirms(1, *digests)
    assert not watch.confirms(0, digests[0], digests[0])


def test_a_watch_looks_only_behind_its_own_border():
    """Of a prompt that differs before it, or ends there, nothing can be compared."""
    segments = [b"system", b"question"]
    key = prefix_key("m", "s", segments)
    watch = Watch(1, key.hashes[0], 1, 0, pieces_of(0, 8))
    assert len(watch.digests(key.hashes, segments)) == 9
    foreign = prefix_key("m", "s", [b"sYstem", b"question"])
    assert watch.digests(foreign.hashes, [b"sYstem", b"question"]) == ()
    assert watch.digests(key.hashes[:1], segments[:1]) == ()


def test_a_difference_before_and_behind_what_is_watched_is_told_as_wide_as_it_is():
    """The watch looks at bytes 4 and 5 of a segment alone."""
    watch = Watch(0, 0, 0, 0, (4, 5, 6))
    digests = [
        watch.digests(prefix_key("m", "s", [text]).hashes, [text]) for text in (b"abcdefgh", b"aXcdefgh", b"abcdefgX")
    ]
    assert range_of(digests[0], digests[1], watch, 8) == (0, 4)
    assert range_of(digests[0], digests[2], watch, 8) == (6, 8)
