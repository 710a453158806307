"""Peers that meet in Redis: this gateway's leases and meters, kept in the background, and what the dead have left.

Loaded only with a shared store. Holds no rule: what is leased, lent and granted, `policies/leases.py`,
`policies/leased_meters.py` and their neighbours say.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Self

from observability import logs
from policies.in_flight import Unit
from policies.leased_meters import LeasedMeters
from policies.leases import LEASE_S
from policies.local_holdings import LocalHoldings
from policies.meters import Meter, Meters
from policies.redis_leases import RedisLeases, bury, lease_clock, new_gateway_id
from policies.redis_link import RedisLink
from policies.redis_meters import ASK_AGAIN_S, GRANT_S, RedisMeters
from policies.store import StoreError

# What is used in equal parts when the store is away: too many requests for seats only queue in the engine, and without
# a place in flight a tenant gets nothing at all. A batch cap is a promise that a gateway which alone is cut off breaks.
FALLBACK_FAMILIES = ("seat", "cap")
URGENT_FAMILIES = ("cap",)  # a request that finds no place in flight is refused, it does not wait in a queue
UNIT_S = 0.2  # chosen: many round trips, in which others give up what they hold unused
ENGINE_NOTICES_S = 0.5  # chosen: an engine ends the requests of a process that died, and a lease is far from over

_LOOK_EVERY_S = 0.05


class RedisPeers:
    """`Peers` at the Redis of `url`. `async with` it: leases and meters are kept inside, and given back at the end.

    Set `on_raise` before entering: it is called when there is more to take than before. A lease's clock goes on while
    the machine sleeps, so the `now` of the callers, which does not, is not used.
    """

    def __init__(
        self,
        url: str,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = lease_clock,
    ) -> None:
        self.on_raise: Callable[[], None] = lambda: None
        self._raised = asyncio.Event()  # one for each raise
        self._waiting: Counter[str] = Counter()  # requests, by the unit they wait for
        self._clock = clock
        self._link = RedisLink(url)
        self._holdings = LocalHoldings(
            new_gateway_id(), lease_s=lease_s, fallback_families=FALLBACK_FAMILIES, urgent_families=URGENT_FAMILIES
        )
        self._leases = RedisLeases(
            self._link, self._holdings, clock=clock, on_raise=self._on_raise, on_nudge=self._on_nudge
        )
        self._meters = RedisMeters(
            self._link,
            LeasedMeters(self._holdings.gateway, lease_s=lease_s, clock=clock),
            channel=self._leases.channel,
            num_gateways=lambda: self._holdings.num_gateways,
            clock=clock,
        )

    @property
    def gateway(self) -> str:
        """The id by which the leases know this run of the process."""
        return self._holdings.gateway

    @property
    def num_gateways(self) -> int:
        """Living gateways, this one included, as last told; 0 before the first answer."""
        return self._holdings.num_gateways

    @property
    def is_degraded(self) -> bool:
        """Whether the store has not answered for a lease."""
        return self._leases.is_degraded

    @property
    def meters(self) -> Meters:
        """Who counts rates, tokens and money together with the other gateways; for `Quotas`."""
        return self._meters.leased

    @property
    def is_limits_degraded(self) -> bool:
        """Whether limits are decided without the store: money refuses, of the rest this gateway admits its part."""
        return self._meters.is_degraded

    async def until_granted(self, wanted: Meter | Unit, amount: int, timeout_s: float = GRANT_S) -> bool:
        """Wait for what a take was short of; whether another take is worth it.

        For after a `Short` that `is_pending`: the first request of a tenant here, or one that used the allowance up.
        False as soon as it is known that the limit has no room. A unit in flight is waited for as long as others need
        to give up what they hold unused: for `UNIT_S`, and for all of `timeout_s` where nobody uses it, by as many as
        there are such units (who holds them may be slow to give them up).
        """
        if not isinstance(wanted, Unit):
            return await self._meters.until_granted(wanted, amount, timeout_s)
        self._waiting[wanted.resource] += 1
        try:
            return await self._until_unit(wanted.resource, timeout_s)
        finally:
            self._waiting[wanted.resource] -= 1
            self._waiting += Counter()  # without those at 0

    async def _until_unit(self, resource: str, timeout_s: float) -> bool:
        ends_at = self._clock() + timeout_s
        short_until = self._clock() + min(timeout_s, UNIT_S)
        while not self._holdings.can_take(resource, now := self._clock()):
            is_owed = now < ends_at and self._waiting[resource] <= self._holdings.unused(resource)
            if now >= short_until and not is_owed:
                self._holdings.note_dry(resource, now)
                return False
            self._holdings.ask_for(resource, now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_S):
                    await self._raised.wait()
        return True

    async def until_granting(self) -> None:
        """Wait while leases are not granted yet, as for a lease after the first start of all; two leases at most."""
        ends_at = self._clock() + 2 * self._holdings.lease_s
        while (self.is_degraded or self._holdings.is_recovering) and self._clock() < ends_at:  # noqa: ASYNC110  # once, at the start
            await asyncio.sleep(_LOOK_EVERY_S)

    def try_take(self, resource: str, limit: int, now: float, waiting: int = 1) -> bool:  # noqa: ARG002
        """Whether a unit was taken."""
        return self._holdings.try_take(resource, limit, self._clock(), waiting)

    def may_come(self, resource: str, now: float) -> bool:  # noqa: ARG002
        """Whether others may have a unit to give."""
        return self._holdings.may_come(resource, self._clock())

    def give_back(self, resource: str) -> None:
        """A taken unit is free again."""
        self._holdings.give_back(resource)

    def relimit(self, resource: str, limit: int) -> None:
        """A limit changed."""
        self._holdings.relimit(resource, limit)

    def overdue(self, now: float) -> dict[str, int]:  # noqa: ARG002
        """Units in use without a valid lease."""
        return self._holdings.overdue(self._clock())

    def statistics(self) -> dict[str, int]:
        """`units_in_use` is 0 when quiescent."""
        return self._holdings.statistics()

    def _on_raise(self) -> None:
        self._raised.set()
        self._raised = asyncio.Event()
        self.on_raise()

    def _on_nudge(self, names: list[str]) -> None:
        self._meters.nudged(names)

    async def __aenter__(self) -> Self:
        await self._leases.__aenter__()
        await self._meters.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._meters.__aexit__()
        await self._leases.__aexit__()
        await self._link.close()

    def __repr__(self) -> str:
        return f"<RedisPeers {self._leases!r}>"


class Burials:
    """The supervisor's: what a gateway process held returns soon after it died, not only when its lease ends."""

    def __init__(self, url: str, *, wait_s: float = ENGINE_NOTICES_S) -> None:
        self._link = RedisLink(url)
        self._wait_s = wait_s
        self._under_way: set[asyncio.Task[None]] = set()

    def died(self, gateway: str) -> None:
        """The process with this id has ended."""
        burial = asyncio.get_running_loop().create_task(self._bury(gateway))
        self._under_way.add(burial)
        burial.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Leave what is under way to the leases."""
        for burial in self._under_way:
            burial.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._link.close()

    async def _bury(self, gateway: str) -> None:
        await asyncio.sleep(self._wait_s)
        try:
            had_leases = await bury(self._link, gateway)
        except StoreError as error:
            logs.get().warning("gateway.not_buried", gateway=gateway, reason=str(error))
        else:
            logs.get().info("gateway.buried", gateway=gateway, had_leases=had_leases)
