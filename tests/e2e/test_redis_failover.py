"""Four gateway processes with clients while their Redis fails over: the limit holds, nobody hangs, nothing needs a hand.

Under Sentinel the primary is killed or freezes; of a Cluster of six a tenant's slot moves, and its primary is killed.
What was admitted is counted at the engine and by the clients, and afterwards in the ledger.
"""

import asyncio
import contextlib
import time

import pytest

from policies.leases import LEASE_S
from policies.ledger import Group, Retention, Wanted
from policies.redis_ledger import RedisLedger
from tests.e2e.conftest import assert_quiescent
from tests.e2e.test_limit_race import COST, MODEL, Engine, Running, noon
from tests.e2e.test_many_gateways import NUM_GATEWAYS, until
from tests.gateway.client import Client
from tests.redis_groups import ClusterGroup, SentinelGroup, running, wait_until
from tests.redis_server import redis_program  # noqa: F401  # fixture
from tests.warmlane_process import commands

NUM_CLIENTS = 16
LIMIT = 1200  # requests a minute and, in tokens, a day: some seconds of the load, so that the fault falls into them
MOST_MORE = 200  # grants of the last moments, which a new primary has not heard of; of a slot that moves: nothing
HANGS_S = LEASE_S + 2.0  # a seat that a lease has run out for is waited for: docs/configuration.md, "Several gateways"
STARTS_S = 1.0

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(240), pytest.mark.usefixtures("redis_program")]


class Load:
    """Clients of one tenant that ask until they are stopped. `admitted`: when, monotonic; `others`: odd statuses."""

    def __init__(self, port, key):
        self.admitted = []
        self.refused = 0
        self.others = []
        self.longest_s = 0.0
        self.is_over = False
        self._port = port
        self._key = key

    async def go_on(self):
        client = await Client.open(self._port)
        prompt = "failover ".ljust(100, "x")
        body = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": prompt}]}
        while not self.is_over:
            asked_at = time.monotonic()
            client.send(body, key=self._key)
            found = await client.answer()
            self.longest_s = max(self.longest_s, time.monotonic() - asked_at)
            if found.status == 200 and found.is_complete:
                self.admitted.append(time.monotonic())
            elif found.status == 429:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                self.others.append((found.status, found.json["error"]["code"]))
                await asyncio.sleep(0.05)
        client.close()

    async def is_full(self):
        """Nothing was admitted for a second."""
        return bool(self.admitted) and self.admitted[-1] < time.monotonic() - 1.0


@contextlib.asynccontextmanager
async def system_of(home, url):
    """`warmlane gateway` with four processes on this store."""
    async with Engine() as engine:
        config = f"""
        [gateway]
        processes = {NUM_GATEWAYS}
        drain_s = 2
        [store]
        url = "{url}"
        [[replicas]]
        name = "r"
        model = "{MODEL}"
        engine = "vllm"
        url = "{engine.url}"
        seats = 200
        """
        with commands(home) as start:
            up = start("gateway", config=config)
            await asyncio.to_thread(up.until_ready)
            system = Running(up, home, [engine], None)
            await system.until_whole()
            yield system
            await asyncio.to_thread(assert_quiescent, up)
            assert await asyncio.to_thread(up.end) == 0, up.stderr


async def run(home, group, limits, fault):
    """The load while the fault happens; what came of it."""
    async with system_of(home, group.url) as system:
        tenant = await system.tenant("failover", {**limits, "time_zone": noon()})
        load = Load(system.port, tenant._key)
        clients = [asyncio.create_task(load.go_on()) for _ in range(NUM_CLIENTS)]
        await asyncio.sleep(STARTS_S)
        assert load.admitted
        assert not load.refused
        await fault(tenant)
        await system.until_whole()
        await until(load.is_full)
        load.is_over = True
        await asyncio.gather(*clients)
        done = system.engine.done["failover"]

        async def is_told():
            return (await system.admin("/statistics"))["ledger"]["waiting"] == 0

        await until(is_told)
        assert await system.readiness() == (200, "ready")
    async with await RedisLedger.open(group.url, Retention(30, 400)) as ledger:
        [total] = (await ledger.usage(Wanted(0, 10**10), Group.PROJECT)).rows
    print(
        f"{len(load.admitted)} admitted, {done} done, {load.refused} refused, {load.others} else, "
        f"longest {load.longest_s:.2f} s, in the ledger {total.totals.requests - total.totals.refused}"
    )
    return load, done, total.totals


def check(load, done, totals, most):
    """Whatever failed, the client was answered in time, and the limit and the ledger tell the truth."""
    assert load.longest_s < HANGS_S
    assert load.others == []
    assert done == len(load.admitted)
    assert 0.9 * LIMIT <= done <= most
    assert totals.requests - totals.refused == done
    assert totals.charged_tokens == done * COST


@pytest.mark.parametrize("limits", [{"rpm": LIMIT}, {"tokens_per_day": LIMIT * COST}], ids=["rpm", "tokens_per_day"])
@pytest.mark.parametrize("fate", ["kill", "pause"])
async def test_the_primary_under_sentinel_is_lost_under_load(tmp_path, limits, fate):
    """Killed it never comes back; frozen it does, as a primary that nobody follows any more."""
    with running(SentinelGroup) as group:

        async def fault(_tenant):
            getattr(group.primary, fate)()
            await asyncio.to_thread(wait_until, lambda: group.primary_port() == group.replica.port, "the failover")
            if fate == "pause":
                group.primary.resume()

        check(*await run(tmp_path / "home", group, limits, fault), LIMIT + MOST_MORE)


@pytest.mark.parametrize("fate", ["move", "kill"])
async def test_a_slot_of_a_cluster_of_six_moves_and_its_primary_is_killed_under_load(tmp_path, fate):
    """The slot of the tenant's meters goes to another server and back, then the leases'; or its owner dies."""
    with running(ClusterGroup) as group:

        async def fault(tenant):
            [key] = await asyncio.to_thread(meter_keys, group)
            if fate == "kill":
                group.owner_of(key).kill()
                return await asyncio.sleep(3.0)
            for _ in range(2):
                await asyncio.to_thread(group.move, key)
            return await asyncio.to_thread(group.move, "x:{leases}:x")

        most = LIMIT + (MOST_MORE if fate == "kill" else 0)
        check(*await run(tmp_path / "home", group, {"rpm": LIMIT}, fault), most)


def meter_keys(group):
    """The names of the meters that the Cluster holds now, of the one tenant with a limit."""
    found = set()
    for server in group.servers:
        with server.client() as client:
            if client.info("replication")["role"] == "master":
                found |= {name.decode() for name in client.scan_iter("*{meters:project:*rpm*")}
    return found
