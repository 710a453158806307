"""Leases kept in a real Redis by the background task of one process: renewal, haste, outages, the end."""

import asyncio
import itertools

import pytest

from policies.local_holdings import LocalHoldings
from policies.redis_leases import RENEWALS_PER_LEASE, RedisLeases, bury, lease_clock, new_gateway_id
from policies.redis_link import RedisLink
from policies.store import StoreError
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

LEASE_S = 1.0
LONG_S = 20.0
SOON_S = 0.8 * LONG_S / RENEWALS_PER_LEASE  # what comes so soon did not wait for the next renewal
SEAT = "seat:r"
_PREFIXES = (f"leases{number}" for number in itertools.count())


class Gateway:
    """One gateway in this process, with a connection of its own."""

    def __init__(self, url: str, prefix: str, lease_s: float = LEASE_S) -> None:
        self.link = RedisLink(url)
        self.holdings = LocalHoldings(new_gateway_id(), lease_s=lease_s)
        self.raised = asyncio.Event()
        self.leases = RedisLeases(self.link, self.holdings, prefix=prefix, on_raise=self.raised.set)

    async def take(self, limit: int, most_s: float = PATIENCE_S) -> float:
        """One unit; seconds it took. Raises `TimeoutError`."""
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
    """Long before the next renewal, also one that another gateway has to free."""
    first = await join(shared_redis, prefix, lease_s=LONG_S)
    await _recovered(first.link, prefix)
    second = await join(shared_redis, prefix, lease_s=LONG_S)
    assert await first.take(3) < SOON_S
    assert await first.take(3) < SOON_S
    assert await second.take(3) < SOON_S
    first.holdings.give_back(SEAT)
    first.holdings.give_back(SEAT)
    assert await second.take(3) < SOON_S


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
    calls = gateway.leases.num_calls
    taking = asyncio.create_task(other.take(1))
    while gateway.leases.num_calls < calls + 6:  # a lease and a half  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not taking.done()
    taking.cancel()
    assert not gateway.leases.is_degraded
    assert gateway.holdings.overdue(lease_clock()) == {}


async def test_a_gateway_that_stops_gives_all_back_at_once(join, shared_redis, prefix):  # noqa: F811
    """A rolling restart must not cost a lease."""
    first = Gateway(shared_redis.url, prefix, lease_s=LONG_S)
    await _recovered(first.link, prefix)
    async with first.leases:
        await first.take(2)
        await first.take(2)
        second = await join(shared_redis, prefix, lease_s=LONG_S)
        first.holdings.give_back(SEAT)
        first.holdings.give_back(SEAT)
    await first.link.close()
    assert await second.take(2) < SOON_S
    assert await second.take(2) < SOON_S


async def test_a_buried_gateway_is_not_waited_for(join, shared_redis, prefix):  # noqa: F811
    """The supervisor has seen the process end."""
    link, dead = RedisLink(shared_redis.url), Gateway(shared_redis.url, prefix, lease_s=LONG_S)
    await _recovered(link, prefix)
    await dead.leases.__aenter__()
    await dead.take(1)
    for task in dead.leases._tasks:  # it dies without a word
        task.cancel()
    await asyncio.gather(*dead.leases._tasks, return_exceptions=True)
    other = await join(shared_redis, prefix, lease_s=LONG_S)
    assert await bury(link, dead.holdings.gateway, prefix=prefix)
    assert not await bury(link, dead.holdings.gateway, prefix=prefix)
    assert await other.take(1) < SOON_S
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


async def test_a_frozen_redis_does_not_hold_up_the_event_loop(join, redis_server, prefix, bounded_calls):  # noqa: F811
    """P17: every call is bounded, and nothing on a request's path waits for one."""
    gateway = await join(redis_server, prefix)
    await gateway.take(3)
    redis_server.pause()
    turns = NumTurns(gateway.link)
    while not gateway.leases.is_degraded:
        gateway.holdings.try_take(SEAT, 3, lease_clock())
        await asyncio.sleep(0.001)
        turns.num += 1
    assert len(turns.during_calls) > 1
    assert min(turns.during_calls) > 0
    redis_server.resume()
    await gateway.take(3)


class NumTurns:
    """`num`: turns of somebody else's loop; `during_calls`: how many there were while each call of the link lasted."""

    def __init__(self, link: RedisLink) -> None:
        self.num = 0
        self.during_calls: list[int] = []
        self._call = link.call
        link.call = self._counted

    async def _counted(self, *args, **options):
        before = self.num
        try:
            return await self._call(*args, **options)
        except StoreError as error:
            if "no answer in time" in str(error):  # and not at once, because it is known to be away
                self.during_calls.append(self.num - before)
            raise


async def test_stopping_without_redis_is_bounded(redis_server, prefix, bounded_calls):  # noqa: F811
    """A gateway must be able to end while its store is away."""
    gateway = Gateway(redis_server.url, prefix)
    async with asyncio.timeout(PATIENCE_S):
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
