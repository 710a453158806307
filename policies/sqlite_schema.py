"""The tables of the SQLite store, and how they change from version to version.

Every change to what a directory reads raises the revision by a trigger, so that no statement can forget it.
"""

import sqlite3
from pathlib import Path

from policies.keys import new_server_secret
from policies.sqlite_opening import Schema, open_sqlite
from policies.sqlite_responses import RESPONSES_SCHEMA, RESPONSES_TRIGGERS

APPLICATION_ID = 0x776C616E  # "wlan" in ASCII; tells our files from other applications'

_VERSION_1 = """
CREATE TABLE installation (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    server_secret BLOB NOT NULL CHECK (length(server_secret) >= 32),
    revision INTEGER NOT NULL
) STRICT;
CREATE TABLE organizations (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    limits TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE TABLE projects (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    organization_id TEXT NOT NULL REFERENCES organizations (id),
    name TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    limits TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE INDEX projects_of_organization ON projects (organization_id, position);
CREATE TABLE keys (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    project_id TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    roles TEXT NOT NULL,
    max_lane TEXT CHECK (max_lane IN ('interactive', 'standard', 'bulk')),
    default_lane TEXT CHECK (default_lane IN ('interactive', 'standard', 'bulk')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;
CREATE INDEX keys_of_project ON keys (project_id, position);
CREATE TABLE digests (
    digest BLOB PRIMARY KEY CHECK (length(digest) = 32),
    key_id TEXT NOT NULL REFERENCES keys (id),
    expires_at REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX digests_of_key ON digests (key_id);
"""

_FOLLOWED_TABLES = ("organizations", "projects", "keys", "digests")


def _create(connection: sqlite3.Connection) -> None:
    _run(connection, _VERSION_1)
    connection.execute("INSERT INTO installation VALUES (1, ?, 0)", (new_server_secret(),))
    for table in _FOLLOWED_TABLES:
        for event in ("INSERT", "UPDATE", "DELETE"):
            trigger = f"CREATE TRIGGER {table}_{event.lower()}_raises_revision AFTER {event} ON {table}"
            connection.execute(f"{trigger} BEGIN UPDATE installation SET revision = revision + 1; END")  # noqa: S608


def _run(connection: sqlite3.Connection, script: str) -> None:
    # NOTE: executescript() would commit the transaction that makes a migration whole.
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


_VERSION_2 = """
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    actor_kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    request_id TEXT NOT NULL,
    action TEXT NOT NULL,
    subject_id TEXT NOT NULL,
    organization_id TEXT,
    project_id TEXT,
    before TEXT,
    after TEXT
) STRICT;
CREATE INDEX audit_of_organization ON audit (organization_id, position);
CREATE INDEX audit_by_time ON audit (at);
CREATE TABLE key_uses (
    key_id TEXT PRIMARY KEY REFERENCES keys (id) ON DELETE CASCADE,
    last_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE alerts (id TEXT PRIMARY KEY, until REAL NOT NULL) STRICT, WITHOUT ROWID
"""


def _add_audit(connection: sqlite3.Connection) -> None:
    # No trigger on either: a directory reads neither, and uses are written every minute.
    _run(connection, _VERSION_2)


def _add_responses(connection: sqlite3.Connection) -> None:
    _run(connection, RESPONSES_SCHEMA)
    for trigger in RESPONSES_TRIGGERS:
        connection.execute(trigger)


_MIGRATIONS = (_create, _add_audit, _add_responses)
VERSION = len(_MIGRATIONS)
_SCHEMA = Schema("store", APPLICATION_ID, _MIGRATIONS, has_foreign_keys=True, is_checked=True)


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the store in `path`. Raises `StoreError` (`sqlite_opening.py`)."""
    return open_sqlite(path, _SCHEMA)
