"""How a SQLite file is opened safely: made if need be, ours, of a known version, readable by its owner alone.

A migration is one step of `PRAGMA user_version`; all that are missing run in one transaction.
"""

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from policies.store import StoreError

BUSY_TIMEOUT_MS = 5000  # chosen: another process's transaction takes milliseconds
_NEW_STORE_BYTES = 1 << 18  # measured: an empty store, its log and its shared memory take 150 kB
_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds. `noun`: what people call it. `application_id`: tells our files from other applications'.

    `is_checked`: whether its pages are looked through at each start; for a small file that everything hangs on.
    """

    noun: str
    application_id: int
    migrations: tuple[Callable[[sqlite3.Connection], None], ...]
    has_foreign_keys: bool = False
    is_checked: bool = False


def open_sqlite(path: Path, schema: Schema) -> sqlite3.Connection:
    """A connection to the file, made or brought up to date if need be, readable by its owner alone.

    Raises `StoreError` for a file that is damaged, of a newer version, or another application's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # SQLite gives its WAL files the mode of the database
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the {schema.noun} {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path, schema)
    except sqlite3.Error as error:
        connection.close()
        why = why_unusable(error, shutil.disk_usage(path.parent).free)
        raise StoreError(f"the {schema.noun} {path} cannot be used: {why}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def why_unusable(error: sqlite3.Error, free_bytes: int) -> str:
    """The likely cause. SQLite calls a full disk an I/O error where its shared memory finds no room."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest tells kinds of one error apart
    if code == sqlite3.SQLITE_FULL or (code in _NO_ROOM and free_bytes < _NEW_STORE_BYTES):
        return f"no space left on its disk ({error})"
    return f"it may be damaged: {error}"


def _prepare(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    if schema.has_foreign_keys:
        connection.execute("PRAGMA foreign_keys = ON")
    _refuse_foreign(connection, path, schema)
    _keep_a_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    _migrate(connection, path, schema)
    if schema.is_checked:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreError(f"the {schema.noun} {path} is damaged: {found}")


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Switch to WAL, once in a file's life. SQLite waits for nobody here: where another does it just now it fails."""
    ends_at = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= ends_at:
                raise
            time.sleep(0.01)
        else:
            return


def _refuse_foreign(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    # In this order: another process that makes the file just now writes both in one transaction.
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != schema.application_id and (application or num_tables):
        raise StoreError(f"{path} is another application's database, not a Warmlane {schema.noun}")


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two processes that start together migrate one after the other
    try:
        for step in schema.migrations[_version_of(connection, path, schema) :]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {schema.application_id}")
        connection.execute(f"PRAGMA user_version = {len(schema.migrations)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version_of(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    known = len(schema.migrations)
    if version > known:
        raise StoreError(
            f"the {schema.noun} {path} has version {version}, this Warmlane knows up to {known}; use a newer Warmlane"
        )
    return version
