"""Meters kept in a real Redis by the background task of one process: races, haste, outages, the end."""

import asyncio
import itertools
import time
from contextlib import aclosing

import pytest

from policies.leased_meters import LeasedMeters
from policies.meters import Counted, Meter, Moment, Short
from policies.redis_leases import new_gateway_id
from policies.redis_link import RedisLink
from policies.redis_meters import GRANT_S, RedisMeters
from policies.redis_nudges import nudges
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

_PREFIXES = (f"kept{number}" for number in itertools.count())


class Gateway:
    """One gateway's meters in this process, with a connection of its own, and an ear for the others."""

    def __init__(self, url: str, prefix: str, num_gateways: int = 1) -> None:
        self.link = RedisLink(url)
        channel = f"{prefix}:called"
        leased = LeasedMeters(new_gateway_id(), clock=time.monotonic)
        self.meters = RedisMeters(
            self.link, leased, channel=channel, prefix=prefix, clock=time.monotonic, num_gateways=lambda: num_gateways
        )
        self._channel = channel

    async def __aenter__(self):
        await self.meters.__aenter__()
        self._ear = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *_):
        self._ear.cancel()
        await asyncio.gather(self._ear, return_exceptions=True)
        await self.meters.__aexit__()
        await self.link.close()

    async def _listen(self):
        async with aclosing(nudges(self.link, self._channel)) as messages:
            async for message in messages:
                sender, *names = message.decode().split("\n")
                if sender != self.meters.leased.gateway:
                    self.meters.nudged(names)

    async def take(self, meter, amount=1, most_s=PATIENCE_S):
        """As the reserve step does: once more after the wait, if it is worth it; here it may be a long one."""
        taken = self.meters.leased.take(meter, amount, moment())
        if isinstance(taken, Short) and taken.is_pending and await self.meters.until_granted(meter, amount, most_s):
            taken = self.meters.leased.take(meter, amount, moment())
        return taken


def moment():
    return Moment(time.monotonic(), time.time())


@pytest.fixture
def prefix():
    return next(_PREFIXES)


def rpm(limit):
    return Meter("project:p", Counted.REQUESTS, limit)


async def test_a_first_request_waits_for_one_round_trip(shared_redis, prefix):  # noqa: F811
    """And the next ones for none."""
    async with Gateway(shared_redis.url, prefix) as gateway:
        assert not isinstance(await gateway.take(rpm(1000)), Short)
        num_calls = gateway.meters.num_calls
        assert not any(isinstance(gateway.meters.leased.take(rpm(1000), 1, moment()), Short) for _ in range(3))
        assert gateway.meters.num_calls == num_calls
        assert "leased" in repr(gateway.meters)


@pytest.mark.parametrize("limit", [3, 200])
async def test_64_takers_at_each_of_four_gateways_get_the_limit_and_no_more(shared_redis, prefix, limit):  # noqa: F811
    """The race: never one above the limit, and nearly all of it is used."""
    gateways = [Gateway(shared_redis.url, prefix, 4) for _ in range(4)]
    taken = 0

    async def taker(gateway):
        nonlocal taken
        num_refused = 0
        while num_refused < 3:
            if isinstance(await gateway.take(rpm(limit)), Short):
                num_refused += 1
                await asyncio.sleep(0.1)
            else:
                taken += 1
                await asyncio.sleep(0)

    async with gateways[0], gateways[1], gateways[2], gateways[3]:
        began_at = time.monotonic()
        async with asyncio.timeout(50):
            await asyncio.gather(*(taker(gateway) for gateway in gateways for _ in range(64)))
        assert taken <= limit, "within one window" if time.monotonic() - began_at < 60 else "over two windows"
        assert taken >= 0.9 * limit
        num_calls = sum(gateway.meters.num_calls for gateway in gateways)
    assert num_calls < 10 * limit + 100, "a refused taker costs no call of its own"


