"""What the Redis store adds to the contract of every store: faults with a sentence, and news of changes at once."""

import asyncio
import itertools
from contextlib import aclosing

import pytest

from policies.keys import digest
from policies.redis_link import CALL_S, FAULTS_BEFORE_PAUSE, RedisLink, StoreBusy, pause_s
from policies.redis_store import RedisStore
from policies.store import NewKey, StoreError
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures
from tests.scripted_engine import PATIENCE_S

_PREFIXES = (f"store{number}" for number in itertools.count())


@pytest.fixture
def prefix():
    return next(_PREFIXES)


@pytest.fixture
async def store(shared_redis, prefix):  # noqa: F811
    async with await RedisStore.open(shared_redis.url, prefix=prefix) as opened:
        yield opened


@pytest.fixture
async def own(redis_server):  # noqa: F811
    """A store on a server of its own."""
    async with await RedisStore.open(redis_server.url) as opened:
        yield opened


@pytest.fixture
async def link(redis_server):  # noqa: F811
    opened = RedisLink(redis_server.url, num_connections=2, wait_s=0.05)
    yield opened
    await opened.close()


async def test_no_secret_is_at_rest(store, shared_redis, prefix):  # noqa: F811
    """Only the hash and a prefix are in Redis."""
    organization = await store.create_organization("acme")
    project = await store.create_project("chat", organization.id)
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    hidden = secret.text.removeprefix(secret.prefix + "-").encode()
    with shared_redis.client() as client:
        kept = b"".join(client.dump(key) for key in client.keys(f"{prefix}:*"))
        assert client.hexists(f"{prefix}:{{store}}:digests", digest(secret.text.encode()).hex())
    assert hidden not in kept


async def test_a_change_is_told_to_others_at_once(store, shared_redis, prefix):  # noqa: F811
    """A revoked key must be refused now, not at the next poll."""
    async with await RedisStore.open(shared_redis.url, prefix=prefix) as other, aclosing(other.changes()) as news:
        await anext(news)
        following = asyncio.ensure_future(anext(news))
        await store.create_organization("acme")
        await asyncio.wait_for(following, PATIENCE_S)  # a subscription has no next poll that would come to its aid
        assert len((await other.snapshot()).organizations) == 1


async def test_news_go_on_after_redis_was_away(own, redis_server):  # noqa: F811
    """What was missed is made up for by one item after the reconnection."""
    async with aclosing(own.changes()) as news:
        await anext(news)
        redis_server.restart()
        await asyncio.wait_for(anext(news), PATIENCE_S)


async def test_an_emptied_redis_is_not_taken_for_a_store_without_tenants(own, redis_server):  # noqa: F811
    """P17: after a fail-over to an empty replica every key would be unknown; instead the store says what happened."""
    made = await own.create_organization("acme")
    with redis_server.client() as client:
        client.flushall()
    for ask in (own.revision, own.snapshot, own.keys, lambda: own.organization(made.id)):
        with pytest.raises(StoreError, match="is empty now"):
            await ask()
    with pytest.raises(StoreError, match="is empty now"):
        await own.create_organization("late")
    async with await RedisStore.open(redis_server.url) as another:
        assert (await another.snapshot()).organizations == ()
        with pytest.raises(StoreError, match="another installation"):
            await own.revision()


async def test_a_newer_version_is_refused_and_left_alone(store, shared_redis, prefix):  # noqa: F811
    """An older Warmlane must not write what it does not understand."""
    with shared_redis.client() as client:
        client.hset(f"{prefix}:{{store}}:meta", "version", 2)
    with pytest.raises(StoreError, match="version 2"):
        await RedisStore.open(shared_redis.url, prefix=prefix)


@pytest.mark.parametrize("row", [b"", b"{", b'{"id":1}', b"\xff", b"[" * 5000])
async def test_a_damaged_row_is_a_store_error(store, shared_redis, prefix, row):  # noqa: F811
    """Something else wrote there; nothing of it may be believed."""
    made = await store.create_organization("acme")
    with shared_redis.client() as client:
        client.hset(f"{prefix}:{{store}}:organizations", made.id, row)
    with pytest.raises(StoreError, match="not what it should be"):
        await store.organization(made.id)


