"""Rendezvous hashing with bounded load: the home of a prompt that no replica holds.

Every gateway computes the same home from the prompt and the replicas' names alone; a replica that comes or goes moves
only its own prompts. A home with more than its share of the work is passed over for the next in the prompt's order.
"""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from cache_affinity.prefix import PrefixKey
from routing.replica import ROW_TOKENS, Replica

LOAD_FACTOR = 1.25  # a replica may have this many times the mean work of the others


def weight(seed: int, replica: Replica) -> int:
    """The replica's weight for a prompt whose `home` is `seed`; the largest is its home."""
    return xxh3_64_intdigest(replica.name_bytes, seed)


def heaviest(key: PrefixKey, replicas: Sequence[Replica]) -> int:
    """The index of the prompt's home among these."""
    weights = _weights(key.home, replicas)
    return weights.index(max(weights))


def works_of(replicas: Sequence[Replica], *, feels_bulk: bool) -> list[int]:
    """The work of each replica as a request feels it: people do not feel bulk that is left out of their steps."""
    if feels_bulk:
        return [replica.work_tokens for replica in replicas]
    return [replica.work_tokens - replica.hidden_work for replica in replicas]


def work_bounds(works: Sequence[int], factor: float = LOAD_FACTOR) -> list[float]:
    """The work in tokens above which each replica is passed over: `factor` times the mean of the others, plus one row.

    Of the others, so that a hot replica does not raise its own bar. At least one replica is within its bound.
    """
    if len(works) == 1:
        return [float("inf")]
    total, share = sum(works), factor / (len(works) - 1)
    return [(total - work) * share + ROW_TOKENS for work in works]


def place(key: PrefixKey, replicas: Sequence[Replica], works: Sequence[int]) -> tuple[int, int]:
    """(index of the chosen, index of the home): the heaviest replica within its bound, and the heaviest of all."""
    weights = _weights(key.home, replicas)
    home = weights.index(max(weights))
    bounds = work_bounds(works)
    if works[home] <= bounds[home]:
        return home, home
    within = [index for index, work in enumerate(works) if work <= bounds[index]]
    assert within, "the least loaded replica is always within its bound"
    return max(within, key=weights.__getitem__), home


def _weights(seed: int, replicas: Sequence[Replica]) -> list[int]:
    """`weight` of each, without a call for each."""
    return [xxh3_64_intdigest(replica.name_bytes, seed) for replica in replicas]
