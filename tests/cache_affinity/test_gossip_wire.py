"""Gossip as bytes: what is told arrives as it was, what is no message is nothing, and nobody can be read from it."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity import gossip_wire
from cache_affinity.gossip_notes import (
    Estimate,
    Estimates,
    Header,
    Load,
    Message,
    Placement,
    Settlement,
    installation_digest,
    replica_digest,
)
from cache_affinity.gossip_wire import (
    MAX_PLACED_BORDERS,
    MAX_READ_BYTES,
    VERSION,
    Malformed,
    UnknownVersion,
    decode,
    encode,
    header_of,
    placement_bytes,
)
from cache_affinity.prefix import prefix_key

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
U16 = st.integers(0, 2**16 - 1)
F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
SOME = st.none() | U32
estimate = st.builds(Estimate, F32, U32)


@st.composite
def placements(draw):
    """A prompt's head."""
    hashes = draw(st.lists(U64, min_size=1, max_size=12, unique=True))
    steps = draw(st.lists(st.integers(1, 0xFFFF), min_size=len(hashes), max_size=len(hashes)))
    sizes = tuple(sum(steps[: num + 1]) for num in range(len(steps)))
    return Placement(draw(U64), draw(U32), tuple(hashes), sizes)


settlements = st.builds(
    Settlement, U64, U32, SOME, U32, SOME, SOME, U32, U32, st.floats(0, 1, width=32), U32, U32, U16,
    st.none() | st.floats(0, 1e6, width=32), st.booleans(), st.booleans(),
)  # fmt: skip
messages = st.builds(
    Message,
    st.builds(Header, U32, U64, st.integers(1, 2**32 - 1), st.booleans(), st.booleans()),
    st.lists(st.builds(Load, U64, U16, U16, U16, U32, U32), max_size=4).map(tuple),
    st.lists(placements(), max_size=4).map(tuple),
    st.lists(settlements, max_size=4).map(tuple),
    st.lists(
        st.builds(Estimates, U64, U16, estimate, estimate, estimate, estimate, estimate, estimate), max_size=3
    ).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(messages)
def test_a_message_arrives_as_it_was_told(message):
    """Every field of every note, and what was not reported stays unreported."""
    content = encode(message)
    assert decode(content) == message
    assert header_of(content) == message.header


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.binary(max_size=120).map(lambda rest: bytes([VERSION]) + rest))
def test_bytes_that_are_no_message_are_refused_and_nothing_else_happens(content):
    """Whatever is on the channel, a gateway goes on; what it takes for a message can be told on."""
    try:
        found = decode(content)
    except (Malformed, UnknownVersion):
        return
    assert decode(encode(found)) == found


@settings(max_examples=150, deadline=None)
@given(messages, st.data())
def test_a_message_cut_or_changed_is_read_or_refused(message, data):
    """No cut and no flipped byte raises anything but the two refusals."""
    content = bytearray(encode(message))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    for changed in (bytes(content), encode(message)[:place]):
        try:
            decode(changed)
        except (Malformed, UnknownVersion):
            continue


def test_another_version_is_told_apart_from_garbage():
    """A release that speaks otherwise is ignored, not taken for a fault."""
    content = encode(Message(Header(1, 2, 3)))
    with pytest.raises(UnknownVersion):
        decode(bytes([VERSION + 1]) + content[1:])
    for broken in (b"", bytes([VERSION]), content[:-1], content + b"x"):
        with pytest.raises(Malformed):
            decode(broken)


def test_a_section_of_another_kind_is_skipped():
    """A later release may tell more without being another version."""
    message = Message(Header(1, 2, 3), loads=(Load(7, 1, 0, 0, 5, 0),))
    assert decode(encode(message) + struct.pack("<BI", 99, 3) + b"abc") == message


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_a_section_that_comes_twice_or_has_half_a_note_is_refused(kind):
    """Nothing of such a message counts."""
    start = encode(Message(Header(1, 2, 3)))
    with pytest.raises(Malformed):
        decode(start + struct.pack("<BI", kind, 3) + b"abc")
    with pytest.raises(Malformed):
        decode(start + 2 * struct.pack("<BI", kind, 0))


