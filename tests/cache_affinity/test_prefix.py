"""The byte chain: stable borders, separated tenants, bounded size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.prefix import BLOCK_BYTES, FINE_BLOCK_BYTES, FINE_BYTES, MAX_BORDERS, PrefixKey, prefix_key

SEGMENTS = st.lists(st.binary(max_size=3 * BLOCK_BYTES), max_size=8)


def shared_bytes(one: PrefixKey, other: PrefixKey) -> int:
    """Bytes of the longest run of equal leading borders."""
    size = 0
    for a, b, end in zip(one.hashes, other.hashes, one.sizes, strict=False):
        if a != b:
            break
        size = end
    return size


@given(SEGMENTS)
@settings(max_examples=60, deadline=None)
def test_borders_end_segments_and_blocks_and_sizes_grow(segments):
    """Sizes are what hits are counted in, so they must be the true cumulative bytes."""
    key = prefix_key("m", "salt", segments)
    expected, end = [], 0
    for segment in segments:
        at, end = end, end + len(segment)
        while (at := at + (FINE_BLOCK_BYTES if at < FINE_BYTES else BLOCK_BYTES)) < end:
            expected.append(at)
        expected += [end] if segment else []
    assert list(key.sizes) == expected
    assert len(key.hashes) == len(key.sizes) == len(set(key.hashes))
    assert key.total_bytes == sum(map(len, segments))
    assert key.tail_first == tuple(reversed(key.hashes))


@given(SEGMENTS, SEGMENTS)
@settings(max_examples=60, deadline=None)
def test_a_longer_prompt_keeps_every_border_of_the_shorter(segments, more):
    """The next turn of a conversation must find all borders of the one before."""
    short, long = prefix_key("m", "salt", segments), prefix_key("m", "salt", [*segments, *more])
    assert long.hashes[: len(short.hashes)] == short.hashes
    assert long.sizes[: len(short.sizes)] == short.sizes


def test_a_segment_that_grows_keeps_its_inner_borders():
    """Borders inside a segment depend on nothing after them."""
    text = bytes(range(256)) * 20
    short, long = prefix_key("m", "s", [text[:3500]]), prefix_key("m", "s", [text, b"x"])
    assert shared_bytes(short, long) == FINE_BYTES + BLOCK_BYTES


def test_a_short_prompt_that_grows_is_known_again_by_its_beginning():
    """A few hundred bytes in one message, as a question with a document has them before it has turns."""
    text = bytes(range(256)) * 4
    short, long = prefix_key("m", "s", [text[:700]]), prefix_key("m", "s", [text])
    assert shared_bytes(short, long) == 2 * FINE_BLOCK_BYTES


@given(st.lists(st.binary(min_size=1, max_size=2500), min_size=1, max_size=5), st.data())
@settings(max_examples=60, deadline=None)
def test_where_segments_are_cut_enters_the_hash(segments, data):
    """Moving a byte over a border must not give the same chain: templates put tokens between messages."""
    whole = b"".join(segments)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=5).map(sorted))
    other = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    other = [piece for piece in other if piece]
    same_end = prefix_key("m", "s", segments).hashes[-1] == prefix_key("m", "s", other).hashes[-1]
    assert same_end == (segments == other)


def test_an_empty_segment_changes_what_follows_but_has_no_border():
    """An empty message is still a message to the template."""
    with_empty, without = prefix_key("m", "s", [b"", b"a"]), prefix_key("m", "s", [b"a"])
    assert len(with_empty.hashes) == len(without.hashes) == 1
    assert with_empty.hashes != without.hashes


def test_a_block_sized_segment_differs_from_a_block_inside_a_longer_one():
    """A whole block that ends a message is not the same place as one in the middle."""
    block = b"x" * FINE_BLOCK_BYTES
    assert shared_bytes(prefix_key("m", "s", [block, b"y"]), prefix_key("m", "s", [block + b"y"])) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("m", "alder"), ("m", "birch")),
        (("m", "alder"), ("n", "alder")),
        (("ab", "c"), ("a", "bc")),
        (("1:a", "b"), ("a", "b1:")),
        (("m", ""), ("", "m")),
    ],
)
def test_two_tenants_or_models_share_no_border(one, other):
    """Equal prompts of two tenants must never meet, and no choice of names may make two starts equal."""
    segments = [b"you are helpful", b"hello" * 1000, b"bye"]
    mine, theirs = prefix_key(*one, segments), prefix_key(*other, segments)
    assert not set(mine.hashes) & set(theirs.hashes)


def test_within_one_tenant_equal_prompts_are_equal():
    """The other half of the isolation test: a key that never matches would pass the first."""
    segments = [b"you are helpful", b"hello" * 1000]
    assert prefix_key("m", "alder", segments) == prefix_key("m", "alder", iter(segments))


@pytest.mark.parametrize("segments", [[b"x" * (5000 * BLOCK_BYTES)], [b"x"] * 50_000, [b"x" * 700_000] * 8])
def test_borders_are_bounded_and_the_total_stays_true(segments):
    """A huge prompt must not make a huge key; what lies behind the bound counts as held nowhere."""
    key = prefix_key("m", "s", segments)
    assert len(key.hashes) == len(key.sizes) == MAX_BORDERS
    assert key.total_bytes == sum(map(len, segments)) > key.sizes[-1]


@given(SEGMENTS, st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_bounded_key_is_the_head_of_the_unbounded(segments, max_borders):
    """The bound only cuts; it never moves a border."""
    full, cut = prefix_key("m", "s", segments), prefix_key("m", "s", segments, max_borders=max_borders)
    assert cut.hashes == full.hashes[:max_borders]
    assert cut.sizes == full.sizes[:max_borders]


def test_no_segments_make_an_empty_key():
    """A prompt without content is a key without borders."""
    key = prefix_key("m", "s", [])
    assert (key.hashes, key.sizes, key.total_bytes) == ((), (), 0)
    assert key.home == prefix_key("m", "s", iter(())).home


def test_the_home_is_the_same_for_all_turns_and_differs_between_conversations():
    """Gateways that share nothing find a conversation's home from it, however long the system prompt is."""
    system = b"s" * 5000
    first = prefix_key("m", "salt", [system, b"hello"])
    assert first.home == prefix_key("m", "salt", [system, b"hello", b"answer", b"more"]).home
    assert first.home != prefix_key("m", "salt", [system, b"hi"]).home
    with_tools = prefix_key("m", "salt", [b"tools", system, b"hello"], home_segments=3)
    assert with_tools.home == with_tools.hashes[-1]


def test_a_hint_draws_the_home_within_its_tenant_and_changes_no_border():
    """Requests with one hint meet where nothing is held; another tenant's same hint leads elsewhere."""
    keys = [prefix_key("m", "alder", [text, b"more"], home_hint=b'"checkout"') for text in (b"one", b"two")]
    assert keys[0].home == keys[1].home
    assert keys[0].hashes == prefix_key("m", "alder", [b"one", b"more"]).hashes
    assert keys[0].home != prefix_key("m", "birch", [b"one", b"more"], home_hint=b'"checkout"').home
    assert keys[0].home != prefix_key("m", "alder", [b"one", b"more"], home_hint=b'"other"').home
