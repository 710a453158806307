"""What the SQLite store promises beside the contract of all stores: its files, what is wrong with them, their loss."""

import sqlite3
import stat

import pytest

from policies import sqlite_file
from policies.audit import AuditWanted
from policies.sqlite_opening import why_unusable
from policies.sqlite_schema import VERSION
from policies.sqlite_store import SqliteStore
from policies.store import NewKey, StoreError, StoreLost, UnknownId

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


async def test_a_change_written_by_hand_raises_the_revision_too(path, store, project):
    """The trigger, not the code, holds the promise."""
    before = await store.revision()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE projects SET limits = 'NaN'")
    connection.close()
    assert await store.revision() > before


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


async def test_a_store_of_the_first_version_is_brought_up_to_date(path, store, project):
    """What an older Warmlane kept is there again, and the log begins."""
    key, secret = await store.create_key(NewKey(project.id, "old"))
    await store.close()
    with sqlite3.connect(path) as connection:
        for table in ("audit", "key_uses", "alerts", "responses", "response_totals"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    async with await SqliteStore.open(path) as again:
        assert (await again.opened_by(secret.digest)).key == key
        assert (await again.audit(AuditWanted())).items == ()
        await again.revoke_key(key.id)
        assert [one.change.action for one in (await again.audit(AuditWanted())).items] == ["key.revoked"]


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


def move(path, to, only=("", "-wal", "-shm")):
    """Move a store's files away, or back."""
    for ending in only:
        (path.parent / f"{path.name}{ending}").rename(to.parent / f"{to.name}{ending}")


async def test_a_deleted_file_is_a_lost_store_and_nothing_is_written_into_the_void(path, store, project):
    """D27: the connection would go on with a file without a name, and lose all of it with the process."""
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink()
    sentence = f"store lost: {path} was deleted, restore it or restart"
    for ask in (store.revision, store.snapshot, lambda: store.create_organization("late")):
        with pytest.raises(StoreLost) as lost:
            await ask()
        assert str(lost.value) == sentence
    assert not path.exists(), "none is made in its place"


async def test_a_file_that_is_moved_back_is_taken_up_again(path, tmp_path, store, project):
    """Restored is restored: with everything in it, and without a restart."""
    before = await store.snapshot()
    move(path, tmp_path / "away")
    with pytest.raises(StoreLost):
        await store.snapshot()
    move(tmp_path / "away", path)
    assert await store.snapshot() == before
    assert (await store.create_organization("late")).name == "late"


async def test_a_backup_in_its_place_is_opened(path, tmp_path, clock, store, project):
    """The usual repair: another file under the old name. What it holds is what holds."""
    backup = tmp_path / "backup"
    with sqlite3.connect(path) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    late = await store.create_organization("after the backup")
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink()
    backup.rename(path)
    assert await store.project(project.id) == project
    with pytest.raises(UnknownId):
        await store.organization(late.id)
    made = await store.create_organization("new")
    async with await SqliteStore.open(path, clock) as other:
        assert await other.organization(made.id) == made


async def test_another_file_beside_the_old_log_is_not_opened(path, tmp_path, store, project):
    """SQLite would read the old log into it."""
    other = tmp_path / "other"
    async with await SqliteStore.open(other):
        pass
    path.unlink()
    other.rename(path)
    with pytest.raises(StoreLost, match=r"was replaced beside its old log store\.sqlite3-wal, restart"):
        await store.snapshot()


@pytest.mark.parametrize("which", ["file", "folder"])
async def test_what_cannot_be_written_any_more_is_a_lost_store(path, store, monkeypatch, which):
    """D27: a folder made read-only shows at the first look, not in the middle of a change."""
    place = path if which == "file" else path.parent
    monkeypatch.setattr(sqlite_file.os, "access", lambda asked, _mode: asked != place)
    with pytest.raises(StoreLost) as lost:
        await store.create_organization("late")
    assert str(lost.value) == f"store lost: {place} cannot be written, make it writable"
    monkeypatch.undo()
    assert (await store.create_organization("late")).name == "late"


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