def test_a_chain_that_comes_to_a_border_twice_is_refused():
    """A shadow counts on every border having one place."""
    content = encode(Message(Header(1, 2, 3), placements=(Placement(7, 5, (1, 2), (10, 20)),)))
    decode(content)
    with pytest.raises(Malformed):
        decode(content.replace(struct.pack("<QQ", 1, 2), struct.pack("<QQ", 2, 2)))
    with pytest.raises(Malformed):
        decode(content.replace(struct.pack("<HH", 10, 10), struct.pack("<HH", 10, 0)))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(number):
    """One such estimate would spoil every later one."""
    fine = Estimate(1.0, 1)
    for places in range(6):
        told = [Estimate(number, 1) if place == places else fine for place in range(6)]
        with pytest.raises(Malformed):
            decode(encode(Message(Header(1, 2, 3), estimates=(Estimates(7, 0, *told),))))
    settlement = Settlement(7, 1, 1, 0, None, 0, 0, 0, 0.0, 1, 1, 0, number, is_behind=False, is_of_replica=True)
    with pytest.raises(Malformed):
        decode(encode(Message(Header(1, 2, 3), settlements=(settlement,))))


def test_of_a_long_prompt_the_head_is_told():
    """A head is a prefix, too; what it leaves out only looks colder."""
    num = MAX_PLACED_BORDERS + 5
    content = encode(
        Message(Header(1, 2, 3), placements=(Placement(7, 1, tuple(range(num)), tuple(range(1, num + 1))),))
    )
    (told,) = decode(content).placements
    assert told.hashes == tuple(range(MAX_PLACED_BORDERS))
    assert placement_bytes(7, 1, (), ()) == b""
    assert placement_bytes(7, 1, (1,), (1 << 20,)) == b"", "no border is so far from the one before"
    assert placement_bytes(7, 1, (1, 2), (5, 1 << 20)) == placement_bytes(7, 1, (1,), (5,))


def test_numbers_beyond_the_fields_are_told_as_the_most_there_is():
    """A count that has grown for years is still told."""
    big = 1 << 70
    load = Load(7, big, big, big, big, big)
    estimates = Estimates(7, big, *[Estimate(1.0, big)] * 6)
    settlement = Settlement(7, big, big, big, big, big, big, big, 0.5, big, big, big, 1.0, False, True)
    told = decode(encode(Message(Header(1, 2, 3), loads=(load,), settlements=(settlement,), estimates=(estimates,))))
    assert told.loads == (Load(7, *[0xFFFF] * 3, *[0xFFFFFFFF] * 2),)
    assert told.estimates[0].ms_per_token.weight == 0xFFFFFFFF
    assert told.settlements[0].rows == 0xFFFF


def test_too_long_a_message_is_not_read():
    """What a gateway reads at once is bounded, whoever publishes."""
    start = encode(Message(Header(1, 2, 3)))
    rest = MAX_READ_BYTES - len(start) - 5
    decode(start + struct.pack("<BI", 99, rest) + bytes(rest))
    with pytest.raises(Malformed):
        decode(start + struct.pack("<BI", 99, rest + 1) + bytes(rest + 1))


def test_two_tenants_same_prompt_tell_nothing_in_common_and_no_name_is_told():
    """Borders start from the tenant's salt; replicas and the installation are digests."""
    keys = [prefix_key("model-a", salt, [b"the same words"]) for salt in ("1" * 32, "2" * 32)]
    assert not set(keys[0].hashes) & set(keys[1].hashes)
    replica = replica_digest("replica-a", "model-a", "http://engine-a:8000", 0)
    message = Message(
        Header(installation_digest(b"s" * 32), 5, 1),
        placements=tuple(Placement(replica, 3, key.hashes, key.sizes) for key in keys),
    )
    content = encode(message)
    for secret in (b"replica", b"model", b"engine", b"words", b"1" * 8, b"2" * 8, b"s" * 4):
        assert secret not in content


def test_digests_tell_lives_machines_and_installations_apart():
    """A restarted replica is another one, and so is an engine on another machine's loopback."""
    one = ("r", "m", "http://e", 1)
    others = [
        replica_digest("r", "m", "http://e", 2), replica_digest("r", "m", "http://e2", 1),
        replica_digest("r", "m2", "http://e", 1), replica_digest(*one, "here"), replica_digest(*one, "there"),
    ]  # fmt: skip
    assert len({replica_digest(*one), *others}) == 6
    assert installation_digest(b"a" * 32) != installation_digest(b"b" * 32)
    assert gossip_wire.MAX_MESSAGE_BYTES <= MAX_READ_BYTES
