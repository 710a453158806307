"""A gateway's meters kept in Redis: use reported and allowances renewed in the background, at once where one is short.

The keys of one tenant lie in one hash slot, named after it. One server takes many meters in a call; a Cluster one in
each, so that a slot may move at any time. No rule is here: what to tell is up to `LeasedMeters`, what to grant up to
the script. For one event loop.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from policies.leased_meters import LeasedMeters
from policies.meter_reports import AHEAD_S, WINDOW_S, MeterAsk, MeterGrant, MeterGrants, MeterReport, keep_s
from policies.meter_reports import keeps_of_the_dead as keeps
from policies.meter_table import SPARE_PARTS
from policies.meters import Meter
from policies.redis_leases import PREFIX, RENEWALS_PER_LEASE, lease_clock
from policies.redis_link import RedisLink, pause_s
from policies.redis_meter_script import COUNT
from policies.store import StoreError

MIN_GAP_S = 0.005  # between two passes: two hundred a second at most, however much is short
GRANT_S = 0.25  # chosen: what a first request waits for an allowance at most
ASK_AGAIN_S = 0.02  # while something is waited for that others were told to give back
_SHA = hashlib.sha1(COUNT.encode(), usedforsecurity=False).hexdigest()  # Redis's name for the script
_NUMBERS = 10  # of each grant in an answer


class RedisMeters:
    """Keeps `leased` supplied. `async with` it: at the end, what is held goes back and what was used is told.

    `num_gateways`: living ones, as far as known. `channel`: where others are told to report; call `nudged` with what is
    heard there.
    """

    def __init__(
        self,
        link: RedisLink,
        leased: LeasedMeters,
        *,
        channel: str,
        num_gateways: Callable[[], int] = lambda: 1,
        prefix: str = PREFIX,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self.leased = leased
        self.last_fault = ""
        self.num_calls = 0
        self._link = link
        self._channel = channel
        self._num_gateways = num_gateways
        self._prefix = prefix
        self._clock = clock
        self._pressed = asyncio.Event()
        self._answered = asyncio.Event()  # one for each pass
        self._keeper: asyncio.Task[None] | None = None
        leased.on_press = self._pressed.set

    @property
    def is_degraded(self) -> bool:
        """Whether limits are decided without the store now; for readiness and a gauge."""
        return self.leased.is_degraded(self._clock())

    async def until_granted(self, meter: Meter, amount: int, timeout_s: float = GRANT_S) -> bool:
        """Wait for the allowance that a take was short of; whether another take is worth it.

        False as soon as it is known that there is none. For after a `Short` that `is_pending`.
        """
        ends_at = self._clock() + timeout_s
        while (can_take := self.leased.can_take(meter, amount, now := self._clock())) is None:
            if now >= ends_at:
                return False
            self.leased.ask_for(meter, amount, now)
            try:
                async with asyncio.timeout(min(ends_at - now, ASK_AGAIN_S)):
                    await self._answered.wait()
            except TimeoutError:
                continue
        return can_take

    def nudged(self, names: list[str]) -> None:
        """Other gateways lack these: report on them soon, without what is held unused."""
        self.leased.press(names, is_called=True)

    async def renew(self, *, only_pressed: bool = False) -> None:
        """One pass: report all meters, or those pressed for, and take in the grants. Raises `StoreError`."""
        self.leased.num_gateways = max(1, self._num_gateways())
        faults: list[StoreError] = []
        reports = [
            self.leased.report(keys, self._clock())
            for group in self.leased.due(only_pressed=only_pressed)
            for keys in self._calls(group)
        ]
        answers = await asyncio.gather(*map(self._tell, reports), return_exceptions=True)
        for report, answer in zip(reports, answers, strict=True):
            if isinstance(answer, MeterGrants):
                self.leased.apply(report, answer)
            else:
                self.leased.fail(report)
                if not isinstance(answer, StoreError):
                    raise answer
                faults.append(answer)
        if reports:
            all_failed = len(faults) == len(reports)
            self.leased.away_since = (self.leased.away_since or reports[0].sent_at) if all_failed else None
        self._answered.set()
        self._answered = asyncio.Event()
        if faults:
            raise faults[0]

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self.leased.release()
        try:
            await self.renew(only_pressed=True)
        except StoreError as error:  # what was held returns when the lease ends; what was not told is lost
            self.last_fault = str(error)

    def __repr__(self) -> str:
        return f"<RedisMeters {self._link.name} {'degraded' if self.is_degraded else 'leased'} {self.leased!r}>"

    def _calls(self, group: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """The meters of one call: one on a Cluster, whose keys may be on their way one by one."""
        if self._link.is_cluster:
            yield from ((key,) for key in group)
        else:
            yield group

    async def _tell(self, report: MeterReport) -> MeterGrants:
        keys = [self._key(ask.meter) for ask in report.asks]
        values: list[str | int] = [self._channel, report.gateway, report.number, round(self.leased.lease_s * 1000)]
        values += ["", WINDOW_S, AHEAD_S, SPARE_PARTS]
        for ask in report.asks:
            values += arguments_of(ask)
        self.num_calls += 1
        answer = await self._link.call(lambda redis: _run(redis, keys, values), key=keys[0])
        return grants_of(report, answer)

    async def _keep(self) -> None:
        """The janitor of the meters: renews all of them in time, and those pressed for at once."""
        num_faults, due_at = 0, self._clock()
        while True:
            is_due = self._clock() >= due_at
            self._pressed.clear()
            if is_due:
                due_at = self._clock() + self.leased.lease_s / RENEWALS_PER_LEASE
            try:
                await self.renew(only_pressed=not is_due)
            except StoreError as error:
                self.last_fault = str(error)
                num_faults += 1
                due_at = self._clock()
                await asyncio.sleep(pause_s(num_faults - 1))
                continue
            num_faults = 0
            await asyncio.sleep(MIN_GAP_S)
            try:
                async with asyncio.timeout(max(0.0, due_at - self._clock())):
                    await self._pressed.wait()
            except TimeoutError:
                continue

    def _key(self, meter: Meter) -> str:
        """The hash of one meter; all of a tenant share a slot."""
        return f"{self._prefix}:{{meters:{meter.of}}}:{meter.counted.value}:{meter.starts_at}"


def arguments_of(ask: MeterAsk) -> list[str | int]:
    """What the script is told of one meter."""
    meter = ask.meter
    values: list[str | int] = [meter.key, meter.ends_at, keep_s(meter) * 1000, int(keeps(meter.counted)), meter.limit]
    values += [ask.spare, ask.wanted, ask.need, ask.base, len(ask.used)]
    for use in ask.used:
        values += use
    return values


def grants_of(report: MeterReport, answer: list[int]) -> MeterGrants:
    """The script's answer as the rule's words."""
    at_ms, *rest = answer
    grants, called = [], []
    for place, ask in enumerate(report.asks):
        granted, batch, used, free, resets_at, retry_at, *flags = rest[place * _NUMBERS : (place + 1) * _NUMBERS]
        is_behind, is_called, is_stale, is_told = map(bool, flags)
        grants.append(MeterGrant(granted, batch, used, free, resets_at, retry_at, is_behind, is_called, is_stale))
        if is_told:
            called.append(ask.meter.key)
    return MeterGrants(at_ms, tuple(grants), tuple(called))


async def _run(redis: Redis, keys: list[str], values: list[str | int]) -> list[int]:
    """The script's answer; a server that does not know the script is sent it."""
    try:
        answer: list[int] = await redis.evalsha(_SHA, len(keys), *keys, *values)
    except NoScriptError:
        answer = await redis.eval(COUNT, len(keys), *keys, *values)
    return answer
