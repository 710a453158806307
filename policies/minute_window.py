"""How much was counted in the last 60 seconds: a sliding window of one-second buckets.

Sixty whole buckets and the current one are counted, so no 60 seconds, wherever they begin, ever hold more than was let
in; an amount leaves the count 60 to 61 seconds after it came. Constant memory, constant time.
"""

from math import floor

WINDOW_S = 60
BUCKETS = WINDOW_S + 1


class MinuteWindow:
    """Amounts by the second they came in. `now`: monotonic seconds; one in the past counts as the latest seen.

    `total`: of what `buckets` hold, as of the second `latest`; who counts in many windows at once reads them directly.
    """

    __slots__ = ("buckets", "latest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.latest = 0
        self.total = 0

    def add(self, amount: int, now: float) -> int:
        """Count an amount; the second it was counted in, for `give_back`."""
        second = int(now)  # `now` is not negative: as `floor`, and cheaper
        if second > self.latest:
            self.advance(second)
        self.buckets[self.latest % BUCKETS] += amount
        self.total += amount
        return self.latest

    def try_add(self, amount: int, most: int, now: float) -> int | None:
        """As `add` if no more than `most` is counted then, else None and nothing is."""
        second = int(now)
        if second > self.latest:
            self.advance(second)
        if self.total + amount > most:
            return None
        self.total += amount
        latest = self.latest
        self.buckets[latest % BUCKETS] += amount
        return latest

    def give_back(self, amount: int, second: int) -> None:
        """Forget an amount that was counted in `second`. Harmless if it has left the window already."""
        bucket = second % BUCKETS
        if self.latest - WINDOW_S <= second <= self.latest:
            amount = min(amount, self.buckets[bucket])
            self.buckets[bucket] -= amount
            self.total -= amount

    def restore(self, amount: int, second: int, now: float) -> None:
        """At least this much was counted in `second`, which may be long ago."""
        self.advance(floor(now))
        if self.latest - WINDOW_S <= second <= self.latest:
            bucket = second % BUCKETS
            self.total += max(0, amount - self.buckets[bucket])
            self.buckets[bucket] = max(amount, self.buckets[bucket])

    def used(self, now: float) -> int:
        """The amount counted at `now`. Does not mutate."""
        second = int(now)
        if second <= self.latest:
            return self.total
        if second - self.latest > WINDOW_S or not self.total:
            return 0
        total = self.total
        for gone in range(self.latest - WINDOW_S, second - WINDOW_S):
            total -= self.buckets[gone % BUCKETS]
        return total

    def standing(self, now: float) -> tuple[int, float]:
        """(`used`, `empty_in_s`)."""
        return self.used(now), self.empty_in_s(now)

    def at_most_in_s(self, most: int, now: float) -> float | None:
        """Seconds until no more than `most` is counted if nothing comes; None for a negative `most`: never."""
        if most < 0:
            return None
        counted = self.used(now)
        if counted <= most:
            return 0.0
        came = max(floor(now), self.latest) - WINDOW_S
        while counted > most:
            counted -= self.buckets[came % BUCKETS]
            came += 1
        return came + WINDOW_S - now

    def empty_in_s(self, now: float) -> float:
        """Seconds until nothing is counted if nothing comes; 0.0 when nothing is."""
        latest = self.latest
        if now < latest + 1 and self.buckets[latest % BUCKETS]:
            return latest + BUCKETS - now
        if not self.used(now):
            return 0.0
        oldest = max(floor(now), self.latest) - WINDOW_S
        for came in range(self.latest, oldest - 1, -1):
            if self.buckets[came % BUCKETS]:
                return came + BUCKETS - now
        return 0.0

    def advance(self, second: int) -> bool:
        """Empty the buckets that leave the window when `second` becomes the current one; False if that one is past."""
        steps = second - self.latest
        if steps <= 0:
            return not steps
        if steps > WINDOW_S:
            self.buckets = [0] * BUCKETS
            self.total = 0
        else:
            for entered in range(self.latest + 1, second + 1):
                bucket = entered % BUCKETS
                self.total -= self.buckets[bucket]
                self.buckets[bucket] = 0
        self.latest = second
        return True
