"""Limits of one gateway that are counted in one step: nearly always all of them have room, and nothing need be decided.

Where one has none, or a clock went back, nothing is counted and `None` says so; who asked then asks each meter by
itself (`SoleMeters.take`), which tells what is wrong. Both count in the same windows, so they may be mixed freely.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from policies.meters import UNLIMITED, Meter, Moment, Standing
from policies.minute_window import BUCKETS, WINDOW_S
from policies.sole_windows import MinuteCount, PeriodCount

if TYPE_CHECKING:
    from policies.sole_meters import SoleMeters

Minutes = tuple[tuple[MinuteCount, int, int], ...]  # a window, what it may hold, which of a request's amounts it counts
Amounts = tuple[int, int, int]  # of one request: money, tokens of the organisation, tokens of the project
Periods = tuple[tuple[PeriodCount, int, int], ...]


class BundleTake(Struct, gc=False):
    """What one request counts in a bundle's windows. Ends once: its holder lets go of it. `second`: of the minutes."""

    bundle: "SoleBundle"
    amounts: Amounts
    second: int

    def correct(self, actual: Amounts, moment: Moment) -> None:
        """As `Take.correct`, of every window: what is more counts from now, what is less since it was taken."""
        self.bundle.correct(self, actual, moment)

    def undo(self, moment: Moment) -> None:
        """As if it had never been counted."""
        self.bundle.correct(self, (0, 0, 0), moment)


class SoleBundle:
    """Meters of `SoleMeters` that a request counts in together. `which`: for each, the place of its amount."""

    __slots__ = ("_meters", "_minutes", "_of", "_periods", "_version")

    def __init__(self, of: Sequence[tuple[Meter, int]], meters: "SoleMeters") -> None:
        """Made by `SoleMeters.bundle`. Finds its windows at its first use, and again whenever some were dropped."""
        self._of = of
        self._meters = meters
        self._version = -1
        self._minutes: Minutes = ()
        self._periods: Periods = ()

    def try_add(self, amount: int, moment: Moment) -> int | None:
        """Count the same amount in every minute and let it be; the second for `give_back`. None: there is no room."""
        if self._version != self._meters.version:
            self._open(moment)
        second = int(moment.now)
        bucket = second % BUCKETS
        num_done = 0
        for minute, most, _ in self._minutes:
            if minute.latest != second and not minute.advance(second):
                break
            total = minute.total + amount
            if total > most:
                break
            minute.total = total
            minute.buckets[bucket] += amount
            num_done += 1
        else:
            return second
        for minute, _, _ in self._minutes[:num_done]:
            minute.give_back(amount, second)
        return None

    def give_back(self, amount: int, second: int) -> None:
        """As if `try_add` had not been called in that second. Harmless when its minute is over."""
        for minute, _, _ in self._minutes:
            minute.give_back(amount, second)

    def take(self, amounts: Amounts, moment: Moment) -> BundleTake | None:
        """Count of every meter its amount, or of none if one has no room for it."""
        if self._version != self._meters.version:
            self._open(moment)
        now = moment.now
        second = int(now)
        for period, most, which in self._periods:
            if period.used + amounts[which] > most:
                return None
        bucket = second % BUCKETS
        num_done = 0
        for minute, most, which in self._minutes:
            if minute.latest != second and not minute.advance(second):
                break
            amount = amounts[which]
            total = minute.total + amount
            if total > most:
                break
            minute.total = total
            minute.buckets[bucket] += amount
            num_done += 1
        else:
            for period, _, which in self._periods:
                period.used += amounts[which]
                period.touched_at = now
            self._meters.num_bundled += 1
            return BundleTake(self, amounts, second)
        for minute, _, which in self._minutes[:num_done]:
            minute.give_back(amounts[which], second)
        return None

    def correct(self, take: BundleTake, actual: Amounts, moment: Moment) -> None:
        """The end of a take, called once."""
        meters = self._meters
        meters.num_bundled -= 1
        was_dropped = self._version != meters.version
        if was_dropped:
            self._open(moment)
        second = take.second
        (money, above, project), (held_money, held_above, held_project) = actual, take.amounts
        more_of = (money - held_money, above - held_above, project - held_project)
        for minute, _, which in self._minutes:
            more = more_of[which]
            if more > 0:
                minute.add(more, moment.now)
            elif more and minute.latest - WINDOW_S <= second:
                minute.total += more
                minute.buckets[second % BUCKETS] += more
        for period, _, which in self._periods:
            period.used += more_of[which]
            if was_dropped and period.used < 0:
                period.used = 0  # what it was taken from is forgotten

    def has_room(self, moment: Moment) -> bool:
        """Whether anything at all is left of every limit."""
        if self._version != self._meters.version:
            self._open(moment)
        for minute, most, _ in self._minutes:
            if minute.total >= most and minute.used(moment.now) >= most:
                return False
        return all(period.used < most for period, most, _ in self._periods)

    def strictest(self, moment: Moment) -> Standing | None:
        """As `quota_standing.strictest`; minutes are told before days where both say the same."""
        if self._version != self._meters.version:
            self._open(moment)
        now = moment.now
        second = int(now)
        found: MinuteCount | PeriodCount | None = None
        limit, least = 0, UNLIMITED
        for minute, most, _ in self._minutes:
            used = minute.total if minute.latest == second else minute.used(now)
            left = most - used if used < most else 0
            if left < least or (left == least and found and minute.reset_s(moment) > found.reset_s(moment)):
                found, limit, least = minute, most, left
        for period, most, _ in self._periods:
            used = period.used
            left = most - used if used < most else 0
            if left < least or (left == least and found and period.reset_s(moment) > found.reset_s(moment)):
                found, limit, least = period, most, left
        return None if found is None else Standing(limit, least, found.reset_s(moment))

    def __len__(self) -> int:
        return len(self._of)

    def _open(self, moment: Moment) -> None:
        self._version = self._meters.version
        found = [(self._meters.window(meter, moment), meter.limit, which) for meter, which in self._of]
        self._minutes = tuple((one, most, which) for one, most, which in found if isinstance(one, MinuteCount))
        self._periods = tuple((one, most, which) for one, most, which in found if isinstance(one, PeriodCount))
