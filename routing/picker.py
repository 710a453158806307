"""Which of the scored candidates gets the request: the cheapest one, and the home by hash among equally cheap ones.

The cheapest is the one that answers first, with a price on what the request costs others: reading a prompt again delays
whoever comes next, the more of them the more are waiting, and a replica with far more requests than the others slows
them all. So a hit is given up only where waiting costs more than reading the prompt twice, and more than that where the
pool is busy. That is how a hot prefix comes to lie on more replicas, and a request that is moved moves no other.
"""

from collections.abc import Sequence

from cache_affinity.fusion import LEAST_TOKENS
from cache_affinity.prefix import PrefixKey
from routing.decision import Why
from routing.replica import ROW_TOKENS, Replica
from routing.ring import heaviest, place, works_of
from routing.scorers import Row, useful_tokens
from routing.usual import Usual

MEETING_SHARE = 0.125  # of its seats: so many requests may meet on a replica whatever the others have to do,
CROWD_FACTOR = 1.25  # and so many times as many as the replica with fewest has; beyond that it is crowded,
CROWD_TOKENS = 128  # and n further requests count like a prompt of n² times this many tokens; measured
TIE_MS, TIE_SHARE = 2.0, 0.05  # prices this close are the same

Pick = tuple[int, Why, int]  # (index of the chosen, the rule, index of the one passed over or of the chosen)


def pick(
    key: PrefixKey, prompt_tokens: int, replicas: Sequence[Replica], rows: Sequence[Row], usual: Usual, *,
    feels_bulk: bool = True,
) -> Pick:  # fmt: skip
    """The choice among one or more replicas that may take the request. Pure: the same inputs, the same choice.

    `rows`: parallel to `replicas`. `usual`: of their model. Of equally cheap replicas those that hold most; of these,
    if it is of use, the one with the least work, else the prompt's home within its share of the work.
    """
    hits, useful = [row[2] for row in rows], useful_tokens(prompt_tokens)
    most_held = max(hits)
    is_useful = most_held >= useful
    prices, is_crowded = prices_of(replicas, rows, usual.others_ms(rows), counts_hits=is_useful)
    least = min(prices)
    limit = least + TIE_MS + TIE_SHARE * least
    tied = [index for index, price in enumerate(prices) if price <= limit]
    if len(tied) > 1 and is_useful:
        most = max([hits[index] for index in tied])
        tied = [index for index in tied if hits[index] == most]
    if hits[tied[0]] >= useful:
        chosen = tied[0] if len(tied) == 1 else _least_loaded(key, replicas, rows, tied)
        if hits[chosen] >= most_held - LEAST_TOKENS:
            return chosen, Why.WARM, chosen
    else:
        chosen, home = _within_share(key, replicas, rows, tied, feels_bulk=feels_bulk)
        if not is_useful:
            home = home if len(tied) == len(rows) else heaviest(key, replicas)
            return chosen, Why.HOME if chosen == home else Why.NEXT_HOME, home
    warmest = hits.index(most_held)
    if not is_crowded:
        return chosen, Why.CHEAPER, warmest
    crowding = _crowding(replicas[warmest], rows[warmest], min([row[7] for row in rows]))
    is_for_crowd = prices[warmest] - crowding <= prices[chosen]
    return chosen, Why.REPLICATED if is_for_crowd else Why.CHEAPER, warmest


def prices_of(
    replicas: Sequence[Replica], rows: Sequence[Row], others_ms: float, *, counts_hits: bool = True
) -> tuple[list[float], bool]:
    """(the price of each candidate in milliseconds, whether some replica is crowded).

    `others_ms`: for each prompt token that is read, wherever it is.
    """
    prices = [row[12] + others_ms * row[5] for row in rows]
    if not counts_hits:
        prices = [price + row[2] * (row[8] + others_ms) for price, row in zip(prices, rows, strict=True)]
    flying = [row[7] for row in rows]
    most, least = max(flying), min(flying)
    if most <= CROWD_FACTOR * least + 1:
        return prices, False
    added = [_crowding(replica, row, least) for replica, row in zip(replicas, rows, strict=True)]
    return [price + more for price, more in zip(prices, added, strict=True)], any(added)


def _crowding(replica: Replica, row: Row, least: int) -> float:
    """The price of being one of too many there, in milliseconds. `least`: requests of the replica that has fewest."""
    excess = row[7] - CROWD_FACTOR * least - MEETING_SHARE * replica.spec.seats
    return excess * excess * CROWD_TOKENS * row[8] if excess > 0 else 0.0


def _least_loaded(key: PrefixKey, replicas: Sequence[Replica], rows: Sequence[Row], among: list[int]) -> int:
    """The one with the least to do; of equals by hash."""
    works = [(rows[index][6] + ROW_TOKENS * rows[index][7]) * rows[index][8] for index in among]
    least = min(works)
    least_loaded = [index for index, work in zip(among, works, strict=True) if work == least]
    if len(least_loaded) == 1:
        return least_loaded[0]
    return least_loaded[heaviest(key, [replicas[index] for index in least_loaded])]


def _within_share(
    key: PrefixKey, replicas: Sequence[Replica], rows: Sequence[Row], among: list[int], *, feels_bulk: bool
) -> tuple[int, int]:
    """(the chosen, the home) among these: the home, or the next in the prompt's order with no more than its share.

    Work is compared in time: of two kinds of engine the faster one's share is larger.
    """
    if len(among) == 1:
        return among[0], among[0]
    some = replicas if len(among) == len(replicas) else [replicas[index] for index in among]
    works = works_of(some, feels_bulk=feels_bulk)
    ms = rows[among[0]][8]
    if any(rows[index][8] != ms for index in among):
        works = [round(work * rows[index][8] / ms) for work, index in zip(works, among, strict=True)]
    chosen, home = place(key, some, works)
    return among[chosen], among[home]
