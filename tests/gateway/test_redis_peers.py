"""Gateways that meet in a real Redis: what they take together, how one stands, and what the dead leave."""

import asyncio
import contextlib
import itertools
from types import SimpleNamespace

import pytest

from gateway import redis_peers
from gateway.redis_peers import UNIT_S, Burials, RedisPeers
from gateway.reserving import PLACE_S
from policies.in_flight import Unit
from policies.local_holdings import DRY_S
from policies.meters import Counted, Meter, Moment, Short
from policies.redis_leases import RENEWALS_PER_LEASE
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

LEASE_S = 0.4
LONG_S = 60.0  # a lease in which no renewal comes by itself while a test runs
SOON_S = LONG_S / RENEWALS_PER_LEASE / 2  # what comes so soon did not wait for the next renewal
CAP = "cap:p:bulk"


class Gateway:
    """One gateway's peers; waits for what the background does, by being told."""

    def __init__(self, url, lease_s=LEASE_S):
        self.peers = RedisPeers(url, lease_s=lease_s)
        self.raised = asyncio.Event()
        self.peers.on_raise = self.raised.set

    async def take(self, limit):
        """Take one unit as soon as it can be had."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.peers.try_take(CAP, limit, 0.0):
                self.raised.clear()
                await self.raised.wait()


async def until(condition):
    """Wait for what happens in the background."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_two_gateways_share_a_limit_and_give_all_of_it_back(redis_server):  # noqa: F811
    """The sum is the limit; who leaves in order leaves it to the other at once."""
    first, second = Gateway(redis_server.url), Gateway(redis_server.url)
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


class InFlight:
    """Requests in flight of one tenant at one gateway, refused or admitted as the reserve step does it."""

    def __init__(self, gateway, limit):
        self.peers = gateway.peers
        self.unit = Unit(CAP, limit)

    async def begin(self, most_s=PLACE_S):
        """Whether a request finds a place, after the wait if there is one."""
        if self.peers.try_take(CAP, self.unit.limit, 0.0):
            return True
        is_worth_it = self.peers.may_come(CAP, 0.0) and await self.peers.until_granted(self.unit, 1, most_s)
        return is_worth_it and self.peers.try_take(CAP, self.unit.limit, 0.0)

    def end(self, count=1):
        """So many requests are over."""
        for _ in range(count):
            self.peers.give_back(CAP)


@contextlib.asynccontextmanager
async def two(redis_server, limit, lease_s=LONG_S):  # noqa: F811
    """Two gateways that know each other and are granted what there is, on a Redis that has recovered long ago."""
    with redis_server.client() as client:
        state = {"run": client.info("server")["run_id"], "recovered_ms": 1}
        client.hset("warmlane:{leases}:state", mapping=state)
    url = redis_server.url
    async with Gateway(url, lease_s).peers as first, Gateway(url, lease_s).peers as second:
        await until(lambda: first.num_gateways and second.num_gateways)
        for one in (first, second):  # whoever came first does not know of the other yet
            await one._leases.renew()
        assert first.num_gateways == second.num_gateways == 2
        yield InFlight(SimpleNamespace(peers=first), limit), InFlight(SimpleNamespace(peers=second), limit)


@pytest.mark.parametrize("limit", [1, 3, 64])
async def test_a_lone_gateway_has_all_places_in_flight_while_others_are_idle(redis_server, limit):  # noqa: F811
    """Nothing is kept for who does not ask, and what another held unused is given up at once, not when forgotten."""
    async with two(redis_server, limit) as (first, second):
        assert [await first.begin() for _ in range(limit)] == [True] * limit
        assert not await second.begin()
        first.end(limit)
        began_at = asyncio.get_running_loop().time()
        num_begun = 0
        while num_begun < limit:  # it was told a moment ago that there is none, and hears first that there is
            num_begun += await second.begin()
            await asyncio.sleep(0)
        took_s = asyncio.get_running_loop().time() - began_at
        assert took_s < SOON_S, took_s
        assert not await first.begin()
        second.end(limit)


async def test_a_client_that_meets_another_gateway_each_time_is_served(redis_server, monkeypatch):  # noqa: F811
    """One place in flight goes where the request is, however often it moves, and however slow the machine."""
    monkeypatch.setattr(redis_peers, "UNIT_S", PATIENCE_S)
    async with two(redis_server, 1) as both:
        for number in range(20):
            one = both[number % 2]
            assert await one.begin(PATIENCE_S), number
            one.end()


async def test_who_is_over_the_limit_is_refused_at_once_after_one_has_waited(redis_server):  # noqa: F811
    """A flood of refusals costs one short wait, not one for each."""
    async with two(redis_server, 2) as (first, second):
        assert await first.begin()
        assert await first.begin()
        assert not await second.begin()
        assert not second.peers.may_come(CAP, 0.0)
        assert not first.peers.may_come(CAP, 0.0), "all of the limit is in use here: nobody else has any"
        await asyncio.sleep(DRY_S)
        assert not second.peers.try_take(CAP, 2, 0.0)
        assert second.peers.may_come(CAP, 0.0)
        first.end(2)


