"""What others may know of a worker's KV cache: which blocks came and went, in order, and where they lie.

The words and their meaning are vLLM's, so that whoever reads its events can read ours. Values and their log; nothing
here knows sockets or encodings. A block is named by its digest (`blocks.hash_block`); it is *stored* in a medium from
when its first copy there can be hit until its last copy there is gone.
"""

from dataclasses import dataclass
from enum import Enum


class Medium(Enum):
    """Where a block lies; the value is its name on the wire."""

    DEVICE = "GPU"  # vLLM's word for the engine's own KV memory, whatever the device is
    HOST = "CPU"


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one prefix can be hit. `parent`: the block before the first, None at the very front.

    `tokens`: of all of them, `block_size` each. `salt`: the tenant's, in clear; it is part of the names.
    """

    hashes: tuple[bytes, ...]
    parent: bytes | None
    tokens: tuple[int, ...]
    block_size: int
    salt: str
    medium: Medium


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """These blocks cannot be hit in `medium` any more; children come before their parents."""

    hashes: tuple[bytes, ...]
    medium: Medium


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be hit in any medium."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
