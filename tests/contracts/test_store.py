"""The contract of every store, run on each: what is written is there again, and every change raises the revision."""

import asyncio
import itertools
from contextlib import aclosing, asynccontextmanager

import pytest

from policies.keys import digest
from policies.lane import Lane
from policies.redis_store import RedisStore
from policies.sqlite_store import SqliteStore
from policies.store import MAX_SECRETS, KeyEnded, Level, NewKey, StoreError, UnknownId
from policies.tenant import Role
from tests.redis_server import redis_program, shared_redis  # noqa: F401  # fixtures

START = 1_700_000_000
_PREFIXES = (f"contract{number}" for number in itertools.count())


class Clock:
    """Unix seconds that stand still until told."""

    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["sqlite", "redis"])
def reopen(request, tmp_path, clock):
    """A function that opens the same store once more, as another process would."""
    if request.param == "sqlite":
        return lambda: SqliteStore.open(tmp_path / "store.sqlite3", clock)
    server = request.getfixturevalue("shared_redis")
    prefix = next(_PREFIXES)
    return lambda: RedisStore.open(server.url, clock, prefix=prefix)


@asynccontextmanager
async def opened(reopen):
    store = await reopen()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(reopen):
    async with opened(reopen) as one:
        yield one


@pytest.fixture
async def project(store):
    organization = await store.create_organization("acme")
    return await store.create_project("chat", organization.id)


async def opens(store, secret: str) -> bool:
    return digest(secret.encode()) in {one.digest for one in (await store.snapshot()).digests}


async def test_what_is_made_can_be_read_again(store, project):
    """The admin plane answers from what is stored."""
    key, secret = await store.create_key(
        NewKey(project.id, "laptop", max_lane=Lane.STANDARD, default_lane=Lane.BULK, expires_at=START + 60)
    )
    assert await store.key(key.id) == key
    assert await store.project(project.id) == project
    assert (await store.organization(project.organization_id)).name == "acme"
    assert key.prefix == secret.prefix
    assert (key.max_lane, key.default_lane, key.expires_at) == (Lane.STANDARD, Lane.BULK, START + 60)
    assert key.roles == {Role.SERVICE}
    assert (key.created_at, key.revoked_at) == (START, None)


@pytest.mark.parametrize("name", ["", "ünïcode ✓", 'quo"te\\', "new\nline", "x" * 10_000])
async def test_any_name_is_kept_as_it_is(store, name):
    """People name things in every language."""
    made = await store.create_organization(name)
    assert (await store.organization(made.id)).name == name


async def test_a_new_store_is_empty_and_has_a_secret(store):
    """The secret that salts come from is made once, at the first start."""
    snapshot = await store.snapshot()
    assert (snapshot.organizations, snapshot.projects, snapshot.keys, snapshot.digests) == ((), (), (), ())
    assert len(snapshot.server_secret) >= 32
    assert (await store.keys()).items == ()


async def test_what_was_made_is_there_for_who_opens_it_later(reopen, store, project):
    """Counters may be lost by a restart, tenants never; the salt's secret stays the same."""
    key, _ = await store.create_key(NewKey(project.id, "laptop"))
    before = await store.snapshot()
    await store.close()
    async with opened(reopen) as again:
        assert await again.snapshot() == before
        assert before.keys == (key,)


async def test_who_listens_for_changes_hears_of_one_or_that_there_is_nobody_to_tell(reopen, store):
    """A directory listens and polls besides, so both are right; it must not wait for what never comes."""
    async with await reopen() as other, aclosing(other.changes()) as changes, asyncio.timeout(10):
        try:
            await anext(changes)  # something may have been missed before
        except StopAsyncIteration:
            assert isinstance(other, SqliteStore)
            return
        await store.create_organization("acme")
        await anext(changes)


async def test_every_change_raises_the_revision_and_no_read_does(store, project):
    """Directories follow this number alone."""
    key, _ = await store.create_key(NewKey(project.id, "laptop"))
    seen = [await store.revision()]
    changes = [
        lambda: store.create_organization("other"),
        lambda: store.create_project("other", project.organization_id),
        lambda: store.create_key(NewKey(project.id, "other")),
        lambda: store.set_limits(Level.PROJECT, project.id, b'{"rpm":1}'),
        lambda: store.set_limits(Level.ORGANIZATION, project.organization_id, b'{"rpm":1}'),
        lambda: store.rotate_key(key.id),
        lambda: store.revoke_key(key.id),
    ]
    for change in changes:
        await change()
        seen.append(await store.revision())
    assert seen == sorted(set(seen))
    await store.snapshot()
    await store.keys()
    await store.key(key.id)
    assert (await store.snapshot()).revision == await store.revision() == seen[-1]


async def test_a_change_by_another_process_is_seen(reopen, store, project):
    """The supervisor writes and the gateways read the same store."""
    async with opened(reopen) as other:
        before = await other.revision()
        await store.create_key(NewKey(project.id, "laptop"))
        assert await other.revision() > before
        assert len((await other.snapshot()).keys) == 1


