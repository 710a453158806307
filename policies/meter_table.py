"""How much of each shared meter is used, held by whom, and granted to whom: the rule behind the grants, for tests.

The same rule runs inside Redis as a script (`policies/redis_meter_script.py`); one test drives both with the same
reports. used + held never exceeds the limit by a grant. Times are whole milliseconds. Knows no clock and no network.
"""

from dataclasses import dataclass, field

from policies.leases import LEASE_S
from policies.meter_reports import (
    AHEAD_S,
    SECOND_OF_CALENDAR,
    WINDOW_S,
    MeterAsk,
    MeterGrant,
    MeterGrants,
    MeterReport,
    keep_s,
    keeps_of_the_dead,
)

SPARE_PARTS = 2  # beyond its need a gateway is granted this part of an equal part of what is free, for one more of them


@dataclass(slots=True)
class _Entry:
    """What one gateway has of one meter. `kept`: counted as used when its lease ended, until it says what was used."""

    report: int = 0
    batch: int = 0
    held: int = 0
    need: int = 0
    expires_ms: int = 0
    kept: int = 0


@dataclass(slots=True)
class _Counter:
    """One meter: use by second (a calendar window has one), and an entry for each gateway."""

    used: dict[int, int] = field(default_factory=dict)
    entries: dict[str, _Entry] = field(default_factory=dict)
    drops_ms: int = 0

    def add(self, second: int, amount: int) -> None:
        """Count it, or give it back."""
        self.used[second] = self.used.get(second, 0) + amount
        if not self.used[second]:
            del self.used[second]

    @property
    def total(self) -> int:
        return sum(self.used.values())


