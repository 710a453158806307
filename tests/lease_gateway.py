"""A process that takes and gives back leased units as fast as its clients want, for tests with several processes.

Run as a program: URL RESOURCE CAP LEASE_S NUM_CLIENTS HOLD_S PAUSE_S. It notes each unit in use as a member of a set in
Redis, where the most that there ever were at once is kept, as a replica would see it. Prints its id at the start, and
as JSON what it did at SIGTERM.
"""

import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from redis.asyncio import Redis

from policies.local_holdings import LocalHoldings
from policies.redis_leases import RedisLeases, lease_clock, new_gateway_id
from policies.redis_link import RedisLink
from policies.store import StoreError

IN_USE, MOST = "test:in_use", "test:most"
STALE_S = 1.0
# A replica does not take what was sent too long ago (by a process that was frozen in between).
BEGIN = """
local time = redis.call('TIME')
if time[1] + time[2] / 1e6 - ARGV[2] > tonumber(ARGV[3]) then return 0 end
redis.call('SADD', KEYS[1], ARGV[1])
local count = redis.call('SCARD', KEYS[1])
if count > tonumber(redis.call('GET', KEYS[2]) or 0) then redis.call('SET', KEYS[2], count) end
return 1
"""


class Clients:
    """Clients that each hold one unit for a while, then want the next."""

    def __init__(self, holdings: LocalHoldings, resource: str, cap: int, replica: RedisLink) -> None:
        self._holdings = holdings
        self._resource = resource
        self._cap = cap
        self._replica = replica
        self._freed = asyncio.Condition()
        self._tokens = (f"{holdings.gateway}/{number}" for number in itertools.count())
        self.num_waiting = 0
        self.num_served = 0
        self.longest_wait_s = 0.0

    async def wake(self) -> None:
        async with self._freed:
            self._freed.notify_all()

    async def run(self, hold_s: float, pause_s: float) -> None:
        while True:
            await self._take()
            try:
                await self._use(next(self._tokens), hold_s)
            finally:
                self._holdings.give_back(self._resource)
            await self.wake()
            await asyncio.sleep(pause_s)

    async def _use(self, token: str, hold_s: float) -> None:
        """Be seen by the replica for so long, or until cancelled."""

        def begin(redis: Redis) -> Awaitable[int]:
            return redis.eval(BEGIN, 2, IN_USE, MOST, token, str(time.time()), STALE_S)

        try:
            is_taken = await self._replica.call(begin)
            await asyncio.sleep(hold_s)
            self.num_served += is_taken
        except StoreError:  # the counter is away, the lease may not be
            await asyncio.sleep(hold_s)
        finally:
            with suppress(StoreError):
                await self._replica.call(lambda redis: redis.srem(IN_USE, token))

    async def _take(self) -> None:
        began_at = time.monotonic()
        self.num_waiting += 1
        while not self._holdings.try_take(self._resource, self._cap, lease_clock(), self.num_waiting):
            async with self._freed:
                try:
                    async with asyncio.timeout(0.25):
                        await self._freed.wait()
                except TimeoutError:
                    continue
        self.num_waiting -= 1
        self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - began_at)


async def run(  # noqa: PLR0917  # as on the command line
    url: str, resource: str, cap: int, lease_s: float, num_clients: int, hold_s: float, pause_s: float
) -> None:
    """Until SIGTERM."""
    holdings, link = LocalHoldings(new_gateway_id(), lease_s=lease_s), RedisLink(url)
    replica = RedisLink(url, call_s=0.5)
    clients = Clients(holdings, resource, cap, replica)
    background: set[asyncio.Task[None]] = set()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with RedisLeases(link, holdings, on_raise=_soon(clients.wake, background)) as leases:
        print(holdings.gateway, flush=True)
        tasks = [asyncio.create_task(clients.run(hold_s, pause_s)) for _ in range(num_clients)]
        await stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await link.close()
    await replica.close()
    done = {"served": clients.num_served, "longest_wait_s": clients.longest_wait_s, "calls": leases.num_calls}
    print(json.dumps(done), flush=True)


def _soon(work: Callable, kept: set) -> Callable[[], None]:
    def start() -> None:
        task = asyncio.create_task(work())
        kept.add(task)
        task.add_done_callback(kept.discard)

    return start


if __name__ == "__main__":
    of, named, *numbers = sys.argv[1:]
    most, *seconds = (float(number) for number in numbers)
    asyncio.run(run(of, named, int(most), seconds[0], int(seconds[1]), seconds[2], seconds[3]))