async def test_a_role_of_a_later_version_gives_no_right(store, shared_redis, prefix):  # noqa: F811
    """What this version does not know it does not grant."""
    project = await store.create_project("chat", (await store.create_organization("acme")).id)
    key, _ = await store.create_key(NewKey(project.id, "laptop"))
    with shared_redis.client() as client:
        row = client.hget(f"{prefix}:{{store}}:keys", key.id)
        client.hset(f"{prefix}:{{store}}:keys", key.id, row.replace(b'"service"', b'"owner"'))
    assert (await store.key(key.id)).roles == frozenset()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://127.0.0.1:1", "not supported"),
        ("redis+other://127.0.0.1", "not supported"),
        ("redis+sentinel://127.0.0.1", "the name that Sentinel knows the primary by"),
        ("redis+cluster://127.0.0.1/3", "no databases"),
        ("redis://127.0.0.1:port", "cannot be read"),
        ("redis://127.0.0.1:1/0?max_connections=many", "cannot be used"),
        ("redis://:hush@127.0.0.1:1", "failed"),
    ],
)
async def test_a_url_that_cannot_be_used_is_a_clear_error(url, sentence):
    """An operator must learn what is wrong, and nobody the password."""
    with pytest.raises(StoreError, match=sentence) as raised:
        await RedisStore.open(url)
    assert "hush" not in str(raised.value)


async def test_a_redis_that_evicts_is_refused(redis_server):  # noqa: F811
    """What a lease or a tenant rests on must not vanish when memory is short."""
    redis_server.restart("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match="noeviction"):
        await RedisStore.open(redis_server.url)


async def test_a_frozen_store_fails_in_bounded_time_and_comes_back(own, redis_server):  # noqa: F811
    """P17: 100 ms a call, nothing at all once it is known to be away, and no answer of another call afterwards."""
    made, link = await own.create_organization("acme"), own._link
    told, clock = [], link._clock
    link.call_s, link._clock = CALL_S, lambda: 0.0
    redis_server.pause()
    for _ in range(30):
        with pytest.raises(StoreError) as refused:
            await own.revision()
        told.append("tried again shortly" in str(refused.value))
    assert told == [number >= FAULTS_BEFORE_PAUSE for number in range(30)], "who was asked, and who was not"
    redis_server.resume()
    link.call_s, link._clock = PATIENCE_S, clock
    async with asyncio.timeout(PATIENCE_S):
        while await revision_of(own) is None:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.01)
    assert await own.revision() == 1
    assert await own.organization(made.id) == made
    assert repr(own) == f"<RedisStore {redis_server.url} open>"


async def revision_of(store):
    """The store's revision, None while it is away."""
    try:
        return await store.revision()
    except StoreError:
        return None


async def test_a_busy_pool_is_not_a_dead_store(link, redis_server):  # noqa: F811
    """P17: too many calls at once say something about us; the store keeps its good name."""
    slow = [asyncio.ensure_future(link.call(lambda redis: redis.blpop(["late"], 0))) for _ in range(2)]
    await asyncio.sleep(0)
    for _ in range(FAULTS_BEFORE_PAUSE + 1):
        with pytest.raises(StoreBusy, match="in use"):
            await link.call(lambda redis: redis.ping())
    assert link.is_available
    with redis_server.client() as client:
        client.rpush("late", "one", "two")
    await asyncio.gather(*slow)
    assert await link.call(lambda redis: redis.ping())


async def test_cancelled_and_timed_out_calls_lose_no_connection_and_mix_no_answers(link, redis_server):  # noqa: F811
    """A connection whose answer was not read must not serve another call."""
    for _ in range(5):
        tasks = [asyncio.ensure_future(link.call(lambda redis: redis.echo("late"))) for _ in range(2)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    redis_server.pause()
    for _ in range(2):
        with pytest.raises(StoreError, match="no answer in time"):
            await link.call(lambda redis: redis.echo("late"), timeout_s=CALL_S)
    redis_server.resume()
    for number in range(10):
        assert await link.call(lambda redis, number=number: redis.echo(str(number))) == str(number).encode()
    assert repr(link) == f"<RedisLink {redis_server.url} available>"


def test_pauses_double_and_are_bounded():
    """A store that was away for a day is tried again within seconds."""
    assert all(0.05 <= pause_s(0) <= 0.1 for _ in range(20))
    assert all(1.0 <= pause_s(1000) <= 2.0 for _ in range(20))
