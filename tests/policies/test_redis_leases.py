"""Leases kept in a real Redis by the background task of one process: renewal, haste, outages, the end."""

import asyncio
import itertools

import pytest

from policies.local_holdings import LocalHoldings
from policies.redis_leases import RedisLeases, bury, lease_clock, new_gateway_id
from policies.redis_link import RedisLink
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures

LEASE_S = 0.6
SEAT = "seat:r"
_PREFIXES = (f"leases{number}" for number in itertools.count())


class Gateway:
    """One gateway in this process, with a connection of its own."""

    def __init__(self, url: str, prefix: str, lease_s: float = LEASE_S) -> None:
        self.link = RedisLink(url)
        self.holdings = LocalHoldings(new_gateway_id(), lease_s=lease_s)
        self.raised = asyncio.Event()
        self.leases = RedisLeases(self.link, self.holdings, prefix=prefix, on_raise=self.raised.set)

    async def take(self, limit: int, most_s: float = 5.0) -> float:
        """One unit; seconds it took, None if not in time."""
        began_at = lease_clock()
        async with asyncio.timeout(most_s):
            while not self.holdings.try_take(SEAT, limit, lease_clock()):
                self.raised.clear()
                try:
                    async with asyncio.timeout(0.1):
                        await self.raised.wait()
                except TimeoutError:
                    continue
        return lease_clock() - began_at


@pytest.fixture
async def join():
    """A function that starts a gateway; all are stopped at the end."""
    running = []

    async def start(server, prefix: str, lease_s: float = LEASE_S) -> Gateway:
        gateway = Gateway(server.url, prefix, lease_s)
        await gateway.leases.__aenter__()
        running.append(gateway)
        return gateway

    yield start
    for gateway in running:
        await gateway.leases.__aexit__()
        await gateway.link.close()


@pytest.fixture
def prefix():
    return next(_PREFIXES)


async def test_units_come_in_the_background_and_taking_needs_no_round_trip(join, shared_redis, prefix):  # noqa: F811
    """The first use of a resource asks; from then on its units are here."""
    gateway = await join(shared_redis, prefix)
    await gateway.take(3)
    while gateway.holdings.statistics()["units_held"] < 2:
        await gateway.take(3)
    calls = gateway.leases.num_calls
    gateway.holdings.give_back(SEAT)
    assert gateway.holdings.try_take(SEAT, 3, lease_clock())
    assert gateway.leases.num_calls == calls
    assert "leased" in repr(gateway.leases)


async def test_what_is_lacking_is_asked_for_at_once(join, shared_redis, prefix):  # noqa: F811
    """With a lease of ten seconds a unit still comes in milliseconds, also one that another gateway has to free."""
    first = await join(shared_redis, prefix, lease_s=10.0)
    await _recovered(first.link, prefix)
    second = await join(shared_redis, prefix, lease_s=10.0)
    assert await first.take(3) < 0.5
    assert await first.take(3) < 0.5
    assert await second.take(3) < 1.0
    first.holdings.give_back(SEAT)
    first.holdings.give_back(SEAT)
    assert await second.take(3) < 1.0


async def test_asking_is_bounded_in_rate(join, shared_redis, prefix):  # noqa: F811
    """However often a waiting request tries again, a hundred calls a second are the most."""
    gateway = await join(shared_redis, prefix)
    await gateway.take(1)
    other = await join(shared_redis, prefix)
    calls, began_at = other.leases.num_calls, lease_clock()
    while lease_clock() < began_at + 0.5:
        assert not other.holdings.try_take(SEAT, 1, lease_clock())
        await asyncio.sleep(0)
    assert other.leases.num_calls - calls <= 55


async def test_what_is_held_stays_held(join, shared_redis, prefix):  # noqa: F811
    """Renewal goes on for as long as a request lasts."""
    gateway = await join(shared_redis, prefix)
    await gateway.take(1)
    other = await join(shared_redis, prefix)
    with pytest.raises(TimeoutError):
        await other.take(1, 3 * LEASE_S)
    assert not gateway.leases.is_degraded
    assert gateway.holdings.overdue(lease_clock()) == {}


