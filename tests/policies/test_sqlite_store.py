"""The SQLite store: what is written is there again, a change raises the revision, and a bad file is a clear error."""

import asyncio
import sqlite3
import stat

import pytest

from policies.keys import digest
from policies.lane import Lane
from policies.sqlite_schema import VERSION, why_unusable
from policies.sqlite_store import SqliteStore
from policies.store import MAX_SECRETS, KeyEnded, Level, NewKey, StoreError, UnknownId
from policies.tenant import Role

START = 1_700_000_000


class Clock:
    """Unix seconds that stand still until told."""

    def __init__(self) -> None:
        self.now = float(START)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.sqlite3"


@pytest.fixture
async def store(path, clock):
    async with await SqliteStore.open(path, clock) as opened:
        yield opened


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


async def test_what_was_made_survives_a_restart(path, clock, store, project):
    """Counters may be lost by a restart, tenants never; the salt's secret stays the same."""
    before = await store.snapshot()
    await store.close()
    async with await SqliteStore.open(path, clock) as again:
        assert await again.snapshot() == before


async def test_no_secret_is_at_rest(path, store, project):
    """Only the hash and a prefix are in the files."""
    _, secret = await store.create_key(NewKey(project.id, "laptop"))
    await store.close()
    hidden = secret.text.removeprefix(secret.prefix + "-").encode()
    for file in path.parent.iterdir():
        assert hidden not in file.read_bytes()


async def test_only_the_owner_may_read_the_files(path, store, project):
    """The file holds the server's secret, and SQLite's side files hold the same pages."""
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("store.sqlite3*")}
    assert set(modes.values()) == {0o600}
    assert "store.sqlite3-wal" in modes


async def test_a_file_that_others_could_read_is_closed_to_them(path, clock, store):
    """A copy restored with wide permissions must not stay so."""
    await store.close()
    path.chmod(0o644)
    async with await SqliteStore.open(path, clock):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


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


async def test_a_change_by_another_process_is_seen(path, clock, store, project):
    """The supervisor writes and the gateways read the same file."""
    async with await SqliteStore.open(path, clock) as other:
        before = await other.revision()
        await store.create_key(NewKey(project.id, "laptop"))
        assert await other.revision() > before
        assert len((await other.snapshot()).keys) == 1


async def test_a_change_written_by_hand_raises_the_revision_too(path, store, project):
    """The trigger, not the code, holds the promise."""
    before = await store.revision()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE projects SET limits = 'NaN'")
    connection.close()
    assert await store.revision() > before


async def test_a_revoked_key_opens_nothing_and_keeps_its_first_time(store, project, clock):
    """Revoking twice is harmless, and no digest is left to look up."""
    key, secret = await store.create_key(NewKey(project.id, "laptop"))
    assert await opens(store, secret.text)
    revoked = await store.revoke_key(key.id)
    clock.now += 100
    assert revoked.revoked_at == START
    assert await store.revoke_key(key.id) == revoked
    assert not await opens(store, secret.text)
    assert (await store.snapshot()).keys == ()


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


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read as one" * 40, b"\x00" * 5000])
async def test_a_file_that_is_no_database_is_a_clear_error(path, content):
    """An operator must learn which file and that it is damaged."""
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"store\.sqlite3"):
        await SqliteStore.open(path)


async def test_a_damaged_database_is_a_clear_error(path, store, project):
    """Half a file must not be served as if it were whole."""
    for number in range(200):
        await store.create_key(NewKey(project.id, f"key {number} " + "x" * 80))
    await store.close()
    whole = bytearray(path.read_bytes())
    whole[4096 * 3 : 4096 * 12] = b"\xa5" * (4096 * 9)
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="damaged"):
        await SqliteStore.open(path)


async def test_a_newer_version_is_refused_and_left_alone(path, store):
    """An older Warmlane must not write what it does not understand."""
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(StoreError, match=f"version {VERSION + 1}"):
        await SqliteStore.open(path)


async def test_another_applications_database_is_refused(path):
    """A wrong path must not put our tables into somebody's data."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="another application"):
        await SqliteStore.open(path)


async def test_a_path_that_cannot_be_opened_is_a_clear_error(tmp_path):
    """A folder in the place of the file, say."""
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteStore.open(tmp_path)


async def test_two_processes_may_start_at_once(path, clock):
    """Both find or make the same installation; migrations run once."""
    stores = await asyncio.gather(*(SqliteStore.open(path, clock) for _ in range(4)))
    secrets = {(await store.snapshot()).server_secret for store in stores}
    assert len(secrets) == 1
    for store in stores:
        await store.close()


async def test_concurrent_changes_all_happen(path, clock, store, project):
    """Two writers wait for each other; none is lost."""
    async with await SqliteStore.open(path, clock) as other:
        await asyncio.gather(
            *(one.create_key(NewKey(project.id, f"k{number}")) for number in range(20) for one in (store, other))
        )
        assert len((await store.keys()).items) == 40


async def test_a_cancelled_caller_leaves_the_store_usable(store, project):
    """The transaction of a caller that left is whole or absent, never open."""
    tasks = [asyncio.ensure_future(store.create_key(NewKey(project.id, f"k{number}"))) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    snapshot = await store.snapshot()
    assert len(snapshot.keys) == len(snapshot.digests)


async def test_a_closed_store_says_so(path, store):
    """Closing twice is harmless; asking afterwards is an error with a sentence."""
    assert repr(store) == "<SqliteStore store.sqlite3 open>"
    await store.close()
    await store.close()
    assert repr(store) == "<SqliteStore store.sqlite3 closed>"
    with pytest.raises(StoreError, match="closed"):
        await store.revision()


async def test_a_failing_database_is_a_store_error(path, store):
    """No sqlite3 exception leaves the store."""
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE digests")
    connection.close()
    with pytest.raises(StoreError, match="failed"):
        await store.snapshot()


@pytest.mark.parametrize(
    ("code", "text", "free_bytes", "word"),
    [
        (sqlite3.SQLITE_FULL, "database or disk is full", 1 << 40, "no space left"),
        (sqlite3.SQLITE_IOERR, "disk I/O error", 8192, "no space left"),
        (sqlite3.SQLITE_IOERR, "disk I/O error", 1 << 40, "may be damaged"),
        (sqlite3.SQLITE_CORRUPT, "database disk image is malformed", 0, "may be damaged"),
    ],
)
def test_a_full_disk_is_not_called_damage(code, text, free_bytes, word):
    """Whoever reads `damaged` restores a backup."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    assert word in why_unusable(error, free_bytes)
