"""The contract of who owns an engine without a salt, run on memory, SQLite and Redis."""

import asyncio
import itertools

import pytest

from policies.cache_claims import MemoryCacheClaims
from policies.redis_claims import RedisCacheClaims
from policies.redis_link import RedisLink
from policies.sqlite_claims import SqliteCacheClaims
from policies.sqlite_store import SqliteStore
from policies.store import StoreError
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

URL = "http://10.0.0.1:8080"
_PREFIXES = (f"claims{number}" for number in itertools.count())


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def reopen(request, tmp_path):
    """A function that opens the same claims once more, as another gateway would; closed in the end."""
    opened = []

    def kept(claims):
        opened.append(claims)
        return claims

    if request.param == "memory":
        one = MemoryCacheClaims()
        yield lambda: kept(one)
    elif request.param == "sqlite":
        async with await SqliteStore.open(tmp_path / "store.sqlite3"):
            pass
        yield lambda: kept(SqliteCacheClaims(tmp_path / "store.sqlite3"))
    else:
        server, prefix = request.getfixturevalue("shared_redis"), next(_PREFIXES)
        yield lambda: kept(RedisCacheClaims(RedisLink(server.url), prefix=prefix))
    for claims in opened:
        await claims.close()
        await claims.close()


async def test_the_first_to_claim_owns_and_every_gateway_is_told_the_same(reopen):
    """An engine's cache outlives the gateway that filled it, so a new one must hear who owns it."""
    claims, other = reopen(), reopen()
    assert await claims.owners() == {}
    assert await claims.claim(URL, "proj_a") == "proj_a"
    assert await other.claim(URL, "proj_b") == "proj_a"
    assert await other.claim("http://10.0.0.2:8080", "proj_b") == "proj_b"
    assert await claims.owners() == {URL: "proj_a", "http://10.0.0.2:8080": "proj_b"}


async def test_of_many_that_claim_at_once_exactly_one_owns(reopen):
    """Two gateways may meet at an engine in the same moment; neither may believe in an owner of its own."""
    claims = [reopen() for _ in range(4)]
    told = await asyncio.gather(*(one.claim(URL, f"proj_{number}") for number, one in enumerate(claims)))
    assert len(set(told)) == 1
    assert set((await claims[0].owners()).values()) == set(told)


async def test_a_released_engine_has_no_owner_and_can_be_claimed_anew(reopen):
    """Releasing twice, or what was never owned, is harmless."""
    claims = reopen()
    await claims.claim(URL, "proj_a")
    await claims.release(URL)
    await claims.release(URL)
    assert await claims.owners() == {}
    assert await claims.claim(URL, "proj_b") == "proj_b"


async def test_claims_that_cannot_be_read_are_a_fault_of_the_store(tmp_path):
    """Not an empty list, which would open every engine to everybody."""
    broken = tmp_path / "store.sqlite3"
    broken.write_bytes(b"this is no database" * 100)
    claims = SqliteCacheClaims(broken)
    for call in (claims.owners(), claims.claim(URL, "proj_a"), claims.release(URL)):
        with pytest.raises(StoreError, match="who owns which engine"):
            await call


async def test_a_lost_file_is_not_made_anew(tmp_path):
    """An empty one would give every engine to whoever comes first, and hide that the tenants are lost."""
    claims = SqliteCacheClaims(tmp_path / "gone.sqlite3")
    with pytest.raises(StoreError):
        await claims.claim(URL, "proj_a")
    assert list(tmp_path.iterdir()) == []
