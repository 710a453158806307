"""What engines tell of their KV caches, in one vocabulary, and the names we give to their blocks.

An engine's own block hash is opaque: it depends on algorithm, seed and settings, so it serves to find a parent and to
apply a removal, never to route. We name a block by a chain of hashes of its tokens, which anybody with the tokens can
make. The chain starts from the digest of the tenant's salt, so equal prompts of two tenants share no name. Pure values;
knows no wire format and no replica.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct
from xxhash import xxh3_64_intdigest

# Two digits of a Python int, hence 32 bytes instead of 48: there are millions. A collision only misroutes a request.
HASH_MASK = (1 << 60) - 1
SALT_MARK = "salt/"  # vLLM refuses a slash in a salt, so a digest is never taken for one
_ROOTS = 4096  # tenants times block sizes whose start is remembered
_BIG_ENDIAN = sys.byteorder == "big"


class BlocksStored(Struct, frozen=True, gc=False):
    """Consecutive blocks of one prefix can be hit now.

    `hashes`: the engine's, folded. `parent`: of the block before the first, None at the front. `packed`: the tokens of
    all of them as little-endian u32, `block_size` a block. `salt`: its digest, empty without. `adapter`: a LoRA's name.
    `is_host`: in the host's memory, else the device's. `extras`: what besides tokens a block stands for, one a block,
    empty where nothing; None: nowhere.
    """

    hashes: tuple[int, ...]
    parent: int | None
    packed: bytes
    block_size: int
    salt: str = ""
    adapter: str = ""
    is_host: bool = False
    extras: tuple[bytes, ...] | None = None


class BlocksRemoved(Struct, frozen=True, gc=False):
    """These blocks cannot be hit in this memory any more."""

    hashes: tuple[int, ...]
    is_host: bool = False


class AllCleared(Struct, frozen=True, gc=False):
    """Nothing can be hit in any memory."""


KvEvent = BlocksStored | BlocksRemoved | AllCleared


@dataclass(frozen=True, slots=True)
class KvBatch:
    """Events that an engine published together. `generation`: names the life of its process, None if it does not say.

    `num_refused`: events that could not be used and do no harm when left out.
    """

    sequence: int
    events: tuple[KvEvent, ...]
    generation: str | None = None
    num_refused: int = 0

    @property
    def is_snapshot(self) -> bool:
        """Whether it begins by clearing everything, so that what came before does not matter."""
        return bool(self.events) and isinstance(self.events[0], AllCleared)


def fold(engine_hash: bytes | int) -> int:
    """An engine's block hash as the index keeps it: 60 bits of its last 8 bytes, whichever way it was written."""
    number = engine_hash if isinstance(engine_hash, int) else int.from_bytes(engine_hash[-8:], "big")
    return number & HASH_MASK


@lru_cache(_ROOTS)
def salt_digest(salt: str) -> str:
    """What stands for a salt in events: who reads them learns who shares a cache, and not the secret that lets them."""
    digest = blake2b(salt.encode(errors="surrogatepass"), digest_size=16, person=b"kv-event-salt").hexdigest()
    return SALT_MARK + digest


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian u32. Raises `OverflowError` or `TypeError` for what is no token id."""
    packed = array("I", tokens)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


@lru_cache(_ROOTS)
def root(salt: str, adapter: str, block_size: int) -> int:
    """Where the chain of one tenant (its salt's digest), adapter and block size starts."""
    named = f"{block_size},{len(adapter)},{adapter}{salt}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(named, digest_size=8, person=b"kv-block-chain").digest(), "big") & HASH_MASK


def names(chain: int, packed: bytes, block_size: int, extras: tuple[bytes, ...] | None = None) -> list[int]:
    """Our names of the full blocks of `packed`, which follow the block (or root) called `chain`."""
    width = block_size * 4
    found: list[int] = []
    for number, start in enumerate(range(0, len(packed) - width + 1, width)):
        if extras is not None and extras[number]:
            chain = xxh3_64_intdigest(extras[number], chain)
        chain = xxh3_64_intdigest(packed[start : start + width], chain) & HASH_MASK
        found.append(chain)
    return found


class TokenChain:
    """The tokens of one prompt of one tenant, and the names of its full blocks, for any block size.

    `salt`: the digest of the tenant's salt, empty without. Names are made once a block size.
    """

    __slots__ = ("_names", "adapter", "num_tokens", "packed", "salt")

    def __init__(self, packed: bytes, *, salt: str = "", adapter: str = "") -> None:
        """`packed`: see `pack`."""
        self.packed = packed
        self.num_tokens = len(packed) // 4
        self.salt = salt
        self.adapter = adapter
        self._names: dict[int, list[int]] = {}

    def __repr__(self) -> str:
        return f"<TokenChain of {self.num_tokens} tokens>"

    def names(self, block_size: int) -> list[int]:
        """The names of the full blocks that a cache can answer: not the one with the last token, which is computed."""
        found = self._names.get(block_size)
        if found is None:
            num_blocks = max(0, self.num_tokens - 1) // block_size
            head = self.packed[: num_blocks * block_size * 4]
            found = self._names[block_size] = names(root(self.salt, self.adapter, block_size), head, block_size)
        return found
