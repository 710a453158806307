"""What the Redis ledger adds to the contract of every ledger: rows and totals go by themselves, faults have a sentence."""

import itertools
import time

import pytest

from policies.ledger import DAY_S, HOURS_KEPT_DAYS, Group, LedgerRow, Retention, Wanted
from policies.redis_ledger import RedisLedger
from policies.store import StoreError
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures

KEEP = Retention(30, 400)
_PREFIXES = (f"redis-ledger{number}" for number in itertools.count())


def row(number, at):
    """A finished request."""
    names = dict.fromkeys(("organization", "project", "key", "model", "lane", "surface", "outcome"), "x")
    return LedgerRow(request_id=f"req_{number}", started_at=at, ended_at=at, status=200, charged_tokens=1, **names)


@pytest.fixture
def prefix():
    return next(_PREFIXES)


@pytest.fixture
async def ledger(shared_redis, prefix):  # noqa: F811
    async with await RedisLedger.open(shared_redis.url, KEEP, prefix=prefix) as opened:
        yield opened


async def test_everything_goes_by_itself(ledger, shared_redis, prefix):  # noqa: F811
    """Rows after 30 days, hours after two months, days after 400: a Redis that nobody tends does not fill up."""
    now = time.time()
    await ledger.add([row(1, now)])
    with shared_redis.client() as client:
        ends = {}
        for key in client.keys(f"{prefix}:*"):
            ends[key.decode().removeprefix(f"{prefix}:{{ledger}}:").split(":")[0:2][-1]] = client.ttl(key) / DAY_S
    assert ends["req_1"] == pytest.approx(KEEP.rows_days, abs=1.1)
    assert ends["3600"] in (-1 / DAY_S, pytest.approx(HOURS_KEPT_DAYS, abs=2.1))
    with shared_redis.client() as client:
        lengths = {key.split(b":")[3]: client.ttl(key) / DAY_S for key in client.keys(f"{prefix}:*totals:*")}
    assert lengths[b"3600"] == pytest.approx(HOURS_KEPT_DAYS, abs=2.1)
    assert lengths[b"86400"] == pytest.approx(400, abs=2.1)


async def test_a_row_that_comes_late_is_still_counted_once(ledger):
    """The replay of a file that lay for months may be killed and repeated."""
    old = row(1, time.time() - 100 * DAY_S)
    assert await ledger.add([old]) == 1
    assert await ledger.add([old]) == 0


async def test_many_rows_take_several_batches(ledger):
    """No script call is long; rows of several hours are sorted apart."""
    now = time.time()
    rows = [row(number, now - 7200 * (number % 3)) for number in range(1000)]
    assert await ledger.add(rows) == 1000
    (usage,) = (await ledger.usage(Wanted(0, int(now) + 1), Group.PROJECT)).rows
    assert usage.totals.requests == 1000
    first = await ledger.rows(Wanted(0, int(now) + 1), limit=400)
    second = await ledger.rows(Wanted(0, int(now) + 1), limit=1000, after=first.next_after)
    assert len({one.request_id for one in first.rows + second.rows}) == 1000


async def test_a_redis_that_was_started_anew_learns_the_script(redis_server):  # noqa: F811
    """The script is loaded when it is not known."""
    async with await RedisLedger.open(redis_server.url, KEEP) as ledger:
        await ledger.add([row(1, time.time())])
        redis_server.restart()
        for number in range(10):  # the connection was lost with the old server
            try:
                assert await ledger.add([row(2, time.time())]) == 1
                break
            except StoreError:
                assert number < 9


async def test_a_redis_that_is_away_is_said_so(redis_server):  # noqa: F811
    """The keeper tries again; the files wait."""
    async with await RedisLedger.open(redis_server.url, KEEP) as ledger:
        redis_server.kill()
        with pytest.raises(StoreError, match=r"failed|does not answer"):
            await ledger.add([row(1, time.time())])


async def test_a_redis_that_nobody_reaches_is_said_at_the_start():
    """A gateway does not start without its ledger."""
    with pytest.raises(StoreError):
        await RedisLedger.open("redis://127.0.0.1:1/0", KEEP)


async def test_what_is_no_row_is_said_so(ledger, shared_redis, prefix):  # noqa: F811
    """Something else writes there."""
    with shared_redis.client() as client:
        client.set(f"{prefix}:{{ledger}}:row:req_1", b"nonsense")
    with pytest.raises(StoreError, match="not what it should be"):
        await ledger.row("req_1")


async def test_the_order_of_days_is_purged_in_batches(ledger):
    """When their rows have gone."""
    now = time.time()
    await ledger.add([row(number, now - 40 * DAY_S) for number in range(3000)])
    first = await ledger.purge(now, KEEP)
    second = await ledger.purge(now, KEEP)
    assert (first, second, await ledger.purge(now, KEEP)) == (2000, 1000, 0)
