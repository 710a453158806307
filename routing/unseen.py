"""Work that other gateways have just given to replicas and that this one cannot know of yet. Pure.

Gateways that see the same loads choose the same replica; when requests come to several of them at once, all meet there.
So each learns how many requests of others usually go unheard around one of its own, and imagines them placed where they
are read first. How many of those of a replica came before its own is drawn by hash: so the gateways together fill the
replicas evenly though each is blind, and equal prompts are drawn alike everywhere.
"""

from collections import deque
from collections.abc import Sequence

from cache_affinity.prefix import PrefixKey
from routing.lease import Lease
from routing.replica import Replica
from routing.scorers import STEP_TOKENS, Row

UNHEARD_S = 0.05  # chosen: twice the time between messages, and the way
MOST = 8  # requests that are imagined at most
_SHARE = 0.05  # of one observation: about the last twenty requests count
_MAX_OWN = 256
_SPREAD = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: multiples of it are spread evenly


class Unseen:
    """`num`: requests of others that are imagined around one of ours, `tokens`: to be read for each."""

    __slots__ = ("_mean", "_num_heard", "_own", "num", "tokens")

    def __init__(self) -> None:
        self.num = 0
        self.tokens = 0.0
        self._mean = 0.0
        self._num_heard = 0
        self._own: deque[tuple[Lease, int]] = deque(maxlen=_MAX_OWN)

    def __repr__(self) -> str:
        return f"<Unseen {self._mean:.1f} requests of {self.tokens:.0f} tokens>"

    def placed(self, lease: Lease) -> None:
        """A request was given to a replica here."""
        self._own.append((lease, self._num_heard))

    def heard(self, replica: Replica, tokens: int, now: float) -> None:
        """Another gateway gave the replica a request with so many tokens to be read."""
        self.look(now)
        self._num_heard += 1
        self.tokens += _SHARE * (tokens - self.tokens)
        for lease, _ in self._own:
            if (
                lease.replica is replica
            ):  # one of the two was first, and what is learned of the time must not rest on it
                lease.tokens_ahead += tokens // 2
                lease.unread_ahead += tokens

    def look(self, now: float) -> None:
        """Learn from requests that were placed long enough ago."""
        own = self._own
        while own and own[0][0].begun_at <= now - UNHEARD_S:
            self._mean += _SHARE * (self._num_heard - own.popleft()[1] - self._mean)
        self.num = min(round(self._mean), MOST)

    def before(self, key: PrefixKey) -> int:
        """How many of them are taken to come before a prompt, drawn by its hash."""
        return ((key.hashes[-1] if key.hashes else 0) * _SPREAD >> 32 & 0xFFFF) * (self.num + 1) >> 16


def with_unseen(rows: Sequence[Row], num: int, tokens: float) -> list[Row]:
    """The candidates with `num` requests of others placed first, one after the other, each where it is read first."""
    num_steps, seen = 1 + tokens // STEP_TOKENS, list(rows)
    costs = [row[9] + (row[6] + tokens + row[7] * num_steps * row[10]) * row[8] for row in rows]
    counts: dict[int, int] = {}
    for _ in range(num):
        place = costs.index(min(costs))
        row = rows[place]
        costs[place] += (tokens + num_steps * row[10]) * row[8]
        counts[place] = counts.get(place, 0) + 1
    for place, count in counts.items():
        row = rows[place]
        work = count * (tokens + (1 + row[5] // STEP_TOKENS) * row[10])
        seen[place] = (
            *row[:6], row[6] + round(count * tokens), row[7] + count, *row[8:12], row[12] + work * row[8], row[13],
        )  # fmt: skip
    return seen
