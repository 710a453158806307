"""The door to Redis: a client with few connections, a bound on every call, and faults named by whose they are.

A call that finds no free connection in time is `StoreBusy`: the store is well, we ask too much of it. One that gets no
answer in time is a fault of the server it went to; after a few in a row calls to that server fail at once for a growing
while, so that nobody waits for a store that is away. Holds no rule.
"""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError, WatchError

from policies.redis_address import SCHEMES, Layout, Place, parse_address
from policies.redis_servers import Servers, Work
from policies.store import StoreError

__all__ = ["SCHEMES", "RedisLink", "StoreBusy", "pause_s"]

R = TypeVar("R")

CALL_S = 0.1  # P17: a call off the request path that takes longer has failed
WAIT_S = 1.0  # for a free connection
NUM_CONNECTIONS = 4
FAULTS_BEFORE_PAUSE = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class StoreBusy(StoreError):
    """No connection became free in time. Says nothing against the store itself."""


class _Faults:
    """Of one server. `failing_since`: when the first of them in a row was."""

    __slots__ = ("failing_since", "in_a_row", "paused_until")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.paused_until = 0.0
        self.failing_since: float | None = None


class RedisLink:
    """Calls to one Redis, one under Sentinel, or a Cluster. `name`: never with the password. For one event loop.

    The keys of one call lie in one hash slot. On a Cluster `key`, any of them, says which server to ask; without it
    another one sends the call there, which costs a round trip.
    """

    def __init__(
        self,
        url: str,
        *,
        call_s: float | None = None,
        wait_s: float = WAIT_S,
        num_connections: int = NUM_CONNECTIONS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect at the first call. `call_s`: by default `CALL_S`.

        Raises `StoreError` for a URL that is none of `SCHEMES`.
        """
        address = parse_address(url)
        self.name = address.name
        self.call_s = CALL_S if call_s is None else call_s
        self.is_cluster = address.layout is Layout.CLUSTER
        self._wait_s = wait_s
        self._clock = clock
        self._faults: dict[Place | None, _Faults] = {}
        self._free = asyncio.Semaphore(num_connections)
        self._servers = Servers(address, num_connections, self.call_s)

    @property
    def num_faults(self) -> int:
        """Calls in a row without an answer, at the server with the most of them."""
        return max((faults.in_a_row for faults in self._faults.values()), default=0)

    @property
    def is_available(self) -> bool:
        """Whether the last call to every server was answered, or none was made yet."""
        return self.num_faults == 0

    async def call(self, work: Work[R], *, timeout_s: float | None = None, key: str | None = None) -> R:
        """The outcome of `work`. Raises `StoreBusy`, `StoreError`; `WatchError` passes, it is an answer."""
        place = self._servers.where(key)
        faults = self._faults.get(place)
        if faults is not None and self._clock() < faults.paused_until:
            raise StoreError(f"the store {self.name} does not answer; it will be tried again shortly")
        try:
            async with asyncio.timeout(self._wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise StoreBusy(f"every connection to the store {self.name} is in use") from None
        try:
            async with asyncio.timeout(timeout_s or self.call_s):
                answer = await self._servers.run(work, key)
        except WatchError:
            self._note_answer(place)
            raise
        except (RedisError, OSError, TimeoutError) as error:
            self._note_fault(place)
            reason = str(error) or "no answer in time"
            raise StoreError(f"the store {self.name} failed: {reason}") from error
        finally:
            self._free.release()
        self._note_answer(place)
        return answer

    async def check(self) -> None:
        """Raise `StoreError` for a Redis that evicts what leases rest on, or is not what the URL says."""

        async def look(_: Redis) -> list[dict[str, Any]]:
            return [await redis.info("everything") for redis in await self._servers.each()]

        for found in await self.call(look, timeout_s=self._wait_s):
            if int(found.get("maxmemory", 0)) and found.get("maxmemory_policy") != "noeviction":
                raise StoreError(
                    f"the store {self.name} evicts keys when its memory is full; set maxmemory-policy noeviction"
                )
            if (found.get("redis_mode") == "cluster") != self.is_cluster:
                raise StoreError(
                    f"the store {self.name} is {'no' if self.is_cluster else 'a'} Redis Cluster; its URL begins with "
                    f"{'redis' if self.is_cluster else 'redis+cluster'}://"
                )

    async def dedicated(self) -> Redis:
        """A client of its own for a subscription, which waits for messages without a bound. Close it.

        Raises redis-py's errors and `TimeoutError`.
        """
        async with asyncio.timeout(self._wait_s):
            return await self._servers.dedicated()

    async def close(self) -> None:
        """Let go of every connection. Harmless the second time."""
        await self._servers.close()

    def __repr__(self) -> str:
        return f"<RedisLink {self.name} {'available' if self.is_available else f'faults={self.num_faults}'}>"

    def _note_answer(self, place: Place | None) -> None:
        """All is well with this server; those that are none of the store's any more are forgotten."""
        if self._faults:
            current = self._servers.places
            self._faults = {one: of for one, of in self._faults.items() if one != place and one in current}

    def _note_fault(self, place: Place | None) -> None:
        self._servers.doubt()
        faults = self._faults.setdefault(place, _Faults())
        faults.in_a_row += 1
        if (beyond := faults.in_a_row - FAULTS_BEFORE_PAUSE) >= 0:
            faults.paused_until = self._clock() + pause_s(beyond)


def pause_s(num_before: int) -> float:
    """How long to leave a store alone after so many pauses: doubling, bounded, and not in step with other gateways."""
    longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_before, 16))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # nothing secret
