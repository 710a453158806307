"""What the SQLite ledger adds to the contract of every ledger: its file, its versions, its plans."""

import sqlite3
from contextlib import closing

import msgspec
import pytest

from policies.ledger import LedgerRow, Retention
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_ledger_schema import APPLICATION_ID, VERSION, open_ledger
from policies.sqlite_store import SqliteStore
from policies.store import StoreError


def row(**fields):
    """A finished request."""
    names = dict.fromkeys(("organization", "project", "key", "model", "lane", "surface", "outcome"), "x")
    return LedgerRow(request_id="req_1", started_at=1.5, ended_at=2.0, status=200, **names | fields)


async def test_the_file_is_its_owners_alone(tmp_path):
    """Also its log and its shared memory."""
    async with await SqliteLedger.open(tmp_path / "deep" / "ledger.sqlite3") as ledger:
        await ledger.add([row()])
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "deep").iterdir()} == {0o600}


async def test_it_says_what_it_is(tmp_path):
    """WAL, so that gateways read while the supervisor writes; a version, so that later ones can change it."""
    async with await SqliteLedger.open(tmp_path / "l.sqlite3"):
        pass
    with closing(sqlite3.connect(tmp_path / "l.sqlite3")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


async def test_another_applications_file_is_refused(tmp_path):
    """A store is no ledger, nor the other way round."""
    async with await SqliteStore.open(tmp_path / "store.sqlite3"):
        pass
    with pytest.raises(StoreError, match="another application's"):
        await SqliteLedger.open(tmp_path / "store.sqlite3")
    async with await SqliteLedger.open(tmp_path / "ledger.sqlite3"):
        pass
    with pytest.raises(StoreError, match="another application's"):
        await SqliteStore.open(tmp_path / "ledger.sqlite3")


async def test_a_newer_version_is_refused(tmp_path):
    """What this version does not know it must not change."""
    with closing(open_ledger(tmp_path / "l.sqlite3")) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(StoreError, match="use a newer Warmlane"):
        await SqliteLedger.open(tmp_path / "l.sqlite3")


async def test_a_damaged_file_is_said_so(tmp_path):
    """With its path."""
    (tmp_path / "l.sqlite3").write_bytes(b"SQLite format 3\x00" + b"x" * 4000)
    with pytest.raises(StoreError, match=r"l\.sqlite3 cannot be used"):
        await SqliteLedger.open(tmp_path / "l.sqlite3")


async def test_a_folder_that_cannot_be_made_is_said_so(tmp_path):
    """Not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteLedger.open(tmp_path / "file" / "l.sqlite3")


async def test_a_batch_that_fails_leaves_nothing(tmp_path):
    """Rows and totals are one transaction."""
    async with await SqliteLedger.open(tmp_path / "l.sqlite3") as ledger:
        with pytest.raises(StoreError):
            await ledger.add([row(), row(charged_tokens=2**70)])
        with pytest.raises(StoreError):
            await ledger.add([row(), LedgerRow(**{**_fields(row()), "request_id": "req_2", "organization": None})])
        assert await ledger.row("req_1") is None
        assert await ledger.add([row()]) == 1


def _fields(one):
    return {name: getattr(one, name) for name in one.__struct_fields__}


@pytest.mark.parametrize(
    ("question", "index"),
    [
        ("SELECT * FROM requests WHERE request_id = 'x'", "sqlite_autoindex_requests_1"),
        ("SELECT * FROM requests WHERE started_at >= 1 AND started_at < 2 ORDER BY started_at, request_id", "by_time"),
        (
            "SELECT * FROM requests WHERE project = 'x' AND started_at >= 1 ORDER BY started_at, request_id",
            "of_project",
        ),
        ("SELECT sum(requests) FROM totals WHERE length_s = 3600 AND starts_at >= 1 AND starts_at < 2", "PRIMARY KEY"),
    ],
)
def test_no_question_reads_the_whole_table(tmp_path, question, index):
    """A ledger has millions of rows."""
    with closing(open_ledger(tmp_path / "l.sqlite3")) as connection:
        plan = " ".join(str(step[3]) for step in connection.execute(f"EXPLAIN QUERY PLAN {question}"))
    assert index in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


def taken_away(folder, *, whole):
    """Remove the ledger's files, or the folder with them."""
    for path in folder.iterdir():
        path.unlink()
    if whole:
        folder.rmdir()


@pytest.mark.parametrize("whole", [False, True])
async def test_a_file_that_was_taken_away_is_made_again_by_its_writer_and_found_by_its_readers(tmp_path, whole):
    """Every row that was in it, in a file that its owner alone can read; readers go on meanwhile."""
    path = tmp_path / "home" / "l.sqlite3"
    async with await SqliteLedger.open(path) as writer, await SqliteLedger.open(path) as reader:
        await writer.add([row()])
        taken_away(path.parent, whole=whole)
        assert await reader.row("req_1") is not None
        assert not path.exists()
        assert await writer.add([row(), msgspec.structs.replace(row(), request_id="req_2")]) == 1
        assert [writer.num_restored, reader.num_restored] == [1, 0]
        assert [await reader.row(name) is not None for name in ("req_1", "req_2")] == [True, True]
        assert path.stat().st_mode & 0o777 == 0o600
        assert {one.name for one in path.parent.iterdir()} <= {"l.sqlite3", "l.sqlite3-wal", "l.sqlite3-shm"}
    async with await SqliteLedger.open(path) as again:
        assert await again.row("req_2") is not None


async def test_a_database_without_its_log_is_made_again_without_reading_the_old_log(tmp_path):
    """Only the database was removed: its log would be read into whatever has the name next."""
    path = tmp_path / "l.sqlite3"
    async with await SqliteLedger.open(path) as writer:
        await writer.add([row()])
        path.unlink()
        assert await writer.purge(0.0, Retention(30, 400)) == 0
        assert (await writer.row("req_1"), writer.num_restored) == (row(), 1)


async def test_a_file_that_cannot_be_made_again_is_said_so_and_nothing_is_lost(tmp_path):
    """The rows wait in the gateways' files, and the old ones in what is open."""
    path = tmp_path / "home" / "l.sqlite3"
    async with await SqliteLedger.open(path) as writer:
        await writer.add([row()])
        taken_away(path.parent, whole=True)
        path.parent.write_text("in the way")
        with pytest.raises(StoreError, match="taken away and cannot be made again"):
            await writer.add([row()])
        path.parent.unlink()
        assert await writer.add([row()]) == 0
        assert await writer.row("req_1") == row()