async def test_a_revoked_key_opens_nothing_and_keeps_its_first_time(store, project, clock):
    """Revoking twice is harmless, and no digest is left to look up."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    assert await opens(store, secret.text)
    revoked = await store.revoke_key(key.id)
    clock.now += 100
    assert revoked.revoked_at == START
    before = await store.revision()
    assert await store.revoke_key(key.id) == revoked
    assert await store.revision() == before
    assert not await opens(store, secret.text)
    assert (await store.snapshot()).keys == ()
    assert (await store.keys()).items == (revoked,)


async def test_rotating_without_overlap_ends_the_old_secret_at_once(store, project):
    """The default is that a leaked secret stops working now."""
    key, old = await store.create_key(NewKey(project.id, "laptop"))
    _, new = await store.rotate_key(key.id)
    assert not await opens(store, old.text)
    assert await opens(store, new.text)


async def test_rotating_with_overlap_keeps_the_old_secret_for_so_long(store, project, clock):
    """A fleet of clients needs time to change; a second rotation never lengthens it."""
    key, old = await store.create_key(NewKey(project.id, "laptop"))
    await store.rotate_key(key.id, overlap_s=60)
    clock.now += 10
    await store.rotate_key(key.id, overlap_s=3600)
    ends = {one.digest: one.expires_at for one in (await store.snapshot()).digests}
    assert ends[old.digest] == START + 60
    assert sorted(end or 0 for end in ends.values()) == [0, START + 60, START + 10 + 3600]


async def test_a_key_has_a_bounded_number_of_secrets(store, project):
    """Rotating in a loop must not make the directory grow, and the newest secret must stay."""
    key, first = await store.create_key(NewKey(project.id, "laptop"))
    for turn in range(MAX_SECRETS * 2):
        _, newest = await store.rotate_key(key.id, overlap_s=1000 + turn)
    assert len((await store.snapshot()).digests) == MAX_SECRETS
    assert await opens(store, newest.text)
    assert not await opens(store, first.text)


async def test_an_ended_key_cannot_be_rotated(store, project, clock):
    """A new secret for a revoked or expired key would open nothing."""
    revoked, _ = await store.create_key(NewKey(project.id, "a"))
    expiring, _ = await store.create_key(NewKey(project.id, "b", expires_at=START + 5))
    await store.revoke_key(revoked.id)
    clock.now += 5
    for key in (revoked, expiring):
        with pytest.raises(KeyEnded):
            await store.rotate_key(key.id)


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.organization("org_x"),
        lambda store: store.project("proj_x"),
        lambda store: store.key("key_x"),
        lambda store: store.create_project("name", "org_x"),
        lambda store: store.create_key(NewKey("proj_x", "name")),
        lambda store: store.revoke_key("key_x"),
        lambda store: store.rotate_key("key_x"),
        lambda store: store.limits(Level.PROJECT, "proj_x"),
        lambda store: store.set_limits(Level.ORGANIZATION, "org_x", b"{}"),
        lambda store: store.keys(after="key_x"),
    ],
)
async def test_an_unknown_id_is_named_and_changes_nothing(store, ask):
    """A refused change must leave no half of itself, not even a raised revision."""
    before = await store.revision()
    with pytest.raises(UnknownId, match=r"_x'"):
        await ask(store)
    assert await store.revision() == before


async def test_pages_come_in_order_and_end(store, project):
    """Every item comes once, whatever the page size."""
    made = [(await store.create_key(NewKey(project.id, f"k{number}")))[0].id for number in range(7)]
    other = await store.create_project("other", project.organization_id)
    await store.create_key(NewKey(other.id, "elsewhere"))
    seen, after = [], None
    while True:
        page = await store.keys(project_id=project.id, limit=3, after=after)
        assert len(page.items) <= 3
        seen += [key.id for key in page.items]
        after = page.next_after
        if after is None:
            break
    assert seen == made
    assert len((await store.keys(limit=100)).items) == 8
    assert len((await store.projects(organization_id="org_none")).items) == 0
    assert [one.id for one in (await store.projects(limit=1)).items] == [project.id]
    assert (await store.organizations(limit=1)).next_after is None


async def test_limits_documents_are_kept_by_level(store, project):
    """A document belongs to one organisation or project."""
    assert await store.limits(Level.PROJECT, project.id) == b"{}"
    await store.set_limits(Level.PROJECT, project.id, b'{"rpm":1}')
    assert await store.limits(Level.PROJECT, project.id) == b'{"rpm":1}'
    assert await store.limits(Level.ORGANIZATION, project.organization_id) == b"{}"


async def test_two_processes_may_start_at_once(reopen):
    """Both find or make the same installation."""
    stores = await asyncio.gather(*(reopen() for _ in range(4)))
    secrets = {(await store.snapshot()).server_secret for store in stores}
    assert len(secrets) == 1
    for store in stores:
        await store.close()


async def test_concurrent_changes_all_happen(reopen, store, project):
    """Two writers wait for each other; none is lost."""
    async with opened(reopen) as other:
        before = await store.revision()
        await asyncio.gather(
            *(one.create_key(NewKey(project.id, f"k{number}")) for number in range(20) for one in (store, other))
        )
        snapshot = await store.snapshot()
        assert len(snapshot.keys) == len(snapshot.digests) == len((await store.keys()).items) == 40
        assert snapshot.revision >= before + 40


async def test_a_cancelled_caller_leaves_the_store_usable(store, project):
    """The transaction of a caller that left is whole or absent, never open."""
    tasks = [asyncio.ensure_future(store.create_key(NewKey(project.id, f"k{number}"))) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    snapshot = await store.snapshot()
    assert len(snapshot.keys) == len(snapshot.digests)
    await store.create_key(NewKey(project.id, "after"))


async def test_a_closed_store_says_so(store):
    """Closing twice is harmless; asking afterwards is an error with a sentence."""
    assert repr(store).endswith(" open>")
    await store.close()
    await store.close()
    assert repr(store).endswith(" closed>")
    with pytest.raises(StoreError, match="closed"):
        await store.revision()
    with pytest.raises(StoreError, match="closed"):
        await store.create_organization("late")