async def test_a_place_that_nobody_uses_is_waited_for_by_as_many_as_there_are(redis_server):  # noqa: F811
    """Who holds it may be slow to give it up, on a busy machine: that is no reason to refuse within the limit."""
    slow_s = 1.5 * UNIT_S
    async with two(redis_server, 2) as (slow, other):
        assert await slow.begin()
        assert await slow.begin()
        slow.end()
        await slow.peers._leases.renew()
        assert slow.peers.statistics() == {"units_in_use": 1, "units_held": 2, "resources": 1}
        leases = slow.peers._leases
        for task in leases._tasks:
            task.cancel()
        asked = [asyncio.create_task(other.begin(PATIENCE_S)) for _ in range(3)]
        await asyncio.sleep(slow_s)
        assert [one.result() for one in asked if one.done()] == [False, False]
        await leases.__aenter__()
        assert await next(one for one in asked if not one.done())
        slow.end()
        other.end()


async def test_places_in_flight_never_exceed_the_limit_whoever_asks(redis_server):  # noqa: F811
    """64 clients at two gateways, limit 5, requests of some milliseconds: 5 at a time at most, and nearly always 5."""
    running, most, seen = 0, 0, []
    async with two(redis_server, 5) as both:

        async def go_on(one):
            nonlocal running, most
            for _ in range(40):
                if await one.begin():
                    running += 1
                    most = max(most, running)
                    seen.append(running)
                    await asyncio.sleep(0.005)
                    running -= 1
                    one.end()
                else:
                    await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            for number in range(64):
                group.create_task(go_on(both[number % 2]))
    assert most == 5
    assert sum(seen) / len(seen) > 3


async def test_places_of_a_killed_gateway_come_back_in_a_lease(redis_server):  # noqa: F811
    """kill -9: it says nothing any more, and what it had in flight is free for others once its lease is over."""
    async with two(redis_server, 3, LEASE_S) as (heir, other):
        assert [await other.begin() for _ in range(3)] == [True] * 3
        for task in other.peers._leases._tasks:
            task.cancel()
        with redis_server.client() as client:
            *_, expires_ms = client.hget("warmlane:{leases}:gateways", other.peers.gateway).split()
        async with asyncio.timeout(PATIENCE_S):
            while not await heir.begin():  # noqa: ASYNC110  # clients ask again and again
                await asyncio.sleep(0.01)
        with redis_server.client() as client:
            seconds, microseconds = client.time()
        assert seconds * 1000 + microseconds / 1000 >= int(expires_ms)
        assert await heir.begin()
        assert await heir.begin()
        assert not await heir.begin()
        heir.end(3)
        other.end(3)


async def test_a_store_that_is_away_is_told_and_comes_back_by_itself(redis_server, bounded_calls):  # noqa: F811
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
        async with asyncio.timeout(PATIENCE_S):
            await gateway.peers.until_granting()
        assert gateway.peers.is_degraded
        assert not gateway.peers.try_take(CAP, 3, 0.0)


async def test_the_dead_are_buried_before_their_lease_ends(redis_server):  # noqa: F811
    """What a killed process held is free again; a burial too many, or of somebody unknown, harms nobody."""
    dead = RedisPeers(redis_server.url, lease_s=1000.0)
    heir = Gateway(redis_server.url)
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
    ids = [RedisPeers("redis://127.0.0.1:1/0").gateway for _ in range(20)]
    assert all(one != other for one, other in itertools.combinations(ids, 2))


@pytest.mark.parametrize("limit", [0, 4])
def test_a_limit_may_change_at_any_time(limit):
    """What is above it in use stays in use; there is nothing to change for what is not held."""
    peers = RedisPeers("redis://127.0.0.1:1/0")
    peers.relimit(CAP, limit)
    assert peers.statistics()["resources"] == 0
    assert "RedisPeers" in repr(peers)


async def take(peers, meter, amount=1):
    """As the reserve step does: once more after the wait, if it is worth it."""
    moment = Moment(0.0, 1_700_000_000.0)
    taken = peers.meters.take(meter, amount, moment)
    if isinstance(taken, Short) and taken.is_pending and await peers.until_granted(meter, amount, PATIENCE_S):
        taken = peers.meters.take(meter, amount, moment)
    return taken


async def test_gateways_count_a_rate_together(redis_server):  # noqa: F811
    """Five requests a minute are five over both, whoever gets them; what one holds unused comes to the other."""
    meter = Meter("project:p", Counted.REQUESTS, 5)
    first, second = Gateway(redis_server.url), Gateway(redis_server.url)
    async with first.peers, second.peers:
        taken = [await take(one.peers, meter) for one in (first, second, second, second, second, second, first)]
        assert sum(not isinstance(each, Short) for each in taken) == 5
        assert not first.peers.is_limits_degraded
        assert first.peers.meters.statistics()["takes"] + second.peers.meters.statistics()["takes"] == 5


async def test_limits_are_decided_in_part_without_the_store_and_money_is_not(redis_server, bounded_calls):  # noqa: F811
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
