"""KV events on the wire: golden messages of vLLM and SGLang, our own, and whatever else may come."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_affinity.exact import ExactIndex
from cache_affinity.kv_events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, fold, pack, salt_digest
from engines.core.events import AllBlocksCleared, BlockRemoved, BlockStored, Medium
from engines.kv_event_wire import (
    END_SEQUENCE,
    MAX_PAYLOAD_BYTES,
    End,
    MalformedBatch,
    read_batch,
    read_end,
    read_sequence,
    write_sequence,
)
from engines.worker.kv_event_maps import write_batch, write_end

encode = msgspec.msgpack.encode

# A batch in vLLM's map form with hashes of four bytes: a block of [1, 2] stored, removed, all cleared.
VLLM_MAPS = bytes.fromhex(
    "93cb3ff00000000000009389a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c404aaaaaaaab1706172656e745f62"
    "6c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f"
    "72615f6e616d65c0a967726f75705f6964780084a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c404aaaaaaaa"
    "a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)
A = bytes.fromhex("aaaaaaaa")


def batch_of(*events):
    return encode([1.0, list(events), None])


def stored_map(**changes):
    """VLLM's event of two blocks of two tokens."""
    fields = {
        "type": "BlockStored",
        "block_hashes": [b"a" * 32, b"b" * 32],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return fields | changes


def only(payload):
    (event,) = read_batch(0, payload).events
    return event


def test_vllms_golden_batch_is_read():
    """As its 0.33 writes it."""
    assert read_batch(7, VLLM_MAPS) == KvBatch(
        7,
        (
            BlocksStored((fold(A),), None, pack([1, 2]), 2),
            BlocksRemoved((fold(A),)),
            AllCleared(),
        ),
    )


def test_the_array_form_of_older_versions_is_read_by_position():
    """VLLM up to about 0.2x, with tails of any length missing."""
    full = ["BlockStored", [b"a" * 8], b"p" * 8, [1, 2], 2, None, "CPU", "lora", None, 0, "full_attention", "new", 1]
    for length in range(5, len(full) + 1):
        event = only(batch_of(full[:length]))
        assert (event.hashes, event.parent, event.packed) == ((fold(b"a" * 8),), fold(b"p" * 8), pack([1, 2]))
        assert event.is_host is (length > 6)
        assert event.adapter == ("lora" if length > 7 else "")
    assert only(batch_of(["BlockRemoved", [b"a" * 8]])) == BlocksRemoved((fold(b"a" * 8),))
    assert only(batch_of(["BlockRemoved", [5], "CPU"])) == BlocksRemoved((5,), is_host=True)
    assert only(batch_of(["AllBlocksCleared"])) == AllCleared()


def test_sglangs_numbers_media_and_salt_are_read():
    """Signed numbers, other words for the host's memory, the salt in a field of its own."""
    event = {
        "type": "BlockStored", "block_hashes": [6738917275443968386, -5], "parent_block_hash": -9,
        "token_ids": list(range(32)), "block_size": 16, "lora_id": None, "medium": "CPU_PINNED", "cache_salt": "t1",
        "session_id": "s",
    }  # fmt: skip
    found = only(batch_of(event))
    assert found.hashes == (fold(6738917275443968386), fold(-5))
    assert (found.parent, found.is_host, found.salt) == (fold(-9), True, salt_digest("t1"))


@pytest.mark.parametrize("medium", ["DISK", "EXTERNAL", "STORAGE", "NEW"])
def test_blocks_elsewhere_are_of_no_use(medium):
    """What all replicas can fetch alike decides nothing."""
    payload = batch_of(stored_map(medium=medium), {"type": "BlockRemoved", "block_hashes": [1], "medium": medium})
    assert read_batch(0, payload) == KvBatch(0, ())


@pytest.mark.parametrize(
    ("fields", "is_read"),
    [
        ({"group_idx": 0}, True),
        ({"group_idx": 1}, False),
        ({"group_idx": 1, "kv_cache_spec_kind": "full_attention"}, True),
        ({"group_idx": 0, "kv_cache_spec_kind": "sliding_window"}, False),
        ({"kv_cache_spec_kind": "mla_attention"}, True),
    ],
)
def test_only_the_group_that_decides_reuse_is_read(fields, is_read):
    """A sliding window's blocks come and go without ending a hit."""
    assert bool(read_batch(0, batch_of(stored_map(**fields))).events) is is_read


def test_vllms_salt_is_digested_where_it_is_read():
    """It stands in clear in `extra_keys`; nothing behind the decoder sees it."""
    event = only(batch_of(stored_map(extra_keys=[["tenantZ"], None])))
    assert (event.salt, event.extras) == (salt_digest("tenantZ"), None)
    assert b"tenantZ" not in repr(event).encode()


def test_extra_keys_that_are_no_salt_belong_to_their_blocks():
    """An adapter's name is known already; a picture makes its block another."""
    keys = [["lora", "salt", ["picture", 3]], ["lora", ["picture", -13]]]
    event = only(batch_of(stored_map(lora_name="lora", extra_keys=keys)))
    assert (event.adapter, event.salt) == ("lora", salt_digest("salt"))
    assert event.extras == (encode([["picture", 3]]), encode([["picture", -13]]))
    later = only(batch_of(stored_map(parent_block_hash=b"p", extra_keys=[["embeds"], None])))
    assert (later.salt, later.extras) == ("", (encode(["embeds"]), b""))
    assert only(batch_of(stored_map(lora_id=3))).adapter == "#3"


def test_unknown_events_and_fields_are_left_out():
    """A newer engine says more."""
    payload = batch_of({"type": "BlockShared", "x": 1}, stored_map(novelty={"a": 1}), ["NewEvent", 1])
    assert len(read_batch(0, payload).events) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"block_size": 0},
        {"block_size": 70_000},
        {"block_size": "2"},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [1, 2, 3, -4]},
        {"token_ids": [1, 2, 3, "x"]},
        {"token_ids": None},
        {"block_hashes": "ab"},
        {"block_hashes": [1.5, 2]},
        {"parent_block_hash": []},
        {"medium": 3},
        {"extra_keys": 5},
        {"extra_keys": [5, None]},
        {"extra_keys": [[{"a": 1}], 7]},
    ],
)
def test_a_stored_event_that_cannot_be_is_left_out_and_counted(changes):
    """The replica looks colder; the rest of the batch counts."""
    batch = read_batch(0, batch_of(stored_map(**changes), {"type": "AllBlocksCleared"}))
    assert (batch.events, batch.num_refused) == ((AllCleared(),), 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        encode(3),
        encode([1.0]),
        encode([1.0, {}]),
        batch_of(3),
        batch_of([]),
        batch_of({"no": "type"}),
        batch_of({"type": "BlockRemoved"}),
        batch_of({"type": "BlockRemoved", "block_hashes": [None]}),
        batch_of(["BlockRemoved", 5]),
        bytes(MAX_PAYLOAD_BYTES + 1),
    ],
    ids=lambda payload: payload[:12].hex() or "empty",
)
def test_what_is_no_batch_or_hides_a_removal_is_refused(payload):
    """A removal that is not understood would leave the replica looking warmer than it is."""
    with pytest.raises(MalformedBatch):
        read_batch(0, payload)


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
     "group_idx", "kv_cache_spec_kind", "cache_salt", "generation"]
)  # fmt: skip
NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
ODD_EVENTS = st.one_of(
    JSON_LIKE,
    st.builds(lambda kind, rest: {**rest, "type": kind}, NAMES, st.dictionaries(FIELDS, JSON_LIKE, max_size=8)),
    st.builds(lambda changes: stored_map(**changes), st.dictionaries(FIELDS, JSON_LIKE, max_size=3)),
    st.builds(lambda kind, rest: [kind, *rest], NAMES, st.lists(JSON_LIKE, max_size=11)),
)


