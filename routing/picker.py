"""Which of the scored candidates gets the request: the cheapest one, and the home by hash among equally cheap ones.

The cheapest is the one that answers first, with a price on what the request costs the others there: reading the prompt
again delays whoever comes next. So a hit is given up only where waiting for it costs more than reading it twice: that
is how a hot prefix comes to lie on more replicas, and no other request is moved by it.
"""

from collections.abc import Sequence

from cache_affinity.prefix import PrefixKey
from routing.decision import Why
from routing.replica import Replica
from routing.ring import weight
from routing.scorers import Row, useful_tokens

OTHERS_SHARE = 1.5  # measured: what a read prompt token costs those who come after, in its own reading time
TIE_MS, TIE_SHARE = 2.0, 0.05  # prices this close are the same

Pick = tuple[int, Why, int]  # (index of the chosen, the rule, index of the one passed over or of the chosen)


def pick(key: PrefixKey, prompt_tokens: int, replicas: Sequence[Replica], rows: Sequence[Row]) -> Pick:
    """The choice among one or more replicas that may take the request. Pure: the same inputs, the same choice.

    `rows`: parallel to `replicas`. Passed over is the warmest, if another was chosen that holds less; else, where
    nobody holds anything useful, the home by hash.
    """
    share = OTHERS_SHARE
    prices = [row[12] + share * row[5] * row[8] for row in rows]
    least = min(prices)
    limit = least + TIE_MS + TIE_SHARE * least
    seed = key.home
    tied = [index for index, price in enumerate(prices) if price <= limit]
    chosen = tied[0]
    if len(tied) > 1:
        most = max([rows[index][2] for index in tied])
        tied = [index for index in tied if rows[index][2] == most]
        chosen = max(tied, key=lambda index: weight(seed, replicas[index])) if len(tied) > 1 else tied[0]
    return chosen, Why.WARM, chosen