async def test_a_gateway_that_stops_gives_all_back_at_once(join, shared_redis, prefix):  # noqa: F811
    """A rolling restart must not cost a lease."""
    first = Gateway(shared_redis.url, prefix, lease_s=10.0)
    await _recovered(first.link, prefix)
    async with first.leases:
        await first.take(2)
        await first.take(2)
        second = await join(shared_redis, prefix, lease_s=10.0)
        first.holdings.give_back(SEAT)
        first.holdings.give_back(SEAT)
    await first.link.close()
    assert await second.take(2) < 1.0
    assert await second.take(2) < 1.0


async def test_a_buried_gateway_is_not_waited_for(join, shared_redis, prefix):  # noqa: F811
    """The supervisor has seen the process end."""
    link, dead = RedisLink(shared_redis.url), Gateway(shared_redis.url, prefix, lease_s=10.0)
    await _recovered(link, prefix)
    await dead.leases.__aenter__()
    await dead.take(1)
    for task in dead.leases._tasks:  # it dies without a word
        task.cancel()
    await asyncio.gather(*dead.leases._tasks, return_exceptions=True)
    other = await join(shared_redis, prefix, lease_s=10.0)
    assert await bury(link, dead.holdings.gateway, prefix=prefix)
    assert not await bury(link, dead.holdings.gateway, prefix=prefix)
    assert await other.take(1) < 1.0
    await dead.link.close()
    await link.close()


async def test_without_redis_nothing_new_and_afterwards_all_again(join, redis_server, prefix):  # noqa: F811
    """P17: killed and back without its memory: degraded is seen, taking never waits, and it recovers by itself."""
    gateway = await join(redis_server, prefix)
    await gateway.take(3)
    redis_server.kill()
    while not gateway.leases.is_degraded:  # noqa: ASYNC110  # nothing announces it
        await asyncio.sleep(0.02)
    assert "degraded" in repr(gateway.leases)
    assert not gateway.holdings.try_take(SEAT, 3, lease_clock())
    assert gateway.holdings.overdue(lease_clock()) == {SEAT: 1}
    assert gateway.leases.last_fault
    redis_server.start()
    await gateway.take(3)
    assert not gateway.leases.is_degraded


async def test_a_frozen_redis_does_not_hold_up_the_event_loop(join, redis_server, prefix):  # noqa: F811
    """P17: every call is bounded, and nothing on a request's path waits for one."""
    gateway = await join(redis_server, prefix)
    await gateway.take(3)
    redis_server.pause()
    longest, ends_at = 0.0, lease_clock() + 2 * LEASE_S
    while lease_clock() < ends_at:
        began_at = lease_clock()
        gateway.holdings.try_take(SEAT, 3, began_at)
        await asyncio.sleep(0.001)
        longest = max(longest, lease_clock() - began_at)
    assert longest < 0.3
    assert gateway.leases.is_degraded
    redis_server.resume()
    await gateway.take(3)


async def test_stopping_without_redis_is_bounded(redis_server, prefix):  # noqa: F811
    """A gateway must be able to end while its store is away."""
    gateway = Gateway(redis_server.url, prefix)
    async with asyncio.timeout(3.0):
        async with gateway.leases:
            await gateway.take(3)
            redis_server.pause()
        await gateway.link.close()
    redis_server.resume()
    assert gateway.leases.last_fault


async def _recovered(link: RedisLink, prefix: str) -> None:
    """Let this prefix be one that has recovered already, so that a test with a long lease need not wait for it."""
    run_id = (await link.call(lambda redis: redis.info("server")))["run_id"]
    state = {"run": run_id, "recovered_ms": 1}
    await link.call(lambda redis: redis.hset(f"{prefix}:{{leases}}:state", mapping=state))