@pytest.mark.parametrize("field", ["lora_name", "cache_salt", "medium", "parent_block_hash"])
def test_a_name_that_is_a_list_refuses_the_event(field):
    """What would be hashed later must be what it claims to be."""
    batch = read_batch(0, encode([0.0, [stored_map(**{field: [0]})], 0]))
    assert (batch.events, batch.num_refused) == ((), 1)


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(st.binary(max_size=200), st.lists(ODD_EVENTS, max_size=4).map(lambda events: encode([0.0, events, 0])))
)
def test_nothing_that_comes_breaks_the_reader(payload):
    """Fuzz: a batch or `MalformedBatch`, and what was read can be applied."""
    try:
        batch = read_batch(0, payload)
    except MalformedBatch:
        return
    index = ExactIndex(max_blocks=100)
    index.apply("r", batch.events)
    index.check_integrity()


@settings(deadline=None, max_examples=200)
@given(st.integers(0, len(VLLM_MAPS) - 1), st.integers(0, 255), st.just(None) | st.integers(0, len(VLLM_MAPS)))
def test_a_damaged_golden_batch_breaks_nothing(place, byte, end):
    """One byte changed, and the tail cut or not: refused, or what was read can be applied."""
    damaged = bytearray(VLLM_MAPS)
    damaged[place] = byte
    try:
        batch = read_batch(0, bytes(damaged[:end]))
    except MalformedBatch:
        return
    assert batch.sequence == 0
    index = ExactIndex(max_blocks=100)
    index.apply("r", batch.events)
    index.check_integrity()