async def test_tokens_that_come_back_are_there_for_others_at_once(shared_redis, prefix):  # noqa: F811
    """One gateway reserves nearly all and uses little; another needs the rest now."""
    meter = Meter("project:p", Counted.TOKENS, 1000)
    async with Gateway(shared_redis.url, prefix) as one, Gateway(shared_redis.url, prefix) as other:
        reserved = await one.take(meter, 900)
        assert isinstance(await other.take(meter, 500), Short)
        reserved.correct(10, moment())
        async with asyncio.timeout(PATIENCE_S):
            while isinstance(await other.take(meter, 500), Short):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_without_a_server_nobody_waits_long_and_money_is_refused(prefix):
    """Nothing listens there: refused in the time a first request waits, admitted in part once it is an outage."""
    async with Gateway("redis://127.0.0.1:1/0", prefix, 2) as gateway:
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await gateway.take(rpm(160), most_s=GRANT_S), Short)
            while isinstance(await gateway.take(rpm(160), most_s=GRANT_S), Short):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        money = Meter("project:p", Counted.MONTH_MONEY, 1000, 1, 4_000_000_000)
        assert isinstance(await gateway.take(money, most_s=GRANT_S), Short)
        assert gateway.meters.is_degraded
        assert "degraded" in repr(gateway.meters)
    assert gateway.meters.last_fault


async def test_an_outage_is_counted_once_when_it_is_over(redis_server, prefix, bounded_calls):  # noqa: F811
    """P17: bounded meanwhile, told afterwards, well again by itself; the calls that hung count nothing twice."""
    meter = Meter("project:p", Counted.DAY_TOKENS, 100_000, 1, 4_000_000_000)
    async with Gateway(redis_server.url, prefix, 2) as gateway:
        takes = [await gateway.take(meter, 10)]
        redis_server.pause()
        async with asyncio.timeout(PATIENCE_S):
            while len(takes) < 60 or not gateway.meters.is_degraded:
                taken = await gateway.take(meter, 10, most_s=GRANT_S)
                if not isinstance(taken, Short):
                    takes.append(taken)
                await asyncio.sleep(0.02)
        redis_server.resume()
        async with asyncio.timeout(PATIENCE_S):
            while gateway.meters.is_degraded:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    with redis_server.client() as client:
        (key,) = client.keys(f"{prefix}:*rpm*") or client.keys(f"{prefix}:*tokens_per_day*")
        assert int(client.hget(key, "0")) == 10 * len(takes)


async def test_who_waits_is_told_no_as_soon_as_it_is_known(shared_redis, prefix):  # noqa: F811
    """A full limit is refused in a round trip, not after the longest wait."""
    async with Gateway(shared_redis.url, prefix) as one, Gateway(shared_redis.url, prefix) as other:
        num_taken = 0
        while num_taken < 5:  # a grant may come later than one asks for it
            num_taken += not isinstance(await one.take(rpm(5)), Short)
        async with asyncio.timeout(PATIENCE_S):
            assert isinstance(await other.take(rpm(5), most_s=100 * PATIENCE_S), Short)
        again = other.meters.leased.take(rpm(5), 1, moment())
        assert not again.is_pending
        assert 50 < again.retry_after_s < 63


async def test_the_wait_ends_with_its_caller(shared_redis, prefix):  # noqa: F811
    """A client that leaves while its first request waits leaves nothing behind."""
    async with Gateway(shared_redis.url, prefix) as gateway:
        waiting = asyncio.create_task(gateway.take(rpm(5)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert gateway.meters.leased.statistics()["takes"] == 0
        assert not isinstance(await gateway.take(rpm(5)), Short)


async def test_what_is_held_goes_back_at_the_end(shared_redis, prefix):  # noqa: F811
    """A stopped gateway leaves its part to the others at once, not after a lease."""
    async with Gateway(shared_redis.url, prefix) as gateway:
        await gateway.take(rpm(50))
    with shared_redis.client() as client:
        (key,) = client.keys(f"{prefix}:*rpm*")
        fields = client.hgetall(key)
    (entry,) = [value for name, value in fields.items() if name.startswith(b"@")]
    assert entry.split()[2] == b"0"
    assert sum(int(value) for name, value in fields.items() if not name.startswith(b"@")) == 1
