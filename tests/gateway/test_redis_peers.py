"""Gateways that meet in a real Redis: what they take together, how one stands, and what the dead leave."""

import asyncio
import itertools

import pytest

from gateway.redis_peers import Burials, RedisPeers
from policies.meters import Counted, Meter, Moment, Short
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures

LEASE_S = 0.4
CAP = "cap:p:bulk"


class Gateway:
    """One gateway's peers; waits for what the background does, by being told."""

    def __init__(self, url, number=1, processes=2):
        self.peers = RedisPeers(url, number=number, processes=processes, lease_s=LEASE_S)
        self.raised = asyncio.Event()
        self.peers.on_raise = self.raised.set

    async def take(self, limit):
        """Take one unit as soon as it can be had."""
        async with asyncio.timeout(10):
            while not self.peers.try_take(CAP, limit, 0.0):
                self.raised.clear()
                await self.raised.wait()


async def until(condition):
    """Wait for what happens in the background."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_two_gateways_share_a_limit_and_give_all_of_it_back(redis_server):  # noqa: F811
    """The sum is the limit; who leaves in order leaves it to the other at once."""
    first, second = Gateway(redis_server.url, 1), Gateway(redis_server.url, 2)
    async with first.peers:
        await first.peers.until_granting()
        assert not first.peers.is_degraded
        async with second.peers:
            await second.peers.until_granting()
            await first.take(3)
            await second.take(3)
            await until(lambda: first.peers.num_gateways == second.peers.num_gateways == 2)
            taken = 2 + sum(one.peers.try_take(CAP, 3, 0.0) for one in (first, second, first, second))
            assert taken <= 3
            while second.peers.statistics()["units_in_use"]:
                second.peers.give_back(CAP)
        await until(lambda: first.peers.num_gateways == 1)
        while first.peers.statistics()["units_in_use"] < 3:
            await first.take(3)
        for _ in range(3):
            first.peers.give_back(CAP)
        assert first.peers.statistics()["units_in_use"] == 0
    assert first.peers.overdue(0.0) == {}
    with redis_server.client() as client:
        assert client.hgetall("warmlane:{leases}:gateways") == {}


async def test_request_limits_are_divided_by_who_lives(redis_server):  # noqa: F811
    """Two processes of one node, then a third gateway of another: nobody knows its place, so a remainder is left."""
    first, second = Gateway(redis_server.url, 1), Gateway(redis_server.url, 2)
    assert (first.peers.share(5), second.peers.share(5)) == (3, 2)
    async with first.peers, second.peers, Gateway(redis_server.url, 1, 1).peers:
        await until(lambda: first.peers.num_gateways == 3)
        assert first.peers.share(5) == 1


async def test_a_store_that_is_away_is_told_and_comes_back_by_itself(redis_server):  # noqa: F811
    """P17: degraded within a lease, well again soon after."""
    gateway = Gateway(redis_server.url)
    assert gateway.peers.is_degraded
    async with gateway.peers:
        await gateway.peers.until_granting()
        redis_server.pause()
        await until(lambda: gateway.peers.is_degraded)
        redis_server.resume()
        await until(lambda: not gateway.peers.is_degraded)


async def test_a_start_without_a_store_does_not_wait_for_ever():
    """Nothing listens there: after two leases the gateway serves with what it is allowed."""
    gateway = Gateway("redis://127.0.0.1:1/0")
    async with gateway.peers:
        async with asyncio.timeout(10):
            await gateway.peers.until_granting()
        assert gateway.peers.is_degraded
        assert not gateway.peers.try_take(CAP, 3, 0.0)


async def test_the_dead_are_buried_before_their_lease_ends(redis_server):  # noqa: F811
    """What a killed process held is free again; a burial too many, or of somebody unknown, harms nobody."""
    dead = RedisPeers(redis_server.url, number=1, processes=2, lease_s=1000.0)
    heir = Gateway(redis_server.url, 2)
    burials = Burials(redis_server.url, wait_s=0.0)
    with redis_server.client() as client:
        client.hset("warmlane:{leases}:gateways", dead.gateway, "1 1 9999999999999")
        burials.died(dead.gateway)
        burials.died("nobody")
        await until(lambda: not client.hexists("warmlane:{leases}:gateways", dead.gateway))
    await until(lambda: not burials._under_way)
    await burials.close()
    async with heir.peers:
        await until(lambda: heir.peers.num_gateways == 1)
        assert heir.peers.gateway != dead.gateway


async def test_a_burial_that_cannot_be_made_is_left_to_the_lease():
    """The store is away, or the supervisor ends first."""
    burials = Burials("redis://127.0.0.1:1/0", wait_s=0.0)
    burials.died("x")
    await until(lambda: not burials._under_way)
    await burials.close()
    late = Burials("redis://127.0.0.1:1/0", wait_s=1000.0)
    late.died("x")
    await late.close()
    assert not late._under_way


def test_no_two_runs_have_one_id():
    """A restarted gateway must not be taken for the dead one."""
    ids = [RedisPeers("redis://127.0.0.1:1/0", number=1, processes=1).gateway for _ in range(20)]
    assert all(one != other for one, other in itertools.combinations(ids, 2))


@pytest.mark.parametrize("limit", [0, 4])
def test_a_limit_may_change_at_any_time(limit):
    """What is above it in use stays in use; there is nothing to change for what is not held."""
    peers = RedisPeers("redis://127.0.0.1:1/0", number=1, processes=1)
    peers.relimit(CAP, limit)
    assert peers.statistics()["resources"] == 0
    assert "1 of 1" in repr(peers)


async def take(peers, meter, amount=1):
    """As the reserve step does: once more after the wait, if it is worth it."""
    moment = Moment(0.0, 1_700_000_000.0)
    taken = peers.meters.take(meter, amount, moment)
    if isinstance(taken, Short) and taken.is_pending and await peers.until_granted(meter, amount):
        taken = peers.meters.take(meter, amount, moment)
    return taken


async def test_gateways_count_a_rate_together(redis_server):  # noqa: F811
    """Five requests a minute are five over both, whoever gets them; what one holds unused comes to the other."""
    meter = Meter("project:p", Counted.REQUESTS, 5)
    first, second = Gateway(redis_server.url, 1), Gateway(redis_server.url, 2)
    async with first.peers, second.peers:
        taken = [await take(one.peers, meter) for one in (first, second, second, second, second, second, first)]
        assert sum(not isinstance(each, Short) for each in taken) == 5
        assert not first.peers.is_limits_degraded
        assert first.peers.meters.statistics()["takes"] + second.peers.meters.statistics()["takes"] == 5


async def test_limits_are_decided_in_part_without_the_store_and_money_is_not(redis_server):  # noqa: F811
    """The documented choice of each limit, told by a gauge, and over when the store is back."""
    rate = Meter("project:p", Counted.TOKENS, 10_000)
    money = Meter("project:p", Counted.MONTH_MONEY, 10_000, 1, 4_000_000_000)
    gateway = Gateway(redis_server.url)
    async with gateway.peers:
        for meter in (rate, money):
            assert not isinstance(await take(gateway.peers, meter, 10), Short)
        redis_server.pause()
        await until(lambda: gateway.peers.is_limits_degraded)
        await until(lambda: isinstance(gateway.peers.meters.take(money, 1, Moment(0.0, 0.0)), Short))
        assert not isinstance(await take(gateway.peers, rate, 10), Short)
        redis_server.resume()
        await until(lambda: not gateway.peers.is_limits_degraded)
        assert not isinstance(await take(gateway.peers, money, 10), Short)
