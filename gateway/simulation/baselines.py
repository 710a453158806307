"""Rules that other routers choose by, in our own words, to be compared with. Each has its parameters.

`random`, `round_robin`, `least_loaded`; `bounded_load_hash`: consistent hashing with bounded loads over the head of the
prompt (Mirrokni et al. 2017; KubeAI); `longest_prefix_threshold`: the replica that was sent the longest prefix, where
that is long enough and the loads are not too uneven (SGLang's router); `additive`: a sum of weighted overlap and load,
in blocks to compute and hold (Dynamo's) or each normalised over the replicas (llm-d's and the inference gateway's).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Protocol

from xxhash import xxh3_64_intdigest

from gateway.simulation.baseline_view import BaselineView, SentBlocks
from gateway.simulation.recording import RecordedRequest

_RING_POINTS = 256  # of each replica, as KubeAI's default


class Baseline(Protocol):
    """A rule over one gateway's view; it keeps what it remembers of its own choices."""

    def choose(self, request: RecordedRequest) -> tuple[int, int]:
        """(number of the replica that the request goes to, blocks it should hit there)."""
        ...


class RandomReplica:
    """Any of them."""

    def __init__(self, view: BaselineView, rng: Random) -> None:
        self._view = view
        self._rng = rng

    def choose(self, request: RecordedRequest) -> tuple[int, int]:  # noqa: ARG002 - any will do
        """Whatever comes."""
        return self._rng.randrange(self._view.num_replicas), 0


class RoundRobin:
    """One after the other."""

    def __init__(self, view: BaselineView, rng: Random) -> None:
        self._num = view.num_replicas
        self._last = rng.randrange(self._num)

    def choose(self, request: RecordedRequest) -> tuple[int, int]:  # noqa: ARG002 - any will do
        """The next."""
        self._last = (self._last + 1) % self._num
        return self._last, 0


@dataclass(frozen=True, slots=True)
class LeastLoadedSettings:
    """`by_tokens`: load is prompt tokens that are not read, and requests among equals; else requests in flight."""

    by_tokens: bool = False


class LeastLoaded:
    """The one with the least load; among equals any."""

    def __init__(self, view: BaselineView, rng: Random, settings: LeastLoadedSettings) -> None:
        self._view = view
        self._rng = rng
        self._settings = settings

    def choose(self, request: RecordedRequest) -> tuple[int, int]:  # noqa: ARG002 - whatever it is
        """By what was sent and not answered."""
        view = self._view
        if not self._settings.by_tokens:
            return self._rng.choice(view.fewest()), 0
        least = min(load.unread_tokens for load in view.loads)
        found = [number for number, load in enumerate(view.loads) if load.unread_tokens == least]
        return self._rng.choice(view.fewest(found)), 0


@dataclass(frozen=True, slots=True)
class BoundedLoadSettings:
    """`prefix_tokens`: of the prompt's head, hashed; `load_factor`: times the mean load that a replica may have."""

    prefix_tokens: int = 1024
    load_factor: float = 1.25