class MeterTable:
    """All meters and what gateways hold of them. `now_ms`: Unix milliseconds, one clock for all calls."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self._lease_ms = round(lease_s * 1000)
        self._counters: dict[str, _Counter] = {}

    def renew(self, report: MeterReport, now_ms: int) -> MeterGrants:
        """Take in a report and grant what can be; what is held returns one lease from now."""
        called: dict[str, None] = {}
        grants = tuple(self._settle(report, ask, now_ms, called) for ask in report.asks)
        return MeterGrants(now_ms, grants, tuple(called))

    def leave(self, gateway: str, key: str) -> None:
        """The gateway holds nothing of the meter any more and will not come back."""
        if key in self._counters:
            self._counters[key].entries.pop(gateway, None)

    def forget(self) -> None:
        """All is lost, as when a store restarts without its memory."""
        self._counters.clear()

    def counted(self, key: str) -> tuple[int, int]:
        """(used, held) as last seen."""
        counter = self._counters.get(key, _Counter())
        return counter.total, sum(entry.held for entry in counter.entries.values())

    def _settle(self, report: MeterReport, ask: MeterAsk, now_ms: int, called: dict[str, None]) -> MeterGrant:
        counter = self._counter(ask, now_ms)
        mine = counter.entries.get(report.gateway)
        if mine is not None and report.number <= mine.report:
            return MeterGrant(0, mine.batch, counter.total, 0, 0, 0, is_stale=True)
        if mine is None:
            mine = counter.entries[report.gateway] = _Entry()
        if mine.kept:
            counter.add(SECOND_OF_CALENDAR, -mine.kept)
            mine.kept = 0
        before = counter.total + mine.held
        is_behind = ask.base != mine.batch
        held = ask.spare
        if is_behind:  # what was used of it is not counted yet
            held = max(mine.held, ask.spare + max(0, sum(amount for _, amount in ask.used)))
        else:
            self._count(counter, ask, now_ms)
            mine.batch = report.number
        mine.report, mine.held, mine.need = report.number, held, ask.need
        mine.expires_ms = now_ms + self._lease_ms
        others = [one for one in counter.entries.values() if one is not mine and one.expires_ms > now_ms]
        grant = _grant(counter, ask, mine, others, is_behind=is_behind)
        freed = before - counter.total - mine.held
        if grant.is_called or (freed > 0 and _is_awaited(others, grant.free)):
            called[ask.meter.key] = None
        return grant

    def _counter(self, ask: MeterAsk, now_ms: int) -> _Counter:
        """The counter as of now: without what has left the window, nor what the silent held."""
        meter = ask.meter
        counter = self._counters.get(meter.key)
        if counter is None or counter.drops_ms <= now_ms:
            counter = self._counters[meter.key] = _Counter()
        kept_ms = keep_s(meter) * 1000
        counter.drops_ms = max(meter.ends_at * 1000, now_ms) + kept_ms
        second = now_ms // 1000
        if meter.is_sliding:
            for noted in [*counter.used]:
                if noted < second - WINDOW_S:
                    del counter.used[noted]
                elif noted > second + AHEAD_S:
                    counter.add(second, counter.used.pop(noted))
        for name, entry in [*counter.entries.items()]:
            entry.expires_ms = min(entry.expires_ms, now_ms + self._lease_ms)  # the clock may have been set back
            if entry.expires_ms <= now_ms:
                if entry.held and keeps_of_the_dead(meter.counted):
                    counter.add(SECOND_OF_CALENDAR, entry.held)
                    entry.kept = entry.held
                entry.held = entry.need = 0
            if entry.expires_ms + kept_ms <= now_ms:
                del counter.entries[name]
        return counter

    def _count(self, counter: _Counter, ask: MeterAsk, now_ms: int) -> None:
        second = now_ms // 1000
        for noted, amount in ask.used:
            if not ask.meter.is_sliding:
                counter.add(SECOND_OF_CALENDAR, amount)
            elif noted >= second - WINDOW_S:
                counter.add(min(noted, second + AHEAD_S), amount)


def _grant(counter: _Counter, ask: MeterAsk, mine: _Entry, others: list[_Entry], *, is_behind: bool) -> MeterGrant:
    """More for one gateway: its need if that is free, and of the rest a part, less the smaller the rest is."""
    used, limit = counter.total, ask.meter.limit
    held_by_others = sum(entry.held for entry in others)
    free = limit - used - held_by_others - mine.held
    lacking, granted, is_called, retry_at = ask.need - mine.held, 0, False, 0
    if free < 0:
        granted = -min(ask.spare, -free)
    elif not is_behind:
        if 0 < lacking <= free:
            granted = lacking
        reserved = sum(max(0, entry.need - entry.held) for entry in others)
        part = max(0, free - granted - reserved) // (SPARE_PARTS * (len(others) + 2))
        granted += max(0, min(ask.wanted - mine.held - granted, part))
    mine.held += max(0, granted)
    free = max(0, free - max(0, granted))
    if lacking > max(0, granted) and not is_behind:
        is_called = lacking <= free + held_by_others and held_by_others > 0
        retry_at = 0 if is_called else _fits_at(counter, ask, used + held_by_others + max(0, ask.need) - limit)
    resets_at = _resets_at(counter, ask)
    return MeterGrant(granted, mine.batch, used, free, resets_at, retry_at, is_behind, is_called)


def _is_awaited(others: list[_Entry], free: int) -> bool:
    return any(0 < entry.need - entry.held <= free for entry in others)


def _fits_at(counter: _Counter, ask: MeterAsk, over: int) -> int:
    """When so much will have left the window; 0 if what is counted now would not do."""
    if not ask.meter.is_sliding:
        return ask.meter.ends_at
    for noted in sorted(counter.used):
        over -= counter.used[noted]
        if over <= 0:
            return noted + WINDOW_S + 1
    return 0


def _resets_at(counter: _Counter, ask: MeterAsk) -> int:
    if not counter.used:
        return 0
    return max(counter.used) + WINDOW_S + 1 if ask.meter.is_sliding else ask.meter.ends_at
