"""Recorded requests for a simulation of routing: when each came, how long it was, and whose blocks it shares.

A prompt is its number of tokens and the names of its full blocks; equal names mean an equal prompt up to there. So no
text is needed, and none is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from cache_affinity.prefix import PrefixKey
from gateway.simulation.prompts import BYTES_PER_TOKEN

HOME_BLOCKS = 2  # as `prefix_key`'s two segments: what all turns of a conversation share, as far as blocks can tell


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """`arrival_s`: since the first one. `blocks`: names of its full blocks.

    `key`: what a gateway routes by.
    """

    number: int
    tenant: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    key: PrefixKey


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """`oracle_hit_tokens`: what one infinite cache shared by all would hit. `duration_s`: from first to last arrival.

    `distinct_tokens`: the rest of the prompts; KV for so many holds all of them.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    oracle_hit_tokens: int
    duration_s: float

    @property
    def distinct_tokens(self) -> int:
        """Prompt tokens that must be read once, whatever the cache: the working set."""
        return self.prompt_tokens - self.oracle_hit_tokens


@dataclass(frozen=True, slots=True)
class Recording:
    """In order of arrival, at least one. `block_tokens`: of every block."""

    requests: tuple[RecordedRequest, ...]
    block_tokens: int

    def facts(self) -> TraceFacts:
        """What any simulation of it is held against."""
        size, known = self.block_tokens, set[int]()
        prompt = output = hit = 0
        for request in self.requests:
            prompt += request.prompt_tokens
            output += request.output_tokens
            depth = 0
            for name in request.blocks[: (request.prompt_tokens - 1) // size]:
                if name not in known:
                    break
                depth += 1
            hit += depth * size
            known.update(request.blocks)
        last = self.requests[-1].arrival_s - self.requests[0].arrival_s
        return TraceFacts(len(self.requests), prompt, output, hit, last)

    def first(self, num_requests: int) -> "Recording":
        """Its first requests alone."""
        return Recording(self.requests[:num_requests], self.block_tokens)


class BlockKeys:
    """Routing keys of prompts that are known by their blocks: a border after each, as after a message."""

    def __init__(self, block_tokens: int) -> None:
        self._block_bytes = block_tokens * BYTES_PER_TOKEN
        self._hashes: dict[int, int] = {}

    def key(self, names: Sequence[int], prompt_tokens: int) -> PrefixKey:
        """Of one prompt. `names`: of all its blocks; the last, which may not be full, ends where the prompt does."""
        hashes = tuple(map(self._hash, names))
        total_bytes, size = prompt_tokens * BYTES_PER_TOKEN, self._block_bytes
        sizes = (*range(size, size * len(hashes), size), total_bytes)
        return PrefixKey(hashes, sizes, total_bytes, hashes[min(HOME_BLOCKS, len(hashes)) - 1])

    def _hash(self, block: int) -> int:
        found = self._hashes.get(block)
        if found is None:
            found = self._hashes[block] = xxh3_64_intdigest(block.to_bytes(16, "little"))
        return found
