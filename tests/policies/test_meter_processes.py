"""kill -9 of a process that holds reservations of tokens and money on a real Redis: none outlives its owner's lease.

What the dead had told stays charged, as its ledger charges what was never settled. What it only held returns, or, of
money, of which it may have used all, is charged: nothing is left in between.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.redis_peers import RedisPeers
from policies.meters import Counted, Meter, Moment, Short
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures

LEASE_S = 1.0
LIMIT, RESERVED = 10_000, 400  # of each of five requests
ENDS_AT = int(time.time()) + 10**6
METERS = {
    Counted.TOKENS: Meter("project:p", Counted.TOKENS, LIMIT),
    Counted.DAY_TOKENS: Meter("project:p", Counted.DAY_TOKENS, LIMIT, 1, ENDS_AT),
    Counted.MONTH_MONEY: Meter("project:p", Counted.MONTH_MONEY, LIMIT, 1, ENDS_AT),
}
OWNER = """
import asyncio, sys
from gateway.redis_peers import RedisPeers
from policies.meters import Short
from tests.policies.test_meter_processes import LEASE_S, METERS, RESERVED, taken

async def main():
    async with RedisPeers(sys.argv[1], lease_s=LEASE_S) as peers:
        await peers.until_granting()
        for meter in METERS.values():
            for _ in range(5):
                assert not isinstance(await taken(peers, meter, RESERVED), Short)
        print("reserved", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def moment():
    """Now."""
    return Moment(time.monotonic(), time.time())


async def taken(peers, meter, amount):
    """As the reserve step does."""
    found = peers.meters.take(meter, amount, moment())
    if isinstance(found, Short) and found.is_pending and await peers.until_granted(meter, amount):
        found = peers.meters.take(meter, amount, moment())
    return found


@pytest.fixture
def owner(redis_server):  # noqa: F811
    """A process with five reservations of each meter."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, redis_server.url], stdout=subprocess.PIPE, cwd=Path.cwd())
    assert process.stdout.readline() == b"reserved\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


async def all_that_is_left(peers, meter):
    """Take what can be had, by hundreds."""
    had = 0
    while not isinstance(await taken(peers, meter, 100), Short):
        had += 100
    return had


async def test_no_reservation_outlives_the_lease_of_a_killed_process(redis_server, owner):  # noqa: F811
    """Beside the living one its part is held; a lease after kill -9 it is free or charged, and nothing exceeds."""
    async with RedisPeers(redis_server.url, lease_s=LEASE_S) as heir:
        await heir.until_granting()
        owner.kill()
        owner.wait()
        died_at = time.monotonic()
        await asyncio.sleep(LEASE_S * 1.3)
        had = {counted: await all_that_is_left(heir, meter) for counted, meter in METERS.items()}
        took_s = time.monotonic() - died_at
        with redis_server.client() as client:
            held = {counted: held_by_others(client, counted, heir.gateway) for counted in METERS}
    reserved = 5 * RESERVED
    print(f"left for the heir {LEASE_S * 1.3:.1f} s after kill -9: {had}, of {LIMIT - reserved}; all in {took_s:.1f} s")
    assert held == dict.fromkeys(METERS, 0)
    for counted in (Counted.TOKENS, Counted.DAY_TOKENS):
        assert LIMIT - reserved <= had[counted] <= LIMIT, "of what it had not told nothing is kept"
    assert had[Counted.MONTH_MONEY] <= LIMIT - reserved, "it may all have been spent"
    assert had[Counted.MONTH_MONEY] >= LIMIT / 2


def held_by_others(client, counted, heir):
    """What gateways but the heir hold of a meter, as Redis has it: "report batch held need expires kept"."""
    [key] = client.keys(f"warmlane:{{meters:project:p}}:{counted.value}:*")
    entries = {name.decode(): value.split() for name, value in client.hgetall(key).items() if name.startswith(b"@")}
    return sum(int(entry[2]) for name, entry in entries.items() if name != f"@{heir}")
