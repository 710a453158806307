"""The store, leases and meters on a primary under Sentinel and on a Cluster: both serve as one server does."""

import asyncio
import contextlib
import itertools
import time

import pytest
from redis.crc import key_slot

from gateway.redis_peers import Burials, RedisPeers
from policies.lane import Lane
from policies.ledger import Group, LedgerRow, Retention, Wanted
from policies.meters import Counted, Meter, Moment, Short
from policies.redis_claims import RedisCacheClaims
from policies.redis_ledger import RedisLedger
from policies.redis_link import RedisLink
from policies.redis_meters import GRANT_S
from policies.redis_nudges import nudges
from policies.redis_store import RedisStore
from policies.store import Level, NewKey, StoreError
from tests.redis_groups import ClusterGroup, SentinelGroup, running, wait_until
from tests.redis_server import redis_program  # noqa: F401  # fixture
from tests.scripted_engine import PATIENCE_S

NUM_GATEWAYS = 4
LIMIT = 3000  # takes about five seconds of the load, so that a failover falls into it
MOST_LOST = 200  # grants of the last moments, which the new primary has not heard of
_PREFIXES = (f"group{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def sentinel(redis_program):  # noqa: F811
    with running(SentinelGroup) as group:
        yield group


@pytest.fixture(scope="module")
def cluster(redis_program):  # noqa: F811
    with running(ClusterGroup) as group:
        yield group


@pytest.fixture(params=["sentinel", "cluster"])
def group(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def prefix():
    return next(_PREFIXES)


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_organisations_projects_and_keys_are_kept(group, prefix):
    """Transactions that watch, read together and publish, wherever the keys are."""
    async with await RedisStore.open(group.url, prefix=prefix) as store:
        organization = await store.create_organization("Acme")
        project = await store.create_project("chat", organization.id)
        key, secret = await store.create_key(NewKey(project.id, "k", frozenset(), Lane.INTERACTIVE, None, None))
        await asyncio.gather(*(store.set_limits(Level.PROJECT, project.id, b'{"rpm":%d}' % n) for n in range(5)))
        snapshot = await store.snapshot()
        assert [one.id for one in snapshot.keys] == [key.id]
        assert [one.digest for one in snapshot.digests] == [secret.digest]
    async with await RedisStore.open(group.url, prefix=prefix) as store:
        assert (await store.project(project.id)).name == "chat"


async def test_a_nudge_reaches_every_subscriber(group, prefix):
    """Published at one server, heard at another."""
    link = RedisLink(group.url)
    heard = nudges(link, f"{prefix}:channel")
    assert await anext(heard) == b""
    hearing = asyncio.create_task(anext(heard))
    async with asyncio.timeout(PATIENCE_S):
        while not hearing.done():  # other servers of a Cluster may not know of the subscription yet
            await link.call(lambda redis: redis.publish(f"{prefix}:channel", b"look"))
            await asyncio.wait([hearing], timeout=0.1)
    assert hearing.result() == b"look"
    await heard.aclose()
    await link.close()


async def test_two_gateways_share_leases_and_meters(group):
    """What one takes the other cannot, and what is given back is there again."""
    one, other = (RedisPeers(group.url, lease_s=1.0) for number in (1, 2))
    limit = Meter(f"project:{next(_PREFIXES)}", Counted.REQUESTS, 5)
    async with one, other:
        await one.until_granting()
        await other.until_granting()
        assert not one.is_degraded
        await until(lambda: one.try_take("cap:p:bulk", 1, 0.0))
        assert not other.try_take("cap:p:bulk", 1, 0.0)
        one.give_back("cap:p:bulk")
        await until(lambda: other.try_take("cap:p:bulk", 1, 0.0))
        other.give_back("cap:p:bulk")
        taken = [await take(peers, limit) for _ in range(4) for peers in (one, other)]
        assert sum(not isinstance(each, Short) for each in taken) == 5
        burials = Burials(group.url, wait_s=0.0)
        burials.died(one.gateway)
        await until(lambda: not burials._under_way)
        await burials.close()


async def take(peers, meter, amount=1, most_s=PATIENCE_S):
    """As the reserve step does; here it may be a long wait."""
    taken = peers.meters.take(meter, amount, moment())
    if isinstance(taken, Short) and taken.is_pending and await peers.until_granted(meter, amount, most_s):
        taken = peers.meters.take(meter, amount, moment())
    return taken


def moment():
    return Moment(time.monotonic(), time.time())


async def test_a_cluster_is_told_from_a_single_server(cluster, sentinel):
    """A URL of the wrong kind is a sentence at the start, not a fault at every call."""
    as_single = RedisLink(f"redis://127.0.0.1:{cluster.servers[0].port}")
    as_cluster = RedisLink(f"redis+cluster://127.0.0.1:{sentinel.primary.port}")
    unknown = RedisLink(sentinel.url.replace("/warmlane/", "/nobody/"))
    for link, sentence in ((as_single, "is a Redis Cluster"), (as_cluster, "failed"), (unknown, "failed")):
        with pytest.raises(StoreError, match=sentence):
            await link.check()
        await link.close()
    for group in (cluster, sentinel):
        link = RedisLink(group.url)
        await link.check()
        assert link.is_available
        await link.close()


async def test_a_call_without_a_key_finds_its_way_on_a_cluster(cluster, prefix):
    """One server sends it to another, and the next ones go there at once."""
    link = RedisLink(cluster.url)
    for number in range(30):
        name = f"{prefix}:{number}"
        await link.call(lambda redis, name=name: redis.set(name, name))
        assert await link.call(lambda redis, name=name: redis.get(name)) == name.encode()
    await link.close()


async def test_no_call_of_the_ledger_or_of_cache_claims_is_sent_elsewhere_on_a_cluster(cluster, prefix):
    """Every call goes to the owner of its slot at once: a redirect costs a round trip, and doubts the whole map."""
    in_first_slot = next(name for name in map(str, itertools.count()) if key_slot(name.encode()) == 0)
    for tag in ("{ledger}", "{store}"):  # elsewhere than where a call goes that says nothing of its key
        if cluster.owner_of(tag) is cluster.owner_of(in_first_slot):
            await asyncio.to_thread(cluster.move, tag)
    keep, now = Retention(rows_days=30, rollups_days=400), int(time.time())
    rows = [row(f"{prefix}-{number}", now - 3600.0 * number) for number in range(30)]
    claims = RedisCacheClaims(RedisLink(cluster.url), prefix=prefix)
    async with await RedisLedger.open(cluster.url, keep, prefix=prefix) as ledger:
        before = redirects(cluster)
        assert await ledger.add(rows) == len(rows)
        assert await ledger.add(rows) == 0
        assert await ledger.row(rows[0].request_id) == rows[0]
        wanted = Wanted(now - 90_000, now + 1)
        assert len((await ledger.rows(wanted)).rows) == 26
        assert (await ledger.usage(wanted, Group.PROJECT)).rows
        assert await ledger.hours(now - now % 3600 - 86_400, now)
        await ledger.purge(now, keep)
        assert await claims.claim("http://engine", "a") == await claims.claim("http://engine", "b") == "a"
        assert await claims.owners() == {"http://engine": "a"}
        await claims.release("http://engine")
        assert redirects(cluster) == before
    await claims.close()


def row(request_id, at):
    """A finished request."""
    return LedgerRow(
        request_id=request_id,
        started_at=at,
        ended_at=at + 1.0,
        organization="org",
        project="proj",
        key="key",
        model="model",
        lane="bulk",
        surface="/v1/chat/completions",
        outcome="finished",
        status=200,
    )


def redirects(cluster):
    """Calls that any server of the Cluster has sent to another so far."""
    found = 0
    for server in cluster.servers:
        with server.client() as client:
            errors = client.info("errorstats")
        found += sum(errors.get(f"errorstat_{kind}", {}).get("count", 0) for kind in ("MOVED", "ASK", "TRYAGAIN"))
    return found


async def test_a_slot_that_moves_is_followed(cluster, prefix):
    """Calls for its keys meet MOVED and ASK, and all are answered."""
    link, key = RedisLink(cluster.url), f"{prefix}:{{moving}}:counter"
    counted = 0
    moving = asyncio.create_task(asyncio.to_thread(cluster.move, key))
    while not moving.done() or counted < 50:
        await link.call(lambda redis: redis.incr(key), key=key, timeout_s=2.0)
        counted += 1
        await asyncio.sleep(0)
    await moving
    assert int(await link.call(lambda redis: redis.get(key), key=key)) == counted
    await link.close()


async def test_a_primary_that_was_frozen_is_not_believed_when_it_is_back(redis_program, prefix, bounded_calls):  # noqa: F811
    """It answers as if nothing had been, until Sentinel has told it: what it is given then is thrown away.

    Neither by who asked it all the while, nor by who had nothing to ask, nor by whose call it slept through.
    """
    with running(SentinelGroup) as group:
        busy, idle, slow = (RedisLink(group.url, call_s=0.5) for _ in range(3))  # a machine may be slow for a moment
        for link in (busy, idle, slow):
            await link.call(lambda redis: redis.set(f"{prefix}:first", "x"))
        group.primary.pause()
        late = asyncio.create_task(was_set(slow, f"{prefix}:late", timeout_s=30.0))
        while group.primary_port() != group.replica.port:
            with contextlib.suppress(StoreError):
                await busy.call(lambda redis: redis.get(prefix))
            await asyncio.sleep(0.02)
        group.primary.resume()
        assert not await late
        for number, link in itertools.product(range(20), (idle, busy)):
            key = f"{prefix}:{number}:{id(link)}"
            async with asyncio.timeout(PATIENCE_S):
                while not await was_set(link, key):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            with group.replica.client() as kept:
                assert kept.get(key) == b"x"
            await asyncio.sleep(0.02)
        for link in (busy, idle, slow):
            await link.close()


async def was_set(link, key, **options):
    """Whether the store says so."""
    try:
        return await link.call(lambda redis: redis.set(key, "x"), **options)
    except StoreError:
        return False


class Load:
    """Takers at several gateways, all on one meter; what they took, and how long each answer was."""

    def __init__(self, url: str, limit: Meter) -> None:
        self.peers = [RedisPeers(url) for one in range(NUM_GATEWAYS)]
        self.limit = limit
        self.taken: list[float] = []
        self.longest_s = 0.0
        self._is_over = False

    async def run(self, fault) -> None:
        """Takers as eager as can be while `fault` happens, a coroutine."""
        async with self.peers[0], self.peers[1], self.peers[2], self.peers[3]:
            for one in self.peers:
                await one.until_granting()
            takers = [asyncio.create_task(self._take(one)) for one in self.peers for _ in range(8)]
            await fault
            await self._until_well()
            await self._until_full()
            self._is_over = True
            await asyncio.gather(*takers)

    async def _until_well(self):
        async with asyncio.timeout(40):
            while any(one.is_degraded or one.is_limits_degraded for one in self.peers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _until_full(self):
        """Nothing was taken for a second."""
        async with asyncio.timeout(20):
            while self.taken[-1] > time.monotonic() - 1.0:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _take(self, peers):
        while not self._is_over:
            began_at = time.monotonic()
            taken = await take(peers, self.limit, most_s=GRANT_S)
            self.longest_s = max(self.longest_s, time.monotonic() - began_at)
            if isinstance(taken, Short):
                await asyncio.sleep(0.02)
            else:
                self.taken.append(time.monotonic())
                taken.correct(1, moment())
                await asyncio.sleep(0.05)

    def most_in_a_minute(self) -> int:
        return max(sum(at - 60 <= other <= at for other in self.taken) for at in self.taken)


@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fate", ["kill", "pause"])
async def test_the_primary_is_lost_under_load(redis_program, fate):  # noqa: F811
    """Sentinel: no request hangs, the limit holds within a grant per gateway, all is well again unaided.

    A paused one answers nothing, and comes back as a primary that nobody follows.
    """
    with running(SentinelGroup) as group:
        load = Load(group.url, Meter("project:p", Counted.REQUESTS, LIMIT))

        async def fault():
            await asyncio.sleep(1.0)
            before = len(load.taken)
            getattr(group.primary, fate)()
            await asyncio.to_thread(wait_until, lambda: group.primary_port() == group.replica.port, "the failover")
            if fate == "pause":
                group.primary.resume()
            assert len(load.taken) > before

        await load.run(fault())
        print(f"sentinel, {fate}: {len(load.taken)} taken, longest {load.longest_s:.3f} s")
        assert load.longest_s < 1.5
        assert 0.9 * LIMIT <= load.most_in_a_minute() <= LIMIT + MOST_LOST


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_the_slot_of_a_tenant_moves_under_load(redis_program):  # noqa: F811
    """Cluster: the limit holds exactly while the tenant's meters move from server to server, twice."""
    with running(ClusterGroup) as group:
        load = Load(group.url, Meter("project:p", Counted.REQUESTS, LIMIT))

        async def fault():
            for _ in range(2):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(group.move, "x:{meters:project:p}:rpm")
            await asyncio.to_thread(group.move, "x:{leases}:x")
            await asyncio.sleep(1.0)

        await load.run(fault())
        print(f"slot: {len(load.taken)} taken, longest {load.longest_s:.3f} s")
        assert load.longest_s < 1.5
        assert 0.9 * LIMIT <= load.most_in_a_minute() <= LIMIT


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_the_primary_of_a_tenant_is_killed_under_load(redis_program):  # noqa: F811
    """Cluster: its replica takes over, the others are not touched, and the limit holds within a grant per gateway."""
    with running(ClusterGroup) as group:
        load = Load(group.url, Meter("project:p", Counted.REQUESTS, LIMIT))

        async def fault():
            await asyncio.sleep(1.0)
            group.owner_of("x:{meters:project:p}:rpm").kill()
            await asyncio.sleep(3.0)

        await load.run(fault())
        print(f"cluster: {len(load.taken)} taken, longest {load.longest_s:.3f} s")
        assert load.longest_s < 1.5
        assert 0.9 * LIMIT <= load.most_in_a_minute() <= LIMIT + MOST_LOST