class BoundedLoadHash:
    """The first replica on the ring, from the hash of the prompt's head on, that has no more than its share."""

    def __init__(self, view: BaselineView, rng: Random, settings: BoundedLoadSettings) -> None:  # noqa: ARG002
        self._view = view
        self._settings = settings
        self._ring = sorted(
            (xxh3_64_intdigest(f"{name}/{point}".encode()), number)
            for number, name in enumerate(view.names)
            for point in range(_RING_POINTS)
        )

    def choose(self, request: RecordedRequest) -> tuple[int, int]:
        """By hash and bound."""
        view, ring = self._view, self._ring
        num_blocks = max(1, self._settings.prefix_tokens // view.block_tokens)
        key = request.key.hashes[min(num_blocks, len(request.key.hashes)) - 1]
        total = sum(load.num_requests for load in view.loads)
        bound = ceil((total + 1) / view.num_replicas * self._settings.load_factor)
        start = bisect_left(ring, (key, 0))
        for step in range(len(ring)):
            number = ring[(start + step) % len(ring)][1]
            if view.loads[number].num_requests < bound:
                return number, 0
        raise AssertionError("the least loaded replica is always within the bound")


@dataclass(frozen=True, slots=True)
class LongestPrefixSettings:
    """`least_share`: of the prompt that must have been sent to a replica before for it to be chosen by that.

    Loads are too uneven when the most and the fewest requests differ by more than `uneven_by` and by the factor
    `uneven_times`: then the shortest queue is taken. `memory`: what is remembered of a replica, times its KV cache.
    """

    least_share: float = 0.5
    uneven_by: int = 32
    uneven_times: float = 1.1
    memory: float = 1.0


class LongestPrefixThreshold:
    """Prefix trees of what was sent where, and two thresholds."""

    def __init__(self, view: BaselineView, rng: Random, settings: LongestPrefixSettings) -> None:
        self._view = view
        self._rng = rng
        self._settings = settings
        self._sent = [SentBlocks(max(1, int(settings.memory * cache.num_blocks))) for cache in view.caches]

    def choose(self, request: RecordedRequest) -> tuple[int, int]:
        """By prefix where loads are even enough, else the shortest queue."""
        names = self._view.hittable(request)
        number, depth = self._pick(request, names)
        self._sent[number].note(request.blocks)
        return number, depth

    def _pick(self, request: RecordedRequest, names: Sequence[int]) -> tuple[int, int]:
        view, settings = self._view, self._settings
        requests = [load.num_requests for load in view.loads]
        most, fewest = max(requests), min(requests)
        if most - fewest > settings.uneven_by and most > settings.uneven_times * fewest:
            number = self._rng.choice(view.fewest())
            return number, self._sent[number].depth(names)
        depths = [sent.depth(names) for sent in self._sent]
        best = max(depths)
        if best * view.block_tokens > settings.least_share * request.prompt_tokens:
            longest = [number for number, depth in enumerate(depths) if depth == best]
            return self._rng.choice(view.fewest(longest)), best
        number = self._rng.choice(view.fewest())
        return number, depths[number]


@dataclass(frozen=True, slots=True)
class AdditiveSettings:
    """What is added up, and how overlap weighs against load, which weighs 1.

    `is_normalised`: overlap as a share of the prompt, load as the mean of requests, as a share of the most, and of KV
    used; else blocks to compute, those ahead included, and blocks held. `by_events`: overlap is what replicas really
    hold; else what was sent there.
    """

    overlap_weight: float = 1.0
    is_normalised: bool = False
    by_events: bool = True


class Additive:
    """A sum of weighted overlap and load."""

    def __init__(self, view: BaselineView, rng: Random, settings: AdditiveSettings) -> None:
        self._view = view
        self._rng = rng
        self._settings = settings
        self._sent = None if settings.by_events else [SentBlocks(cache.num_blocks) for cache in view.caches]

    def choose(self, request: RecordedRequest) -> tuple[int, int]:
        """The best sum; among equals any."""
        view = self._view
        names = view.hittable(request)
        sees = view.caches if self._sent is None else self._sent
        depths = [held.depth(names) for held in sees]
        costs = self._by_share(request, depths) if self._settings.is_normalised else self._by_blocks(request, depths)
        least = min(costs)
        number = self._rng.choice([number for number, cost in enumerate(costs) if cost == least])
        if self._sent is not None:
            self._sent[number].note(request.blocks)
        return number, depths[number]

    def _by_blocks(self, request: RecordedRequest, depths: Sequence[int]) -> list[float]:
        view, weight = self._view, self._settings.overlap_weight
        prompt, size = view.num_blocks(request), view.block_tokens
        return [
            weight * (load.unread_tokens / size + prompt - depth) + load.blocks + prompt
            for load, depth in zip(view.loads, depths, strict=True)
        ]

    def _by_share(self, request: RecordedRequest, depths: Sequence[int]) -> list[float]:
        view = self._view
        weight = self._settings.overlap_weight * view.block_tokens / request.prompt_tokens
        most = max(1, *(load.num_requests for load in view.loads))
        used = [load.blocks / cache.num_blocks for load, cache in zip(view.loads, view.caches, strict=True)]
        return [
            (load.num_requests / most + share) / 2 - weight * depth
            for load, share, depth in zip(view.loads, used, depths, strict=True)
        ]
