"""Which of the scored candidates gets the request: the warm one, the faster one, or the home by hash.

A replica with a useful hit wins by predicted time to first token unless it is overloaded; a prompt nobody holds goes
by rendezvous hashing with bounded load. So affinity costs a hot replica its extra share and no other replica its own.
"""

from collections.abc import Sequence

from cache_affinity.prefix import PrefixKey
from routing.decision import Why
from routing.replica import ROW_TOKENS, Replica
from routing.ring import LOAD_FACTOR, place, weight, work_bounds, works_of
from routing.scorers import Row, useful_tokens

MEETING_SHARE = 0.25  # of its seats: so many requests may meet on a warm replica whatever the others have to do
FASTER_FACTOR = 1.25  # a warm replica is left for one that answers this much sooner,
FASTER_MS = 10.0  # and at least so much: leaving costs the fleet a second reading of the prompt
_TIE_MS, _TIE_SHARE = 1.0, 0.02  # scores this close are the same

Pick = tuple[int, Why, int]  # (index of the chosen, the rule, index of the one passed over or of the chosen)


def pick(
    key: PrefixKey, prompt_tokens: int, replicas: Sequence[Replica], rows: Sequence[Row], *, feels_bulk: bool = True
) -> Pick:
    """The choice among one or more replicas that may take the request. Pure: the same inputs, the same choice.

    `rows`: parallel to `replicas`.
    """
    field = _Field(key, replicas, rows, works_of(replicas, feels_bulk=feels_bulk))
    useful = useful_tokens(prompt_tokens)
    warm = [index for index, hit in enumerate(field.hits) if hit >= useful]
    if not warm:
        chosen, home = place(key, replicas, field.works, field.bounds)
        return chosen, Why.HOME if chosen == home else Why.NEXT_HOME, home
    bearable = field.not_overloaded(warm)
    if not bearable:
        return field.spill(warm)
    best = field.best(bearable)
    faster = field.within_bounds(below_ms=(field.scores[best] - FASTER_MS) / FASTER_FACTOR)
    if faster:
        return field.best(faster), Why.FASTER, best
    return best, Why.WARM, best


class _Field:
    """The candidates of one request, by index. `works`, `bounds`: see `ring`."""

    __slots__ = ("hits", "key", "replicas", "scores", "works")

    def __init__(self, key: PrefixKey, replicas: Sequence[Replica], rows: Sequence[Row], works: Sequence[int]) -> None:
        self.key = key
        self.replicas = replicas
        self.hits = [row[2] for row in rows]
        self.scores = [row[-1] for row in rows]
        self.works = works

    @property
    def bounds(self) -> list[float]:
        """Worked out when asked for: a warm replica that nobody outruns needs none."""
        return work_bounds(self.works)

    def not_overloaded(self, warm: Sequence[int]) -> list[int]:
        """Those of `warm` whose hit makes up for the work they have.

        Too much is `LOAD_FACTOR` times what the least loaded replica would have after reading the hit again, plus a
        part of the seats: below that, requests meeting on one replica are what affinity is for.
        """
        replicas, hits, works = self.replicas, self.hits, self.works
        least = min(works)
        slack = MEETING_SHARE * ROW_TOKENS
        return [
            index
            for index in warm
            if works[index] <= LOAD_FACTOR * (least + hits[index]) + slack * replicas[index].spec.seats
        ]

    def within_bounds(self, below_ms: float) -> list[int]:
        """Those that score below `below_ms` and have no more than their share of the work."""
        good = [index for index, score in enumerate(self.scores) if score < below_ms]
        if not good:
            return good
        works, bounds = self.works, self.bounds
        return [index for index in good if works[index] <= bounds[index]]

    def best(self, among: Sequence[int]) -> int:
        """The lowest score; of equal ones the largest hit, then the least work, then by hash."""
        if len(among) == 1:
            return among[0]
        scores, hits, replicas = self.scores, self.hits, self.replicas
        limit = min([scores[index] for index in among]) * (1 + _TIE_SHARE) + _TIE_MS
        tied = [index for index in among if scores[index] <= limit]
        if len(tied) == 1:
            return tied[0]
        most = max([hits[index] for index in tied])
        tied = [index for index in tied if hits[index] == most]
        least = min([self.works[index] for index in tied])
        tied = [index for index in tied if self.works[index] == least]
        return max(tied, key=lambda index: weight(self.key.home, replicas[index]))

    def spill(self, warm: Sequence[int]) -> Pick:
        """Past the warm replicas, all overloaded: to the best of those that hold at least something, else by hash.

        The least loaded replica is not among the warm ones, or it would not be overloaded: there is somebody left.
        """
        passed = self.best(warm)
        holding = self.not_overloaded([index for index, hit in enumerate(self.hits) if hit > 0])
        if holding:
            return self.best(holding), Why.SPILLED, passed
        bounds = self.bounds
        for index in warm:
            bounds[index] = -1.0
        chosen, _ = place(self.key, self.replicas, self.works, bounds)
        return chosen, Why.SPILLED_HOME, passed
