"""How much was counted in the last 60 seconds: a sliding window of one-second buckets.

Sixty whole buckets and the current one are counted, so no 60 seconds, wherever they begin, ever hold more than was let
in; an amount leaves the count 60 to 61 seconds after it came. Constant memory, constant time.
"""

from math import floor

WINDOW_S = 60
_BUCKETS = WINDOW_S + 1


class MinuteWindow:
    """Amounts by the second they came in. `now`: monotonic seconds; one in the past counts as the latest seen."""

    __slots__ = ("_buckets", "_latest", "_total")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._latest = 0
        self._total = 0

    def add(self, amount: int, now: float) -> int:
        """Count an amount; the second it was counted in, for `give_back`."""
        second = int(now)  # `now` is not negative: as `floor`, and cheaper
        if second > self._latest:
            self._advance(second)
        self._buckets[self._latest % _BUCKETS] += amount
        self._total += amount
        return self._latest

    def try_add(self, amount: int, most: int, now: float) -> int | None:
        """As `add` if no more than `most` is counted then, else None and nothing is."""
        second = int(now)
        if second > self._latest:
            self._advance(second)
        if self._total + amount > most:
            return None
        self._total += amount
        latest = self._latest
        self._buckets[latest % _BUCKETS] += amount
        return latest

    def give_back(self, amount: int, second: int) -> None:
        """Forget an amount that was counted in `second`. Harmless if it has left the window already."""
        bucket = second % _BUCKETS
        if self._latest - WINDOW_S <= second <= self._latest:
            amount = min(amount, self._buckets[bucket])
            self._buckets[bucket] -= amount
            self._total -= amount

    def restore(self, amount: int, second: int, now: float) -> None:
        """At least this much was counted in `second`, which may be long ago."""
        self._advance(floor(now))
        if self._latest - WINDOW_S <= second <= self._latest:
            bucket = second % _BUCKETS
            self._total += max(0, amount - self._buckets[bucket])
            self._buckets[bucket] = max(amount, self._buckets[bucket])

    def used(self, now: float) -> int:
        """The amount counted at `now`. Does not mutate."""
        second = int(now)
        if second <= self._latest:
            return self._total
        if second - self._latest > WINDOW_S or not self._total:
            return 0
        total = self._total
        for gone in range(self._latest - WINDOW_S, second - WINDOW_S):
            total -= self._buckets[gone % _BUCKETS]
        return total

    def standing(self, now: float) -> tuple[int, float]:
        """(`used`, `empty_in_s`), at the price of one of them when something was counted in this second."""
        latest = self._latest
        if now < latest + 1 and self._buckets[latest % _BUCKETS]:
            return self._total, latest + _BUCKETS - now
        return self.used(now), self.empty_in_s(now)

    def at_most_in_s(self, most: int, now: float) -> float | None:
        """Seconds until no more than `most` is counted if nothing comes; None for a negative `most`: never."""
        if most < 0:
            return None
        counted = self.used(now)
        if counted <= most:
            return 0.0
        came = max(floor(now), self._latest) - WINDOW_S
        while counted > most:
            counted -= self._buckets[came % _BUCKETS]
            came += 1
        return came + WINDOW_S - now

    def empty_in_s(self, now: float) -> float:
        """Seconds until nothing is counted if nothing comes; 0.0 when nothing is."""
        if not self.used(now):
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
