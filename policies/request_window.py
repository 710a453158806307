"""How many requests were admitted in the last 60 seconds: a sliding window of one-second buckets.

Sixty whole buckets and the current one are counted, so no 60 seconds, wherever they begin, ever hold more than the
limit; a request leaves the count 60 to 61 seconds after it came. Constant memory, constant time.
"""

from math import floor

WINDOW_S = 60
_BUCKETS = WINDOW_S + 1


class RequestWindow:
    """Requests by the second they came in. `now`: monotonic seconds; one in the past counts as the latest seen."""

    __slots__ = ("_buckets", "_latest", "_total")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._latest = 0
        self._total = 0

    def admit(self, now: float) -> int:
        """Count one request; the second it was counted in, for `take_back`."""
        self._advance(floor(now))
        self._buckets[self._latest % _BUCKETS] += 1
        self._total += 1
        return self._latest

    def take_back(self, second: int) -> None:
        """Forget one request that was counted in `second`. Harmless if it has left the window already."""
        bucket = second % _BUCKETS
        if self._latest - WINDOW_S <= second <= self._latest and self._buckets[bucket]:
            self._buckets[bucket] -= 1
            self._total -= 1

    def num_admitted(self, now: float) -> int:
        """Requests counted at `now`. Does not mutate."""
        second = floor(now)
        if second <= self._latest:
            return self._total
        if second - self._latest > WINDOW_S or not self._total:
            return 0
        left = range(self._latest - WINDOW_S, second - WINDOW_S)
        return self._total - sum(self._buckets[gone % _BUCKETS] for gone in left)

    def below_in_s(self, limit: int, now: float) -> float | None:
        """Seconds until fewer than `limit` are counted if none comes; None for a limit of 0: never."""
        if limit <= 0:
            return None
        counted = self.num_admitted(now)
        if counted < limit:
            return 0.0
        came = max(floor(now), self._latest) - WINDOW_S
        while counted >= limit:
            counted -= self._buckets[came % _BUCKETS]
            came += 1
        return came + WINDOW_S - now

    def empty_in_s(self, now: float) -> float:
        """Seconds until nothing is counted if none comes; 0.0 when nothing is."""
        if not self.num_admitted(now):
            return 0.0
        oldest = max(floor(now), self._latest) - WINDOW_S
        for came in range(self._latest, oldest - 1, -1):
            if self._buckets[came % _BUCKETS]:
                return came + _BUCKETS - now
        return 0.0

    def _advance(self, second: int) -> None:
        """Empty the buckets that leave the window when `second` becomes the current one."""
        steps = second - self._latest
        if steps <= 0:
            return
        if steps > WINDOW_S:
            self._buckets = [0] * _BUCKETS
            self._total = 0
        else:
            for entered in range(self._latest + 1, second + 1):
                bucket = entered % _BUCKETS
                self._total -= self._buckets[bucket]
                self._buckets[bucket] = 0
        self._latest = second
