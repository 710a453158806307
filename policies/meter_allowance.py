"""One meter as one gateway of several has it: what it may still take, what it used and has not told, what it was told.

Amounts are noted under the second of the store's clock in which they were used or, never earlier, under the next one: a
use stays counted for at least its minute, and what is given back leaves the very second it was noted in. Times are
seconds on the lease's clock. Pure.
"""

from math import ceil

from policies.meter_reports import SECOND_OF_CALENDAR, WINDOW_S, MeterAsk, MeterGrant
from policies.meters import Meter

DEMAND_S = 1.0  # the use of the last one to two of these is what an allowance is sized by
AHEAD_OF_DEMAND = 2  # so many times the use of a second: a report is due every second, and one may be late
FIRST_REQUESTS = 4  # a first request asks for as much as so many like it would take
RETELL_S = 1.0  # batches from so long before the last answered report are told again to a store that lost them
GIVE_BACK_WITHIN_S = WINDOW_S - 5  # what leaves the window within a lease is not lent again before the store knows

MAX_BATCHES = 64  # a store that is away for long is told the oldest ones as one, which may count twice
NOT_EARLY_S = 0.1  # the store's clock is known here to a call's length; who comes again too early comes twice
CALLED_S = 0.02  # chosen: a report of another gateway takes a few milliseconds
Batch = tuple[int, float, tuple[tuple[int, int], ...]]  # number, when, (second, amount)


