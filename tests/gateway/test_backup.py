"""A copy of the store and the ledger is whole, also of a Warmlane that writes meanwhile."""

import asyncio
import json
import sqlite3
from contextlib import closing

import pytest
from typer.testing import CliRunner

from gateway.backup import backup
from gateway.cli import app
from gateway.ledger import ledger_path
from gateway.settings import ConfigError, Settings, StoreSection
from policies.ledger import LedgerRow
from policies.sqlite_ledger import SqliteLedger
from policies.sqlite_store import SqliteStore
from policies.store import StoreError


def row(number):
    """A finished request."""
    names = dict.fromkeys(("organization", "project", "key", "model", "lane", "surface", "outcome"), "x")
    return LedgerRow(request_id=f"req_{number}", started_at=float(number), ended_at=0.0, status=200, **names)


@pytest.fixture
async def home(tmp_path):
    """A home whose store and ledger are open."""
    folder = tmp_path / "home"
    path = folder / "warmlane.sqlite3"
    async with await SqliteStore.open(path) as store, await SqliteLedger.open(ledger_path(path)) as ledger:
        await store.create_organization("acme")
        await ledger.add([row(number) for number in range(3000)])
        yield folder


async def test_both_files_are_copied_while_they_are_open(home, tmp_path):
    """A backup needs no pause, and a copy can be used as a home."""
    seen = []
    copies = backup(Settings(), home, tmp_path / "copies", lambda *progress: seen.append(progress))
    assert [one.target.name for one in copies] == ["warmlane.sqlite3", "warmlane.ledger.sqlite3"]
    assert {path.name for path in (tmp_path / "copies").iterdir()} == {one.target.name for one in copies}
    assert all(one.target.stat().st_mode & 0o777 == 0o600 for one in copies)
    assert seen[-1][0] == "warmlane.ledger.sqlite3"
    assert seen[-1][1] == seen[-1][2] > 0
    async with await SqliteStore.open(copies[0].target) as store:
        assert [one.name for one in (await store.organizations()).items] == ["acme"]
    async with await SqliteLedger.open(copies[1].target) as ledger:
        assert await ledger.row("req_2999") == row(2999)


async def test_a_copy_is_of_one_moment_while_others_write(home, tmp_path):
    """Rows and their totals agree in the copy."""
    path = ledger_path(home / "warmlane.sqlite3")
    async with await SqliteLedger.open(path) as ledger:
        copying = asyncio.create_task(asyncio.to_thread(backup, Settings(), home, tmp_path / "copies"))
        number = 10_000
        while not copying.done():
            await ledger.add([row(number)])
            number += 1
        await copying
    with closing(sqlite3.connect(tmp_path / "copies" / path.name)) as copy:
        rows = copy.execute("SELECT count(*) FROM requests").fetchone()[0]
        counted = copy.execute("SELECT sum(requests) FROM totals WHERE length_s = 3600").fetchone()[0]
    assert rows == counted >= 3000


async def test_a_later_copy_takes_the_place_of_an_earlier(home, tmp_path):
    """A backup every night into one folder."""
    for _ in range(2):
        assert len(backup(Settings(), home, tmp_path / "copies")) == 2


async def test_a_file_is_not_copied_onto_itself(home):
    """That would destroy what is to be kept."""
    with pytest.raises(StoreError, match="onto itself"):
        backup(Settings(), home, home)
    async with await SqliteStore.open(home / "warmlane.sqlite3") as store:
        assert (await store.organizations()).items


def test_redis_is_not_copied(tmp_path):
    """It has tools of its own."""
    settings = Settings(store=StoreSection(url="redis://127.0.0.1:1/0"))
    with pytest.raises(ConfigError, match="Redis's own tools"):
        backup(settings, tmp_path, tmp_path / "copies")


def test_a_home_without_a_store_is_said_so(tmp_path):
    """Nothing is made for it."""
    with pytest.raises(StoreError, match="there is no store at"):
        backup(Settings(), tmp_path, tmp_path / "copies")
    assert not (tmp_path / "copies").exists()


def test_what_is_no_database_is_not_copied(tmp_path):
    """And no half copy is left."""
    (tmp_path / "warmlane.sqlite3").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="cannot be copied"):
        backup(Settings(), tmp_path, tmp_path / "copies")
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_folder_that_is_a_file_is_said_so(tmp_path):
    """One sentence."""
    (tmp_path / "warmlane.sqlite3").write_bytes(b"")
    (tmp_path / "copies").write_text("")
    with pytest.raises(StoreError, match="copies is a file; give a folder"):
        backup(Settings(), tmp_path, tmp_path / "copies")


async def test_the_command_tells_what_it_copied(home, tmp_path):
    """For people and for scripts."""
    words = ["backup", str(tmp_path / "copies"), "--home", str(home)]
    shown = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("is copied to") == 2
    told = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
    assert len(json.loads(told.stdout)["files"]) == 2
