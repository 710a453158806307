"""Reading KV events from the wire: vLLM's stream in both of its forms, SGLang's, and ours. Pure; sockets are elsewhere.

A message has three frames: topic, sequence (8 bytes, big-endian), payload, which is msgpack of `[time, events, rank]`.
An event is a map with its name under `type`, or, from older engines, an array with its name first. Ours are vLLM's maps
with two differences that its readers do not notice: the salt in `extra_keys` is a digest, and a batch's first event has
the `generation` of the process. Writing: engines/worker/kv_event_maps.py.
"""

from typing import Any

import msgspec

from cache_affinity.kv_events import (
    SALT_MARK,
    AllCleared,
    BlocksRemoved,
    BlocksStored,
    KvBatch,
    KvEvent,
    fold,
    pack,
    salt_digest,
)

END_SEQUENCE = (1 << 64) - 1  # -1 as the 8 signed bytes that end an answer
MAX_BLOCK_SIZE = 65_536
MAX_PAYLOAD_BYTES = 64 << 20
_HOST_MEDIA = frozenset({"CPU", "CPU_PINNED"})
_DEVICE = "GPU"
_FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention"})
_STORED_FIELDS = (  # of the array form, by position
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind",
)  # fmt: skip
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode

Hash = bytes | int


class MalformedBatch(Exception):
    """A message that is no batch of events, or says of removals what cannot be understood."""


class End(msgspec.Struct, frozen=True):
    """The end of an answer. `generation`, `next_sequence`: of the engine, None where it does not say."""

    generation: str | None = None
    next_sequence: int | None = None


def read_sequence(frame: bytes) -> int:
    """The number in a sequence frame. Raises `MalformedBatch`."""
    if len(frame) != 8:
        raise MalformedBatch(f"a sequence number of {len(frame)} bytes")
    return int.from_bytes(frame, "big")


def write_sequence(number: int) -> bytes:
    """The sequence frame of a number."""
    return number.to_bytes(8, "big")


def read_batch(sequence: int, payload: bytes) -> KvBatch:
    """The batch in a payload. Unknown events and fields are left out. Raises `MalformedBatch`.

    A stored event that cannot be understood is left out and counted: that only makes the replica look colder. A removal
    must be understood, or the replica would look warmer than it is.
    """
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise MalformedBatch(f"a payload of {len(payload)} bytes")
    try:
        batch = _decode(payload)
    except (ValueError, RecursionError) as error:  # msgspec's are of these
        raise MalformedBatch("the payload is not msgpack") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise MalformedBatch("the payload is not a list of a time and events")
    events: list[KvEvent] = []
    generation: str | None = None
    num_refused = 0
    for raw in batch[1]:
        kind, fields = _fields(raw)
        if generation is None and isinstance(fields.get("generation"), str):
            generation = fields["generation"][:64]
        try:
            event = _READERS[kind](fields) if kind in _READERS else None
        except _NOT_UNDERSTOOD as error:
            if kind == "BlockRemoved":
                raise MalformedBatch("a removal cannot be understood") from error
            num_refused += 1
            continue
        if event is not None:
            events.append(event)
    return KvBatch(sequence, tuple(events), generation, num_refused)


def read_end(payload: bytes) -> End:
    """What the end of an answer says. Never raises: other engines say nothing."""
    try:
        generation, number = _decode(payload) if payload else (None, None)
    except (TypeError, ValueError, RecursionError):
        return End()
    is_ours = isinstance(generation, str) and isinstance(number, int) and number >= 0
    return End(generation, number) if is_ours else End()


_NOT_UNDERSTOOD = (TypeError, ValueError, OverflowError, AttributeError, LookupError)


