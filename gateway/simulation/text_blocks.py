"""Names for the blocks of a prompt that is given as text or as lengths: chained, so equal names mean equal prefixes."""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

from gateway.simulation.prompts import BYTES_PER_TOKEN

BLOCK_TOKENS = 16  # as vLLM's
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
_MASK = (1 << 60) - 1  # below the names of answers


def chained(before: int, part: bytes) -> int:
    """The name of what follows `before` (any number at the front) with this content."""
    return xxh3_64_intdigest(part, before) & _MASK


def names_of(segments: Iterable[bytes], tenant: str) -> tuple[int, ...]:
    """Of the full blocks of one tenant's prompt."""
    text = b"".join(segments)
    name, names = chained(0, tenant.encode()), []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        name = chained(name, text[start : start + BLOCK_BYTES])
        names.append(name)
    return tuple(names)
