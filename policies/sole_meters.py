"""Meters of one gateway that counts alone: exact, in memory, in one step each.

What was used before the process started is told by `restore` and found again when a meter is first used. Not for use
from several threads.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from policies.meters import Counted, Meter, Moment, Short
from policies.minute_window import WINDOW_S
from policies.sole_bundle import SoleBundle
from policies.sole_windows import MinuteCount, PeriodCount

KEEP_S = 7200.0  # chosen: a clock that is wrong for less gives nobody a second allowance when it is set right
HISTORY_S = 33 * 86400  # longer than any month


class Used(NamedTuple):
    """An amount counted earlier. `of`: as of a meter. `at`: Unix second, or the start of the stretch it was used in."""

    of: str
    counted: Counted
    at: float
    amount: int


class _MinuteTake:
    __slots__ = ("_amount", "_minute", "_second")

    def __init__(self, minute: MinuteCount, amount: int, second: int) -> None:
        self._minute: MinuteCount | None = minute
        self._amount = amount
        self._second = second

    def correct(self, actual: int, moment: Moment) -> None:
        """What is more was used since, so it counts from now; what is less counts back to where it was taken."""
        minute = self._minute
        if minute is None:
            return
        self._minute = None
        minute.num_takes -= 1
        more = actual - self._amount
        if more > 0:
            minute.add(more, moment.now)
        elif more:
            minute.give_back(-more, self._second)

    def undo(self, moment: Moment) -> None:
        """As if it had never been counted."""
        self.correct(0, moment)


class _PeriodTake:
    __slots__ = ("_amount", "_period")

    def __init__(self, period: PeriodCount, amount: int) -> None:
        self._period: PeriodCount | None = period
        self._amount = amount

    def correct(self, actual: int, moment: Moment) -> None:  # noqa: ARG002  # counted in its own window, also later
        """The difference is counted in the window it was taken from."""
        period = self._period
        if period is not None:
            self._period = None
            period.num_takes -= 1
            period.used += actual - self._amount

    def undo(self, moment: Moment) -> None:
        """As if it had never been counted."""
        self.correct(0, moment)


class SoleMeters:
    """`Meters` that nobody shares. Bounded by the tenants that were active, and by `expire`."""

    def __init__(self) -> None:
        self._minutes: dict[str, MinuteCount] = {}
        self._periods: dict[str, PeriodCount] = {}
        self._history: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self.num_bundled = 0  # takes of bundles, not ended
        self.version = 0  # changes whenever windows are dropped, so that nobody counts on in one that nobody reads

    def bundle(self, of: Sequence[tuple[Meter, int]]) -> SoleBundle:
        """These meters in one step, each with the place of its amount."""
        return SoleBundle(of, self)

    def window(self, meter: Meter, moment: Moment) -> MinuteCount | PeriodCount:
        """Where a meter counts now; opened if it is not yet."""
        if meter.ends_at:
            return self._periods.get(meter.key) or self._open_period(meter)
        return self._minutes.get(meter.key) or self._open_minute(meter, moment)

    def take(self, meter: Meter, amount: int, moment: Moment) -> "_MinuteTake | _PeriodTake | Short":
        """Count an amount if the window has room for it."""
        most = meter.limit
        if meter.ends_at:
            period = self._periods.get(meter.key) or self._open_period(meter)
            if period.used + amount > most:
                return self._short(meter, amount, moment)
            period.used += amount
            period.touched_at = moment.now
            period.num_takes += 1
            return _PeriodTake(period, amount)
        minute = self._minutes.get(meter.key) or self._open_minute(meter, moment)
        second = minute.try_add(amount, most, moment.now)
        if second is None:
            return self._short(meter, amount, moment)
        minute.num_takes += 1
        return _MinuteTake(minute, amount, second)

    def remaining(self, meter: Meter, moment: Moment) -> tuple[int, float]:
        """(what is still allowed, seconds until the limit is whole again if nothing comes)."""
        most = meter.limit
        if meter.ends_at:
            period = self._periods.get(meter.key)
            used = self._known(meter) if period is None else period.used
            reset_s = meter.ends_at - moment.unix if used else 0.0
        else:
            used, reset_s = self._minute_as_known(meter, moment).standing(moment.now)
        return most - used if used < most else 0, reset_s

    def used(self, meter: Meter, moment: Moment) -> int:
        """What is counted in the window now."""
        if meter.ends_at:
            period = self._periods.get(meter.key)
            return self._known(meter) if period is None else period.used
        return self._minute_as_known(meter, moment).used(moment.now)

    def restore(self, rows: Iterable[Used], moment: Moment) -> None:
        """Everything that was used earlier, as far as it is known: a meter counts that much at least.

        Replaces what was told before; may be repeated at any time, and counts nothing twice. Rows of days and months
        are as exact as their stretches are short. Rows of the last minute count for a meter that was not used yet: one
        that was has counted by another clock, and the same request could seem to be two.
        """
        self._history = {}
        for row in rows:
            self._history.setdefault((row.of, row.counted.value), []).append((row.at, row.amount))
        self._forget_history(moment)
        for key, period in self._periods.items():
            of, counted, starts_at = key.rsplit(":", 2)
            period.used = max(period.used, self._sum(of, counted, int(starts_at), period.ends_at))

    def expire(self, moment: Moment) -> int:
        """Drop what no window holds any more; how many meters were dropped."""
        minutes = [key for key, one in self._minutes.items() if not (one.num_takes or one.used(moment.now))]
        periods = [key for key, one in self._periods.items() if self._is_past(one, moment)]
        for key in minutes:
            del self._minutes[key]
        for key in periods:
            del self._periods[key]
        if minutes or periods:
            self.version += 1
        self._forget_history(moment)
        return len(minutes) + len(periods)

    def statistics(self) -> dict[str, int]:
        """`takes` (not ended) is 0 when quiescent; `meters` are those in memory, `history` the restored rows."""
        return {
            "takes": self.num_bundled
            + sum(one.num_takes for counts in (self._minutes, self._periods) for one in counts.values()),
            "meters": len(self._minutes) + len(self._periods),
            "history": sum(map(len, self._history.values())),
        }

    def __repr__(self) -> str:
        return f"<SoleMeters {' '.join(f'{name}={count}' for name, count in self.statistics().items())}>"

    def _minute_as_known(self, meter: Meter, moment: Moment) -> MinuteCount:
        """The last minute, also of a meter that nothing was taken of yet. Does not mutate."""
        minute = self._minutes.get(meter.key)
        if minute is None:
            minute = MinuteCount()
            if self._history:
                self._restore_minute(minute, meter.of, meter.counted.value, moment)
        return minute

    def _open_minute(self, meter: Meter, moment: Moment) -> MinuteCount:
        minute = self._minutes[meter.key] = MinuteCount()
        if self._history:
            self._restore_minute(minute, meter.of, meter.counted.value, moment)
        return minute

    def _open_period(self, meter: Meter) -> PeriodCount:
        period = self._periods[meter.key] = PeriodCount(meter.ends_at)
        period.used = self._known(meter)
        return period

    def _known(self, meter: Meter) -> int:
        """What was used in a calendar window before this process counted it."""
        return self._sum(meter.of, meter.counted.value, meter.starts_at, meter.ends_at)

    def _sum(self, of: str, counted: str, starts_at: int, ends_at: int) -> int:
        return sum(amount for at, amount in self._history.get((of, counted), ()) if starts_at <= at < ends_at)

    def _restore_minute(self, minute: MinuteCount, of: str, counted: str, moment: Moment) -> None:
        seconds: dict[int, int] = {}
        for at, amount in self._history.get((of, counted), ()):
            age_s = int(moment.unix) - int(at)
            if 0 <= age_s <= WINDOW_S:
                second = int(moment.now) - age_s
                seconds[second] = seconds.get(second, 0) + amount
        for second, amount in seconds.items():
            minute.restore(amount, second, moment.now)

    def _short(self, meter: Meter, amount: int, moment: Moment) -> Short:
        """When there would be room."""
        limit = meter.limit
        retry_after_s: float | None = None
        if amount > limit:
            pass
        elif meter.ends_at:
            retry_after_s = max(0.0, meter.ends_at - moment.unix)
        else:
            retry_after_s = self._minutes[meter.key].at_most_in_s(limit - amount, moment.now)
        return Short(meter, max(0, limit - self.used(meter, moment)), retry_after_s)

    def _is_past(self, period: PeriodCount, moment: Moment) -> bool:
        """By both clocks: the calendar's may be wrong for a while."""
        return not period.num_takes and moment.unix >= period.ends_at and moment.now >= period.touched_at + KEEP_S

    def _forget_history(self, moment: Moment) -> None:
        since = moment.unix - HISTORY_S
        kept = {of: [row for row in rows if row[0] >= since] for of, rows in self._history.items()}
        self._history = {of: rows for of, rows in kept.items() if rows}
