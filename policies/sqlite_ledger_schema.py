"""The tables of the SQLite ledger, a file of its own beside the store.

Apart from the store because it grows, is written all the time and may be thrown away.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from policies.sqlite_opening import Schema, open_sqlite
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
_SCHEMA = Schema("ledger", APPLICATION_ID, _MIGRATIONS)


def open_ledger(path: Path) -> sqlite3.Connection:
    """A connection to the ledger in `path`. Raises `StoreError` (`sqlite_opening.py`)."""
    return open_sqlite(path, _SCHEMA)


def restore_ledger(connection: sqlite3.Connection, path: Path) -> None:
    """Make the file at `path` again from a connection that still has the one that was taken away.

    Raises `StoreError`.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(new)) as copy:
            connection.backup(copy)
        for log in ("-wal", "-shm"):  # what is left of the old one's would be read into the new one
            path.with_name(path.name + log).unlink(missing_ok=True)
        new.rename(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the ledger {path} was taken away and cannot be made again: {error}") from error
