"""Our engine's KV events as vLLM writes them: maps in a msgpack array, so that whoever reads vLLM's stream reads ours.

Two differences that its readers do not notice: the salt in `extra_keys` is a digest (vLLM's stands there in clear), and
the first event of a batch has the `generation` of the process. Pure. Reading: engines/kv_event_wire.py.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from cache_affinity.kv_events import salt_digest
from engines.core.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

_encode = msgspec.msgpack.Encoder().encode


def write_batch(now_unix: float, events: Iterable[KvEvent], generation: str, *, has_int_hashes: bool = False) -> bytes:
    """Our events in vLLM's map form. `has_int_hashes`: the last 8 bytes of each as an unsigned number, as vLLM can."""
    maps = [_event_map(event, has_int_hashes=has_int_hashes) for event in events]
    if maps:
        maps[0]["generation"] = generation
    return _encode([now_unix, maps, 0])


def write_end(generation: str, next_sequence: int) -> bytes:
    """The payload behind `END_SEQUENCE`; vLLM's is empty and its readers do not look into it."""
    return _encode([generation, next_sequence])


def _event_map(event: KvEvent, *, has_int_hashes: bool) -> dict[str, Any]:
    match event:
        case BlockStored(hashes, parent, tokens, block_size, salt, medium):
            first = [salt_digest(salt)] if salt and parent is None else None
            return {
                "type": "BlockStored",
                "block_hashes": _named(hashes, has_int_hashes=has_int_hashes),
                "parent_block_hash": parent and _named((parent,), has_int_hashes=has_int_hashes)[0],
                "token_ids": tokens,
                "block_size": block_size,
                "lora_id": None,
                "medium": medium.value,
                "lora_name": None,
                "extra_keys": [first] + [None] * (len(hashes) - 1) if first else None,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        case BlockRemoved(hashes, medium):
            named = _named(hashes, has_int_hashes=has_int_hashes)
            return {"type": "BlockRemoved", "block_hashes": named, "medium": medium.value, "group_idx": 0}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


def _named(hashes: Sequence[bytes], *, has_int_hashes: bool) -> list[bytes | int]:
    return [int.from_bytes(one[-8:], "big") for one in hashes] if has_int_hashes else list(hashes)