class Allowance:
    """`spare`: may be taken until `valid_until`. `shift`: from whole seconds here to the store's. Mutable."""

    __slots__ = (
        "_acknowledged",
        "_batches",
        "_demand",
        "_demand_before",
        "_demand_until",
        "_lacked",
        "_need",
        "_offset_s",
        "_resets_at",
        "_shift",
        "_told_free",
        "_told_used",
        "_untold",
        "away_since",
        "called_until",
        "dry_for",
        "dry_until",
        "is_listed",
        "is_sliding",
        "limit",
        "low",
        "meter",
        "num_takes",
        "spare",
        "told_at",
        "touched_at",
        "valid_until",
    )

    def __init__(self, meter: Meter, now: float, shift: int) -> None:
        self.meter = meter
        self.limit = meter.limit
        self.is_sliding = meter.is_sliding
        self.spare = 0
        self.valid_until = now
        self.num_takes = 0
        self.low = 0  # below it more is asked for
        self.away_since: float | None = None  # since when reports on it had no answer
        self.told_at = float("-inf")
        self.touched_at = now
        self.dry_until = float("-inf")  # until then `dry_for` or more cannot be had, as last told
        self.dry_for = 0
        self.called_until = float("-inf")  # until then the others, told to give back, have time to do so
        self.is_listed = False  # among those to report on regularly
        self._shift = shift
        self._offset_s = 0.0  # of the store's clock, as exact as a round trip is short
        self._told_used = 0
        self._told_free: int | None = None
        self._resets_at = 0
        self._untold: dict[int, int] = {}
        self._batches: list[Batch] = []
        self._acknowledged = 0
        self._need = 0
        self._lacked = 0
        self._demand = self._demand_before = 0
        self._demand_until = now + DEMAND_S

    @property
    def is_active(self) -> bool:
        """Whether the store has to hear of it regularly: something is held, wanted or not told."""
        return bool(
            self.spare or self._untold or self._need or self._demand or self._demand_before or self._unacknowledged
        )

    @property
    def is_short(self) -> bool:
        """Whether there is little left of the limit, so that what is given back may be waited for."""
        return self._told_free is not None and self._told_free * 8 < self.limit

    def relimit(self, meter: Meter, now: float) -> None:
        """The limit changed. What is held beyond it is given up at once, not when the store answers."""
        self.meter = meter
        self.limit = meter.limit
        self.spare = min(self.spare, self.remaining(meter.limit, now))
        self.dry_until = float("-inf")

    def count(self, amount: int, now: float, *, is_covered: bool) -> int:
        """Note an amount as used, out of the allowance or without cover; the second it is noted in."""
        second = int(now) + self._shift if self.is_sliding else SECOND_OF_CALENDAR
        untold = self._untold
        untold[second] = untold.get(second, 0) + amount
        if is_covered:
            self.spare -= amount
        if now >= self._demand_until:
            self._turn_demand(now)
        self._demand += amount
        self.touched_at = now
        return second

    def count_beyond(self, amount: int, now: float) -> None:
        """Note an amount that was used already, covered or not."""
        if now < self.valid_until:
            self.spare -= min(self.spare, amount)
        self.count(amount, now, is_covered=False)

    def give_back(self, amount: int, second: int, now: float, *, is_covered: bool) -> None:
        """What was noted in this second is less. What was covered may be taken again, if it will still count then."""
        if self.is_sliding and second < self._second(now) - WINDOW_S:
            return  # it has left the window by itself
        self._untold[second] = self._untold.get(second, 0) - amount
        is_lent_again = not self.is_sliding or second >= self._second(now) - GIVE_BACK_WITHIN_S
        if is_covered and is_lent_again and now < self.valid_until:
            self.spare += amount
        self.touched_at = now

    def lacks(self, amount: int) -> None:
        """A request lacked so much."""
        self._need = min(self._need or amount, amount)
        self._lacked += amount

    def is_open_for(self, amount: int, now: float) -> bool:
        """Whether it is not known that so much cannot be had now."""
        return now >= self.dry_until or amount < self.dry_for

    def used(self, now: float) -> int:
        """By all, as last told, and by this gateway since."""
        since = sum(self._untold_by_second(now).values())
        if self.is_sliding and now > self.told_at + WINDOW_S + 1:
            return max(0, since)
        return max(0, self._told_used + since)

    def remaining(self, limit: int, now: float) -> int:
        """What the limit still allows as far as is known here; what others hold unused may yet come back."""
        return max(0, limit - self.used(now))

    def resets_in_s(self, now: float, unix: float) -> float:
        """Seconds until nothing is counted if nothing comes."""
        if not self.used(now):
            return 0.0
        if not self.is_sliding:
            return max(0.0, self.meter.ends_at - unix)
        untold = max(self._untold_by_second(now), default=0)
        last = max(self._resets_at, untold + WINDOW_S + 1 if untold else 0)
        return max(0.0, last - self._offset_s - now)

    def is_over(self, now: float, unix: float) -> bool:
        """Whether it can be dropped: nobody uses it, and nothing here is unknown to the store or would be missed."""
        is_past = unix >= self.meter.ends_at if self.meter.ends_at else False
        return not (self.num_takes or self.is_active) and (is_past or now >= self.touched_at + WINDOW_S + 1)

    def part_without_store(self, num_gateways: int, unknown_parts: int, away_since: float | None, now: float) -> int:
        """What may be taken here while the store is away, less what was since."""
        since = [one for one in (self.away_since, away_since) if one is not None]
        is_window_past = self.is_sliding and now > min(since, default=now) + WINDOW_S + 1
        if is_window_past:
            part = self.limit // num_gateways
        elif self._told_free is not None and self.told_at >= min(since, default=now) - WINDOW_S:
            part = min(self._told_free, self.limit) // num_gateways
        else:
            part = self.limit // (num_gateways * unknown_parts)
        return part - sum(self._untold_by_second(now).values())

    def ask(self, number: int, now: float, *, is_called: bool, is_last: bool = False) -> MeterAsk:
        """What to tell in the report of this number; all that is untold is in it, and what is not wanted given up.

        `is_called`: others need what is held here. `is_last`: nothing is wanted any more.
        """
        if now >= self._demand_until:
            self._turn_demand(now)
        needed = max(self._need * FIRST_REQUESTS, self._lacked)
        wanted = min(self.limit, max(needed, AHEAD_OF_DEMAND * max(self._demand, self._demand_before)))
        if is_last:
            wanted = self._need = 0
        if now >= self.valid_until or is_called:
            self.spare = 0
        self.spare = min(self.spare, wanted)
        if self._untold:
            used = tuple((second, amount) for second, amount in self._untold.items() if amount)
            self._batches.append((number, now, used))
            self._untold = {}
            if len(self._batches) > MAX_BATCHES:
                self._join_oldest()
        told = _sum(*(noted for batch, _, noted in self._batches if batch > self._acknowledged))
        need, self._need, self._lacked = self._need, 0, 0
        return MeterAsk(self.meter, self.spare, wanted, need, self._acknowledged, tuple(told.items()))

    def take_in(self, ask: MeterAsk, grant: MeterGrant, sent_at: float, valid_until: float, offset_s: float) -> None:
        """The answer to what was asked. `offset_s`: what the store's clock is ahead of this one, at most."""
        self.away_since = None
        self._offset_s = offset_s
        self._shift = ceil(offset_s)  # so that a use is never noted too early, whatever the delay was
        self._acknowledge(grant.batch, sent_at)
        if grant.is_stale:
            return
        self.spare = max(0, self.spare + grant.granted)
        self.valid_until = valid_until
        self.low = min(ask.wanted // 4, self.spare // 2)
        self.told_at = sent_at
        self._told_used, self._told_free, self._resets_at = grant.used, grant.free, grant.resets_at
        self.called_until = sent_at + CALLED_S if grant.is_called else float("-inf")
        if grant.is_behind or grant.is_called or not ask.need or self.spare >= ask.need:
            self.dry_until = float("-inf")
        else:
            self.dry_for = ask.need
            self.dry_until = self._until(grant.retry_at, sent_at)

    def fail(self, ask: MeterAsk, sent_at: float) -> None:
        """Nothing was answered: what was needed still is."""
        self.away_since = sent_at if self.away_since is None else self.away_since
        if ask.need:
            self._need = min(self._need or ask.need, ask.need)

    def __repr__(self) -> str:
        return f"<Allowance {self.meter.key} spare={self.spare} limit={self.limit}>"

    @property
    def _unacknowledged(self) -> bool:
        return bool(self._batches) and self._batches[-1][0] > self._acknowledged

    def _until(self, retry_at: int, sent_at: float) -> float:
        """When to hope again, on the clock here."""
        return max(sent_at, retry_at - self._offset_s + NOT_EARLY_S) if retry_at else sent_at + 1.0

    def _acknowledge(self, batch: int, sent_at: float) -> None:
        """The store has what is told up to this batch; below what it had once, it has lost the later ones."""
        self._acknowledged = batch
        kept_from = sent_at - RETELL_S
        self._batches = [one for one in self._batches if one[0] > batch or one[1] >= kept_from]

    def _join_oldest(self) -> None:
        (_, _, first), (number, at, second), *later = self._batches
        self._batches = [(number, at, tuple(_sum(first, second).items())), *later]

    def _untold_by_second(self, now: float) -> dict[int, int]:
        """What was used here and is not known to be counted, in the window."""
        untold = self._untold
        if self._unacknowledged:
            batches = [noted for number, _, noted in self._batches if number > self._acknowledged]
            untold = _sum(tuple(untold.items()), *batches)
        if not self.is_sliding:
            return untold
        oldest = self._second(now) - WINDOW_S
        return {second: amount for second, amount in untold.items() if second >= oldest}

    def _second(self, now: float) -> int:
        return int(now) + self._shift if self.is_sliding else SECOND_OF_CALENDAR

    def _turn_demand(self, now: float) -> None:
        """A new stretch of demand begins."""
        self._demand_before = self._demand if now < self._demand_until + DEMAND_S else 0
        self._demand = 0
        self._demand_until = now + DEMAND_S


def _sum(*noted: tuple[tuple[int, int], ...]) -> dict[int, int]:
    total: dict[int, int] = {}
    for one in noted:
        for second, amount in one:
            total[second] = total.get(second, 0) + amount
    return total
