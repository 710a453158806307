"""What one gateway of several may count against limits that all share: `Meters` on an allowance from the shared store.

A take comes out of an allowance that the store has counted already, so the sum over all gateways stays within the
limit without a round trip. What was used is told second by second of the store's clock, in numbered batches. While the
store is away money is refused, and of other limits a part is admitted and told later. Knows no clock and no network.
"""

from collections.abc import Callable, Collection, Iterator
from math import ceil

from policies.leases import LEASE_S, TRUSTED_RATIO
from policies.meter_allowance import Allowance
from policies.meter_reports import MeterAsk, MeterGrants, MeterReport, keeps_of_the_dead
from policies.meters import Meter, Moment, Short

AWAY_AFTER_S = 1.0  # without an answer, though asked: decided here. Above a few stalls, below what a failover takes
RETRY_S = 1.0  # chosen: when nobody knows better
ASK_AGAIN_S = 0.1  # a meter that is used up is asked for again no sooner: others may have given back
PENDING_RETRY_S = 0.05  # what is asked for is here, or refused, by then
UNKNOWN_PARTS = 8  # of a limit's part, what is admitted while the store is away and nothing is known of its window
MAX_METERS = 65_536
MAX_PER_REPORT = 64  # chosen: a few milliseconds of the store at most


class LeasedTake:
    """An amount that was counted here. Ends once."""

    __slots__ = ("_allowance", "_amount", "_is_covered", "_meters", "_second")

    def __init__(
        self, meters: "LeasedMeters", allowance: Allowance, amount: int, second: int, *, is_covered: bool
    ) -> None:
        self._meters: LeasedMeters | None = meters
        self._allowance = allowance
        self._amount = amount
        self._second = second
        self._is_covered = is_covered

    def correct(self, actual: int, moment: Moment) -> None:
        """The real amount is known: what is more counts now, what is less leaves the second it was noted in."""
        meters, self._meters = self._meters, None
        if meters is None:
            return
        allowance = self._allowance
        allowance.num_takes -= 1
        meters.num_takes -= 1
        more = actual - self._amount
        if not more:
            return
        now = meters.now_at(moment)
        if more > 0:
            allowance.count_beyond(more, now)
        else:
            allowance.give_back(-more, self._second, now, is_covered=self._is_covered)
        meters.note_change(allowance)

    def undo(self, moment: Moment) -> None:
        """As if it had never been counted."""
        self.correct(0, moment)

    def __repr__(self) -> str:
        return f"<LeasedTake {self._amount} of {self._allowance.meter.key}{'' if self._meters else ' ended'}>"


