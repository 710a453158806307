"""What the router is asked about one request."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cache_affinity.kv_events import TokenChain
from cache_affinity.prefix import PrefixKey
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """One request, as far as its place is concerned. `model`: the resolved name, never an alias.

    `max_output_tokens`: an estimate, 0 if unknown. `excluded`: names of replicas already tried. `barred`: names of
    replicas that have no seat for this tenant now, whatever the others may take there. `labels`: (name, value) pairs
    that a replica must have, where the lane is pinned to some. `cache_domain`: whose prompts may meet in one cache with
    this one; empty: the project's alone. `tokens`: the prompt's, where they are known: then exact hits are looked up.
    `needs`: the surface that a replica must serve, where not all of the model do.
    """

    model: str
    key: PrefixKey
    lane: Lane
    project_id: str
    max_output_tokens: int = 0
    excluded: AbstractSet[str] = frozenset()
    barred: AbstractSet[str] = frozenset()
    labels: AbstractSet[tuple[str, str]] = frozenset()
    cache_domain: str = ""
    tokens: TokenChain | None = None
    needs: str = ""
