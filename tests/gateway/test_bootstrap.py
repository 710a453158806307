"""The first key."""

import pytest

from gateway.bootstrap import demo_key, is_valid
from policies.sqlite_store import SqliteStore


@pytest.fixture
async def store(tmp_path):
    """An empty store."""
    async with await SqliteStore.open(tmp_path / "s.sqlite3") as opened:
        yield opened


async def test_the_first_start_makes_organisation_project_and_key(store):
    """A first request needs no set-up."""
    secret = await demo_key(store, "", 0)
    snapshot = await store.snapshot()
    assert [one.name for one in snapshot.organizations] == ["demo"]
    assert [one.name for one in snapshot.projects] == ["demo"]
    assert is_valid(snapshot, secret, 0)


async def test_a_later_start_reuses_the_key(store):
    """Scripts that kept it go on working."""
    secret = await demo_key(store, "", 0)
    assert await demo_key(store, secret, 1) == secret
    assert len((await store.snapshot()).keys) == 1


@pytest.mark.parametrize("last", ["wl-00000000-unknown", "\ud800", "x" * 10_000])
async def test_a_key_that_the_store_does_not_know_is_replaced(store, last):
    """A demo.json beside another store."""
    secret = await demo_key(store, last, 0)
    assert secret != last
    assert is_valid(await store.snapshot(), secret, 0)


async def test_a_revoked_key_is_replaced_in_the_same_project(store):
    """A person revoked it on purpose; the next start is no dead end."""
    first = await demo_key(store, "", 0)
    (key,) = (await store.snapshot()).keys
    await store.revoke_key(key.id)
    second = await demo_key(store, first, 0)
    snapshot = await store.snapshot()
    assert not is_valid(snapshot, first, 0)
    assert is_valid(snapshot, second, 0)
    assert len(snapshot.projects) == 1


async def test_a_rotated_key_is_valid_until_its_overlap_ends(store):
    """The old secret of a rotation has an end of its own."""
    first = await demo_key(store, "", 0)
    (key,) = (await store.snapshot()).keys
    await store.rotate_key(key.id, overlap_s=3600)
    snapshot = await store.snapshot()
    assert is_valid(snapshot, first, 0)
    assert not is_valid(snapshot, first, 1e12)