class LeasedMeters:
    """`Meters` of one gateway among several.

    `gateway`: unique to this run of the process. `clock`: seconds on the clock that leases run by, if it is another
    than the moments' (which stops while the machine sleeps). `on_press`: called when a report should go out soon; at
    most once until `due` was asked. Set `num_gateways` and `away_since` (when the store began not to answer at all).
    """

    def __init__(
        self,
        gateway: str,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] | None = None,
        max_meters: int = MAX_METERS,
        on_press: Callable[[], None] = lambda: None,
    ) -> None:
        self.gateway = gateway
        self.lease_s = lease_s
        self._clock = clock
        self.on_press = on_press
        self.num_gateways = 1
        self.away_since: float | None = None
        self.num_takes = 0
        self._max_meters = max_meters
        self._allowances: dict[str, Allowance] = {}
        self._active: dict[str, Allowance] = {}  # those to report on regularly
        self._pressed: dict[str, None] = {}
        self._called: set[str] = set()
        self._number = 0
        self._is_leaving = False
        self._shift: int | None = None

    def now_at(self, moment: Moment) -> float:
        """Seconds on the lease's clock."""
        return moment.now if self._clock is None else self._clock()

    def take(self, meter: Meter, amount: int, moment: Moment) -> LeasedTake | Short:
        """Count an amount out of the allowance; short of one, it is asked for, and `until_granted` may be awaited."""
        now = moment.now if self._clock is None else self._clock()
        allowance = self._allowances.get(meter.key)
        if allowance is None:
            if len(self._allowances) >= self._max_meters:
                return Short(meter, 0, RETRY_S)
            allowance = self._open(meter, now, moment.unix)
        elif allowance.limit != meter.limit:
            allowance.relimit(meter, now)
            self._press(meter.key)
        is_covered = now < allowance.valid_until and amount <= allowance.spare
        if not is_covered and amount and amount > self._room(allowance, now):
            return self._short(allowance, amount, now)
        if not allowance.is_listed:
            self._list(allowance)
        allowance.num_takes += 1
        self.num_takes += 1
        second = allowance.count(amount, now, is_covered=is_covered)
        if allowance.spare < allowance.low:
            allowance.low = 0  # pressed for once until the next answer
            self._press(meter.key)
        return LeasedTake(self, allowance, amount, second, is_covered=is_covered)

    def can_take(self, meter: Meter, amount: int, now: float) -> bool | None:
        """Whether a take would succeed, now on the lease's clock; None while that is being asked for."""
        allowance = self._allowances.get(meter.key)
        if allowance is None or amount > meter.limit:
            return False
        if (now < allowance.valid_until and amount <= allowance.spare) or amount <= self._room(allowance, now):
            return True
        return None if allowance.is_open_for(amount, now) and not self._is_away(allowance, now) else False

    def ask_for(self, meter: Meter, amount: int, now: float) -> None:
        """So much is still waited for; it is asked for again, unless others were told a moment ago to give it back."""
        allowance = self._allowances.get(meter.key)
        if allowance is not None and now >= allowance.called_until:
            self._list(allowance)
            allowance.lacks(amount)
            self._press(meter.key)

    def remaining(self, meter: Meter, moment: Moment) -> tuple[int, float]:
        """(what the limit still allows, as far as is known here, seconds until it is whole). Does not mutate."""
        now = self.now_at(moment)
        allowance = self._allowances.get(meter.key)
        if allowance is None:
            return meter.limit, 0.0
        return allowance.remaining(meter.limit, now), allowance.resets_in_s(now, moment.unix)

    def used(self, meter: Meter, moment: Moment) -> int:
        """What all gateways have used, as last told, and what was used here since."""
        allowance = self._allowances.get(meter.key)
        return 0 if allowance is None else allowance.used(self.now_at(moment))

    def expire(self, moment: Moment) -> int:
        """Drop what no window holds any more and nobody has to be told of; the number dropped."""
        now = self.now_at(moment)
        gone = [key for key, one in self._allowances.items() if one.is_over(now, moment.unix)]
        for key in gone:
            del self._allowances[key]
            self._active.pop(key, None)
        return len(gone)

    def statistics(self) -> dict[str, int]:
        """`takes` (not ended) is 0 when quiescent; `meters` are those in memory."""
        return {"takes": self.num_takes, "meters": len(self._allowances)}

    def is_degraded(self, now: float) -> bool:
        """Whether any limit is decided without the store now."""
        return self._is_long(self.away_since, now) or any(
            self._is_long(one.away_since, now) for one in self._active.values()
        )

    def press(self, keys: Collection[str], *, is_called: bool = False) -> None:
        """Report on these soon, if they are here. `is_called`: others need what is held unused."""
        for key in keys:
            if key in self._allowances:
                if is_called:
                    self._called.add(key)
                self._press(key)

    def due(self, *, only_pressed: bool = False) -> Iterator[tuple[str, ...]]:
        """Keys for one report each: those pressed for, or all that hold, tell or want anything."""
        pressed, self._pressed = self._pressed, {}
        if only_pressed:
            keys = [key for key in pressed if key in self._allowances]
        else:
            for key in [key for key, one in self._active.items() if not one.is_active]:
                self._active.pop(key).is_listed = False
            keys = [*self._active, *(key for key in pressed if key in self._allowances and key not in self._active)]
        for begin in range(0, len(keys), MAX_PER_REPORT):
            yield tuple(keys[begin : begin + MAX_PER_REPORT])

    def report(self, keys: Collection[str], now: float) -> MeterReport:
        """What to tell of these meters. What there is no use for is given up here already."""
        self._number += 1
        asks = tuple(self._ask(self._allowances[key], now) for key in keys if key in self._allowances)
        return MeterReport(self.gateway, self._number, now, asks)

    def apply(self, report: MeterReport, answer: MeterGrants) -> None:
        """Take in the answer to a report."""
        offset_s = (answer.at_ms + 1) / 1000 - report.sent_at
        self._shift = ceil(offset_s)
        valid_until = report.sent_at + self.lease_s * TRUSTED_RATIO
        for ask, grant in zip(report.asks, answer.grants, strict=True):
            allowance = self._allowances.get(ask.meter.key)
            if allowance is None:
                continue
            allowance.take_in(ask, grant, report.sent_at, valid_until, offset_s)
            if grant.is_behind or (grant.is_stale and allowance.is_active):
                self._press(ask.meter.key)

    def fail(self, report: MeterReport) -> None:
        """There was no answer. Whether the store took it in is unknown, and is found out by the next one."""
        for ask in report.asks:
            allowance = self._allowances.get(ask.meter.key)
            if allowance is not None:
                allowance.fail(ask, report.sent_at)

    def release(self) -> None:
        """Give up everything unused; for a gateway that stops."""
        self._is_leaving = True
        for key in self._active:
            self._press(key)

    def note_change(self, allowance: Allowance) -> None:
        """A take was corrected: those who wait for it elsewhere hear of it soon if the meter is short."""
        self._list(allowance)
        if allowance.is_short:
            self._press(allowance.meter.key)

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.statistics().items())
        return f"<LeasedMeters {self.gateway} of {self.num_gateways} {counts}>"

    def _open(self, meter: Meter, now: float, unix: float) -> Allowance:
        """A meter that is new here. Until the store has told its time, Unix time stands for it."""
        shift = ceil(unix - now) if self._shift is None else self._shift
        allowance = self._allowances[meter.key] = Allowance(meter, now, shift)
        return allowance

    def _list(self, allowance: Allowance) -> None:
        allowance.is_listed = True
        self._active[allowance.meter.key] = allowance

    def _short(self, allowance: Allowance, amount: int, now: float) -> Short:
        meter = allowance.meter
        remaining = min(max(0, amount - 1), allowance.remaining(meter.limit, now))
        if amount > meter.limit:
            return Short(meter, remaining, None)
        self._list(allowance)
        allowance.lacks(amount)
        if self._is_away(allowance, now):
            self._press(meter.key)
            return Short(meter, remaining, RETRY_S)
        if allowance.is_open_for(amount, now):
            self._press(meter.key)
            return Short(meter, remaining, PENDING_RETRY_S, is_pending=True)
        if now >= allowance.told_at + ASK_AGAIN_S:
            self._press(meter.key)
        return Short(meter, remaining, max(PENDING_RETRY_S, allowance.dry_until - now))

    def _room(self, allowance: Allowance, now: float) -> int:
        """What may be taken without cover, the store being away: nothing of money; of the rest this gateway's part.

        Of what was free as last told; of the whole limit once that window has passed; of an unknown one a small part.
        """
        meter = allowance.meter
        if keeps_of_the_dead(meter.counted) or not self._is_away(allowance, now):
            return 0
        return allowance.part_without_store(max(1, self.num_gateways), UNKNOWN_PARTS, self.away_since, now)

    def _is_away(self, allowance: Allowance, now: float) -> bool:
        return self._is_long(allowance.away_since, now) or self._is_long(self.away_since, now)

    @staticmethod
    def _is_long(since: float | None, now: float) -> bool:
        return since is not None and now >= since + AWAY_AFTER_S

    def _ask(self, allowance: Allowance, now: float) -> MeterAsk:
        key = allowance.meter.key
        is_called = key in self._called
        self._called.discard(key)
        return allowance.ask(self._number, now, is_called=is_called, is_last=self._is_leaving)

    def _press(self, key: str) -> None:
        is_first = not self._pressed
        self._pressed[key] = None
        if is_first:
            self.on_press()
