"""A gateway's leases kept in Redis: renewed in the background, at once when units are lacking, given back at the end.

One script call renews and grants up to 256 resources. Nothing here is on a request's path, and no rule is here: what
to tell is up to `LocalHoldings`, what to grant up to the script. For one event loop.
"""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from policies.lease_table import QUANTA_PER_LEASE, RESERVE_PARTS
from policies.leases import Grants, Report
from policies.local_holdings import LocalHoldings
from policies.redis_lease_script import RENEW
from policies.redis_link import RedisLink, pause_s
from policies.redis_nudges import nudges
from policies.store import StoreError

PREFIX = "warmlane"
RENEWALS_PER_LEASE = 4
_SHA = hashlib.sha1(RENEW.encode(), usedforsecurity=False).hexdigest()  # Redis's name for the script
MIN_GAP_S = 0.01  # between two passes: a hundred a second at most, however much is lacking


# Seconds that go on while the machine sleeps, as Redis's do; a lease must not outlive a suspended laptop.
lease_clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def new_gateway_id() -> str:
    """An id that no other run of a gateway has had."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


class RedisLeases:
    """Keeps `holdings` leased. `on_raise`: called when there is more to take than before, so that waiters try again.

    `on_nudge`: called with what others lack, which may be something else than leased units.

    `async with RedisLeases(…)` starts it and, at the end, gives everything back. `now` given to the holdings must come
    from the same clock as here.
    """

    def __init__(
        self,
        link: RedisLink,
        holdings: LocalHoldings,
        *,
        prefix: str = PREFIX,
        clock: Callable[[], float] = lease_clock,
        on_raise: Callable[[], None] = lambda: None,
        on_nudge: Callable[[list[str]], None] = lambda _names: None,
    ) -> None:
        self.holdings = holdings
        self.last_fault = ""
        self.num_calls = 0
        self._link = link
        self._keys = _Keys(prefix)
        self._clock = clock
        self._on_raise = on_raise
        self._on_nudge = on_nudge
        self._pressed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        holdings.on_press = self._pressed.set

    @property
    def channel(self) -> str:
        """Where gateways tell each other what they lack."""
        return self._keys.channel

    @property
    def is_degraded(self) -> bool:
        """Whether the lease has run out: nothing new beyond the fallback; for readiness."""
        return not self.holdings.has_lease(self._clock())

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._listen())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self.holdings.release()
        try:
            await self.renew()
            await bury(self._link, self.holdings.gateway, prefix=self._keys.prefix)
        except StoreError as error:  # the units return when the lease ends
            self.last_fault = str(error)

    async def renew(self, *, only_pressed: bool = False) -> None:
        """One pass: report all holdings, or those pressed for, and take in the grants. Raises `StoreError`."""
        is_raised = False
        for names in self.holdings.due(only_pressed=only_pressed):
            report = self.holdings.report(names, self._clock())
            grants = await self._ask(report)
            is_raised |= self.holdings.apply(report, grants)
        if is_raised:
            self._on_raise()

    def __repr__(self) -> str:
        return f"<RedisLeases {self._link.name} {'degraded' if self.is_degraded else 'leased'} {self.holdings!r}>"

    async def _ask(self, report: Report) -> Grants:
        keys = [self._keys.gateways, self._keys.state, *(self._keys.of(ask.resource) for ask in report.asks)]
        values: list[str | int] = [self._keys.channel, report.gateway, report.seq, round(self.holdings.lease_s * 1000)]
        values += [RESERVE_PARTS, QUANTA_PER_LEASE, "", ""]
        for ask in report.asks:
            values += [ask.resource, ask.held, ask.in_use, ask.wanted, ask.limit, int(ask.is_urgent)]
        self.num_calls += 1
        try:
            answer = await self._link.call(lambda redis: _run(redis, keys, values), key=self._keys.state)
        except StoreError:
            self.holdings.fail(report)
            raise
        return grants_of(report, answer)

    async def _keep(self) -> None:
        """The janitor of the leases: renews all of them in time, and those pressed for at once."""
        num_faults, due_at = 0, self._clock()
        while not self._is_stopping:
            is_due = self._clock() >= due_at
            self._pressed.clear()
            try:
                await self.renew(only_pressed=not is_due)
            except StoreError as error:
                self.last_fault = str(error)
                num_faults += 1
                due_at = self._clock()
                await asyncio.sleep(min(self._interval_s, pause_s(num_faults - 1)))
                continue
            num_faults = 0
            if is_due:
                due_at = self._clock() + self._interval_s
            await asyncio.sleep(MIN_GAP_S)
            await self._wait_until(due_at)

    async def _wait_until(self, due_at: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, due_at - self._clock())):
                await self._pressed.wait()
        except TimeoutError:
            return

    async def _listen(self) -> None:
        """Others that lack what we hold unused, or have freed what we lack, say so."""
        async with aclosing(nudges(self._link, self._keys.channel)) as messages:
            async for message in messages:
                sender, *resources = message.decode().split("\n")
                if sender != self.holdings.gateway:
                    self.holdings.press(resources, self._clock())
                    self._on_nudge(resources)

    @property
    def _interval_s(self) -> float:
        return self.holdings.lease_s / RENEWALS_PER_LEASE


class _Keys:
    """The names in Redis. All have one hash tag, so that a script may use them together on a Cluster."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.gateways = f"{prefix}:{{leases}}:gateways"
        self.state = f"{prefix}:{{leases}}:state"
        self.channel = f"{prefix}:{{leases}}:contended"

    def of(self, resource: str) -> str:
        """The hash of one resource."""
        return f"{self.prefix}:{{leases}}:of:{resource}"


async def bury(link: RedisLink, gateway: str, *, prefix: str = PREFIX) -> bool:
    """A gateway process is known to have ended: its units are free now, not only when its lease ends.

    For whoever saw it end (the supervisor); to bury a living one would lend its units twice. Raises `StoreError`.
    """
    key = _Keys(prefix).gateways
    return await link.call(lambda redis: _forget(redis, key, gateway), key=key)


async def _forget(redis: Redis, key: str, gateway: str) -> bool:
    return bool(await redis.hdel(key, gateway))


async def _run(redis: Redis, keys: list[str], values: list[str | int]) -> list[int]:
    """The script's answer; a server that does not know the script is sent it."""
    try:
        answer: list[int] = await redis.evalsha(_SHA, len(keys), *keys, *values)
    except NoScriptError:
        answer = await redis.eval(RENEW, len(keys), *keys, *values)
    return answer


def grants_of(report: Report, answer: list[int]) -> Grants:
    """The script's answer as the rule's words."""
    is_stale, epoch, num_gateways, is_recovering, num_contended, *rest = answer
    units = rest[num_contended:]
    num_units = len(units) // 2
    return Grants(
        epoch=epoch,
        num_gateways=num_gateways,
        allowed=tuple(units[:num_units]),
        is_recovering=bool(is_recovering),
        is_stale=bool(is_stale),
        contended=tuple(report.asks[place].resource for place in rest[:num_contended]),
        unused=tuple(units[num_units:]),
    )
