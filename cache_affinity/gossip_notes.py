"""What gateways tell each other of routing, as values.

No text and no name is in them: prompts are borders of a chain that starts from their tenant's secret salt
(`prefix.py`), replicas and the installation are digests.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple


class Load(NamedTuple):
    """What one gateway has under way at a replica: requests by lane rank, prompt tokens not read of people and of bulk.

    Absolute, so that a later one replaces an earlier one.
    """

    replica: int
    interactive: int
    standard: int
    bulk: int
    tokens: int
    bulk_tokens: int


class Placement(NamedTuple):
    """A prompt was given to a replica: its borders from the start, and bytes from the start to each.

    `tokens`: of it that the replica is expected to read.
    """

    replica: int
    tokens: int
    hashes: tuple[int, ...]
    sizes: tuple[int, ...]


class Settlement(NamedTuple):
    """What one answer taught, as its gateway saw it. None: not reported.

    `total_bytes`, `prompt_tokens`: the prompt. `shadow_tokens`, `exact_tokens`: predicted, and told by events, to be
    cached; `cached_tokens`: as reported. `held`, `known`, `age_share`: see `Remembered`. `read_tokens`: to be read
    before the first token, those of others included; `uncached_tokens`: its own of these; `rows`: requests there when
    it came; `is_behind`: some of these were not read. `ttft_s`: from dispatch. `is_of_replica` False: it says nothing
    of the replica, only of the model's tokens.
    """

    replica: int
    total_bytes: int
    prompt_tokens: int | None
    shadow_tokens: int
    exact_tokens: int | None
    cached_tokens: int | None
    held: int
    known: int
    age_share: float
    read_tokens: int
    uncached_tokens: int
    rows: int
    ttft_s: float | None
    is_behind: bool
    is_of_replica: bool


class Estimate(NamedTuple):
    """A learned number and how many observations made it; of none it is a first guess."""

    value: float
    weight: int


class Estimates(NamedTuple):
    """All that is learned of a replica. `age_s`: seconds since the last observation.

    `ms_per_token`, `base_ms`: its time to first token. `confidence`, `exact_confidence`: in hits. `capacity`: logarithm
    of the factor of its kind. `bytes_per_token`: of its model.
    """

    replica: int
    age_s: int
    ms_per_token: Estimate
    base_ms: Estimate
    confidence: Estimate
    exact_confidence: Estimate
    capacity: Estimate
    bytes_per_token: Estimate


@dataclass(frozen=True, slots=True)
class Header:
    """Whose message it is. `installation`: whose secret the borders rest on. `gateway`: a run of a process.

    `seq`: from 1 on. `is_leaving`: the gateway has nothing under way any more and says no more. `tells_all_loads`:
    at replicas that are not in its loads it has nothing.
    """

    installation: int
    gateway: int
    seq: int
    is_leaving: bool = False
    tells_all_loads: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message, whole."""

    header: Header
    loads: tuple[Load, ...] = ()
    placements: tuple[Placement, ...] = ()
    settlements: tuple[Settlement, ...] = ()
    estimates: tuple[Estimates, ...] = ()


def installation_digest(server_secret: bytes) -> int:
    """32 bits that gateways with the same secret share and that tell nothing of it."""
    return int.from_bytes(blake2b(b"gossip", key=server_secret[:64], digest_size=4).digest(), "little")


def replica_digest(name: str, model: str, url: str, generation: int, place: str = "") -> int:
    """64 bits for one run of one replica. `place`: of an address that means something there alone."""
    parts = "\0".join((name, model, url, str(generation), place))
    return int.from_bytes(blake2b(parts.encode(), digest_size=8).digest(), "little")