def _fields(raw: Any) -> tuple[str, dict[str, Any]]:
    """An event's name and its fields by name, whichever form it has. Raises `MalformedBatch`."""
    if isinstance(raw, dict):
        kind = raw.get("type")
        if isinstance(kind, str):
            return kind, raw
    elif isinstance(raw, list) and raw and isinstance(raw[0], str):
        kind = raw[0]
        order = _STORED_FIELDS if kind == "BlockStored" else _REMOVED_FIELDS if kind == "BlockRemoved" else ()
        return kind, dict(zip(order, raw[1:], strict=False))
    raise MalformedBatch("an event without a name")


def _stored(fields: dict[str, Any]) -> BlocksStored | None:
    """Blocks that came, or None for those that routing has no use for."""
    get = fields.get
    medium = get("medium")
    if not _counts(fields, medium):
        return None
    hashes, size, parent = fields["block_hashes"], fields["block_size"], get("parent_block_hash")
    if not isinstance(size, int) or not 1 <= size <= MAX_BLOCK_SIZE:
        raise ValueError("a block size that cannot be")
    tokens = fields["token_ids"]
    if not isinstance(tokens, list) or not isinstance(hashes, list) or len(tokens) != size * len(hashes):
        raise ValueError("the tokens are not those of the blocks")
    adapter = get("lora_name") or ("" if get("lora_id") is None else f"#{int(fields['lora_id'])}")
    if not isinstance(adapter, str):
        raise TypeError("an adapter that is no name")
    extra_keys, salt = get("extra_keys"), get("cache_salt")
    extras: tuple[bytes, ...] | None = None
    if extra_keys:
        salt, extras = _extras(extra_keys, adapter, len(hashes), is_first=parent is None)
    return BlocksStored(
        hashes=tuple(map(_folded, hashes)),
        parent=None if parent is None else _folded(parent),
        packed=pack(tokens),
        block_size=size,
        salt=_digest(salt) if salt else "",
        adapter=adapter,
        is_host=medium in _HOST_MEDIA,
        extras=extras,
    )


def _removed(fields: dict[str, Any]) -> BlocksRemoved | None:
    medium = fields.get("medium")
    if not _counts(fields, medium):
        return None
    return BlocksRemoved(tuple(map(_folded, fields["block_hashes"])), medium in _HOST_MEDIA)


def _cleared(_: dict[str, Any]) -> AllCleared:
    return AllCleared()


_READERS: dict[str, Any] = {"BlockStored": _stored, "BlockRemoved": _removed, "AllBlocksCleared": _cleared}


def _counts(fields: dict[str, Any], medium: object) -> bool:
    """Whether the blocks are of the group that decides what is reused, and in a memory that is this replica's own."""
    if medium is not None and not isinstance(medium, str):
        raise TypeError("a medium that is no name")
    kind = fields.get("kv_cache_spec_kind")
    is_main = kind in _FULL_ATTENTION if kind is not None else fields.get("group_idx") in (None, 0)
    return is_main and (medium is None or medium == _DEVICE or medium in _HOST_MEDIA)


def _folded(engine_hash: Hash) -> int:
    if not isinstance(engine_hash, bytes | int):
        raise TypeError("a hash that is neither bytes nor a number")
    return fold(engine_hash)


def _extras(
    extra_keys: list[Any], adapter: str, num_blocks: int, *, is_first: bool
) -> tuple[str | None, tuple[bytes, ...] | None]:
    """(the salt, what else each block stands for or None) of `extra_keys`.

    The salt is the first bare string of the first block that is not the adapter's name.
    """
    salt: str | None = None
    found: list[bytes] = []
    for number in range(num_blocks):
        keys = extra_keys[number] if number < len(extra_keys) else None
        rest = [key for key in keys or () if key != adapter]
        if is_first and number == 0:
            salt = next((key for key in rest if isinstance(key, str)), None)
            if salt is not None:
                rest.remove(salt)
        found.append(_encode(rest) if rest else b"")
    return salt, tuple(found) if any(found) else None


def _digest(salt: str) -> str:
    """The digest of a salt that stands in clear; ours stand as digests already."""
    return salt if salt.startswith(SALT_MARK) else salt_digest(salt)
