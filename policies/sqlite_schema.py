"""The tables of the SQLite store, how they change from version to version, and how a file is opened safely.

A migration is one step of `PRAGMA user_version`, run in one transaction. Every change to what a directory reads raises
the revision by a trigger, so that no statement can forget it.
"""

import os
import shutil
import sqlite3
from pathlib import Path

from policies.keys import new_server_secret
from policies.store import StoreError

APPLICATION_ID = 0x776C616E  # "wlan" in ASCII; tells our files from other applications'
_NEW_STORE_BYTES = 1 << 18  # measured: an empty store, its log and its shared memory take 150 kB
_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
BUSY_TIMEOUT_MS = 5000  # chosen: another process's transaction takes milliseconds

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


_MIGRATIONS = (_create, _add_audit)
VERSION = len(_MIGRATIONS)


def open_database(path: Path) -> sqlite3.Connection:
    """A connection to the store in `path`, made or brought up to date if need be, readable by its owner alone.

    Raises `StoreError` for a file that is damaged, of a newer version, or another application's.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # SQLite gives its WAL files the mode of the database
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=64)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the store {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise StoreError(f"the store {path} cannot be used: {why_unusable(error, _free_bytes(path))}") from error
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


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path.parent).free


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    _refuse_foreign(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    _migrate(connection, path)
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreError(f"the store {path} is damaged: {found}")


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    # In this order: another process that makes the store just now writes both in one transaction.
    num_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID and (application or num_tables):
        raise StoreError(f"{path} is another application's database, not a Warmlane store")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")  # two processes that start together migrate one after the other
    try:
        for step in _MIGRATIONS[_version_of(connection, path) :]:
            step(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version_of(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreError(
            f"the store {path} has version {version}, this Warmlane knows up to {VERSION}; use a newer Warmlane"
        )
    return version