EVENTS = [
    AllBlocksCleared(),
    BlockStored((b"a" * 32, b"b" * 32), None, tuple(range(8)), 4, "a secret", Medium.DEVICE),
    BlockStored((b"c" * 32,), b"b" * 32, (8, 9, 10, 11), 4, "a secret", Medium.HOST),
    BlockRemoved((b"c" * 32, b"b" * 32), Medium.HOST),
]


@pytest.mark.parametrize("has_int_hashes", [False, True])
def test_our_own_events_come_back_and_hide_the_salt(has_int_hashes):
    """What the engine says is what the index is told, names as bytes or as numbers."""
    payload = write_batch(1.0, EVENTS, "life-1", has_int_hashes=has_int_hashes)
    assert b"a secret" not in payload
    batch = read_batch(3, payload)
    folded = [fold(letter * 32) for letter in (b"a", b"b", b"c")]
    assert batch == KvBatch(
        3,
        (
            AllCleared(),
            BlocksStored((folded[0], folded[1]), None, pack(range(8)), 4, salt=salt_digest("a secret")),
            BlocksStored((folded[2],), folded[1], pack(range(8, 12)), 4, is_host=True),
            BlocksRemoved((folded[2], folded[1]), is_host=True),
        ),
        "life-1",
    )
    assert batch.is_snapshot


class VllmStored(msgspec.Struct, tag="BlockStored", omit_defaults=True, kw_only=True):
    """What a strict reader of vLLM's expects."""

    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None


class VllmRemoved(msgspec.Struct, tag="BlockRemoved"):
    """The same."""

    block_hashes: list[bytes | int]
    medium: str | None = None


class VllmCleared(msgspec.Struct, tag="AllBlocksCleared"):
    """The same."""


class VllmBatch(msgspec.Struct, array_like=True):
    """The same."""

    ts: float
    events: list[VllmStored | VllmRemoved | VllmCleared]
    data_parallel_rank: int | None = None


@pytest.mark.parametrize("has_int_hashes", [False, True])
def test_a_typed_reader_of_vllms_reads_ours(has_int_hashes):
    """Our additions are fields that it does not know; numbers are unsigned 64 bits."""
    payload = write_batch(1.0, EVENTS, "life-1", has_int_hashes=has_int_hashes)
    batch = msgspec.msgpack.decode(payload, type=VllmBatch)
    assert [type(event) for event in batch.events] == [VllmCleared, VllmStored, VllmStored, VllmRemoved]
    assert batch.events[1].token_ids == list(range(8))
    name = batch.events[1].block_hashes[0]
    assert name == (int.from_bytes(b"a" * 8, "big") if has_int_hashes else b"a" * 32)
    assert batch.events[2].parent_block_hash == batch.events[1].block_hashes[1]


def test_sequence_frames_are_eight_bytes():
    """Big-endian and unsigned; the end of an answer is -1 read as signed."""
    assert write_sequence(258) == b"\0\0\0\0\0\0\1\2"
    assert read_sequence(write_sequence(258)) == 258
    assert write_sequence(END_SEQUENCE) == (-1).to_bytes(8, "big", signed=True)
    with pytest.raises(MalformedBatch):
        read_sequence(b"123")


@pytest.mark.parametrize("payload", [b"", b"\xc1", encode(3), encode([1, 2]), encode(["g", -1]), encode(["g", 1, 2])])
def test_the_end_of_another_engines_answer_says_nothing(payload):
    """VLLM's is empty."""
    assert read_end(payload) == End()


def test_the_end_of_our_answer_says_who_and_how_far():
    """So a restart and a lost tail are noticed in silence."""
    assert read_end(write_end("life-1", 12)) == End("life-1", 12)
