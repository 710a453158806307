"""The tables of the SQLite ledger, a file of its own beside the store, and how it is opened safely.

Apart from the store because it grows, is written all the time and may be thrown away. A migration is one step of
`PRAGMA user_version`, as in `sqlite_schema.py`.
"""

import os
import shutil
import sqlite3
from pathlib import Path

from policies.sqlite_schema import BUSY_TIMEOUT_MS, why_unusable
from policies.store import StoreError

APPLICATION_ID = 0x776C6C67  # "wllg" in ASCII

_VERSION_1 = (
    """
    CREATE TABLE requests (
        position INTEGER PRIMARY KEY,
        request_id TEXT NOT NULL UNIQUE,
        started_at REAL NOT NULL,
        ended_at REAL NOT NULL,
        organization TEXT NOT NULL,
        project TEXT NOT NULL,
        key TEXT NOT NULL,
        model TEXT NOT NULL,
        lane TEXT NOT NULL,
        surface TEXT NOT NULL,
        outcome TEXT NOT NULL,
        status INTEGER NOT NULL,
        reason TEXT,
        "limit" TEXT,
        attempts INTEGER NOT NULL,
        replica TEXT,
        queue_s REAL,
        ttft_s REAL,
        predicted_hit_tokens INTEGER,
        reserved_tokens INTEGER,
        prompt_tokens INTEGER,
        cached_tokens INTEGER,
        completion_tokens INTEGER,
        charged_tokens INTEGER NOT NULL,
        cost_nanousd INTEGER,
        is_estimated INTEGER NOT NULL CHECK (is_estimated IN (0, 1)),
        recovered INTEGER NOT NULL CHECK (recovered IN (0, 1))
    ) STRICT
    """,
    "CREATE INDEX requests_by_time ON requests (started_at, request_id)",
    "CREATE INDEX requests_of_project ON requests (project, started_at, request_id)",
    """
    CREATE TABLE totals (
        length_s INTEGER NOT NULL CHECK (length_s IN (3600, 86400)),
        starts_at INTEGER NOT NULL,
        organization TEXT NOT NULL,
        project TEXT NOT NULL,
        key TEXT NOT NULL,
        model TEXT NOT NULL,
        lane TEXT NOT NULL,
        requests INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        completion_tokens INTEGER NOT NULL,
        charged_tokens INTEGER NOT NULL,
        cost_nanousd INTEGER NOT NULL,
        PRIMARY KEY (length_s, starts_at, organization, project, key, model, lane)
    ) STRICT, WITHOUT ROWID
    """,
)


def _create(connection: sqlite3.Connection) -> None:
    for statement in _VERSION_1:
        connection.execute(statement)


_MIGRATIONS = (_create,)
VERSION = len(_MIGRATIONS)


def open_ledger(path: Path) -> sqlite3.Connection:
    """A connection to the ledger in `path`, made or brought up to date if need be, readable by its owner alone.

    Raises `StoreError` for a file that is damaged, of a newer version, or another application's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the ledger {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        why = why_unusable(error, shutil.disk_usage(path.parent).free)
        raise StoreError(f"the ledger {path} cannot be used: {why}") from error
    except StoreError:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and (application or num_tables):
        raise StoreError(f"{path} is another application's database, not a Warmlane ledger")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")  # two processes that start together migrate one after the other
    try:
        _migrate(connection, path)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreError(
            f"the ledger {path} has version {version}, this Warmlane knows up to {VERSION}; use a newer Warmlane"
        )
    for step in _MIGRATIONS[version:]:
        step(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
