"""What the SQLite store does in its thread: each method is one transaction, or one read. Knows no asyncio."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from policies.keys import Secret, new_id, new_secret
from policies.lane import Lane
from policies.store import (
    MAX_PAGE,
    MAX_SECRETS,
    Key,
    KeyDigest,
    KeyEnded,
    Level,
    NewKey,
    Organization,
    Page,
    Project,
    Snapshot,
    UnknownId,
)
from policies.tenant import Role

T = TypeVar("T", bound=Organization | Project | Key)
Row = tuple[Any, ...]

_TABLES: dict[type, str] = {Organization: "organizations", Project: "projects", Key: "keys"}
_LEVELS: dict[Level, type[Organization | Project]] = {Level.ORGANIZATION: Organization, Level.PROJECT: Project}
_COLUMNS: dict[type, str] = {
    Organization: "id, name, created_at, limits",
    Project: "id, organization_id, name, created_at, limits",
    Key: "id, project_id, name, prefix, roles, max_lane, default_lane, created_at, expires_at, revoked_at",
}
_OPEN_DIGESTS = """
    SELECT digest, key_id, digests.expires_at FROM digests JOIN keys ON keys.id = key_id WHERE revoked_at IS NULL
"""
_DROP_OLDEST_DIGESTS = """
    DELETE FROM digests WHERE digest IN (
        SELECT digest FROM digests WHERE key_id = ? ORDER BY expires_at DESC LIMIT -1 OFFSET ?
    )
"""
_ROLES = {role.value: role for role in Role}


class Tables:
    """The rows of one open database. `clock`: Unix seconds."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def create_organization(self, name: str) -> Organization:
        """One new row."""
        made = Organization(new_id("org"), name, int(self._clock()))
        with self._transaction():
            self._insert("organizations", id=made.id, name=name, created_at=made.created_at)
        return made

    def create_project(self, name: str, organization_id: str) -> Project:
        """One new row under an organisation that must exist."""
        made = Project(new_id("proj"), organization_id, name, int(self._clock()))
        with self._transaction():
            self.one(Organization, organization_id)
            self._insert("projects", id=made.id, organization_id=organization_id, name=name, created_at=made.created_at)
        return made

    def create_key(self, new: NewKey) -> tuple[Key, Secret]:
        """One new key under a project that must exist, with one digest."""
        key_id = new_id("key")
        secret = new_secret(key_id)
        with self._transaction():
            self.one(Project, new.project_id)
            self._insert(
                "keys",
                id=key_id,
                project_id=new.project_id,
                name=new.name,
                prefix=secret.prefix,
                roles=",".join(sorted(role.value for role in new.roles)),
                max_lane=new.max_lane and new.max_lane.value,
                default_lane=new.default_lane and new.default_lane.value,
                created_at=int(self._clock()),
                expires_at=new.expires_at,
            )
            self._insert("digests", digest=secret.digest, key_id=key_id)
            return self.one(Key, key_id), secret

    def revoke_key(self, key_id: str) -> Key:
        """The key without digests, so that no secret opens it any more."""
        with self._transaction():
            if self.one(Key, key_id).revoked_at is None:
                self._execute("UPDATE keys SET revoked_at = ? WHERE id = ?", int(self._clock()), key_id)
                self._execute("DELETE FROM digests WHERE key_id = ?", key_id)
            return self.one(Key, key_id)

    def rotate_key(self, key_id: str, overlap_s: float) -> tuple[Key, Secret]:
        """The key with one more digest; the older ones end after the overlap, or go at once if there is none."""
        now = self._clock()
        secret = new_secret(key_id)
        with self._transaction():
            key = self.one(Key, key_id)
            if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
                raise KeyEnded(f"the key {key_id} is {'expired' if key.revoked_at is None else 'revoked'}")
            ends_at = now + overlap_s
            self._execute(
                "UPDATE digests SET expires_at = min(ifnull(expires_at, ?1), ?1) WHERE key_id = ?2", ends_at, key_id
            )
            self._execute("DELETE FROM digests WHERE key_id = ? AND expires_at <= ?", key_id, now)
            self._execute(_DROP_OLDEST_DIGESTS, key_id, MAX_SECRETS - 1)
            self._insert("digests", digest=secret.digest, key_id=key_id)
            return self.one(Key, key_id), secret

    def set_limits(self, level: Level, of: str, document: bytes) -> None:
        """Replace one document."""
        kind = _LEVELS[level]
        with self._transaction():
            self.one(kind, of)
            self._execute(f"UPDATE {_TABLES[kind]} SET limits = ? WHERE id = ?", document.decode(), of)  # noqa: S608

    def limits(self, level: Level, of: str) -> bytes:
        """One document."""
        return self.one(_LEVELS[level], of).limits

    def one(self, kind: type[T], item_id: str) -> T:
        """The item of this kind and id. Raises `UnknownId`."""
        for item in self._select(kind, "WHERE id = ?", item_id):
            return item
        raise UnknownId(kind.__name__.lower(), item_id)

    def page(self, kind: type[T], limit: int, after: str | None, within: tuple[str, str] | None = None) -> Page[T]:
        """Items after one id in order of creation; `within`: only those whose (column) is (value)."""
        limit = max(1, min(limit, MAX_PAGE))
        table = _TABLES[kind]
        conditions, values = ["1"], list[Any]()
        if after is not None:
            self.one(kind, after)
            conditions.append(f"position > (SELECT position FROM {table} WHERE id = ?)")  # noqa: S608
            values.append(after)
        if within is not None:
            conditions.append(f"{within[0]} = ?")
            values.append(within[1])
        where = f"WHERE {' AND '.join(conditions)} ORDER BY position LIMIT ?"
        items = tuple(self._select(kind, where, *values, limit + 1))
        return Page(items[:limit], items[limit - 1].id if len(items) > limit else None)

    def revision(self) -> int:
        """The number every change raises."""
        row: tuple[int] = self._execute("SELECT revision FROM installation").fetchone()
        return row[0]

    def snapshot(self) -> Snapshot:
        """All rows that matter to a directory, in one read transaction."""
        with self._transaction("DEFERRED"):
            revision, secret = self._execute("SELECT revision, server_secret FROM installation").fetchone()
            digests = self._execute(_OPEN_DIGESTS).fetchall()
            return Snapshot(
                revision=revision,
                server_secret=secret,
                organizations=tuple(self._select(Organization, "ORDER BY position")),
                projects=tuple(self._select(Project, "ORDER BY position")),
                keys=tuple(self._select(Key, "WHERE revoked_at IS NULL ORDER BY position")),
                digests=tuple(KeyDigest(*row) for row in digests),
            )

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        self._execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _insert(self, table: str, **columns: Any) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        self._execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", *columns.values())  # noqa: S608

    def _select(self, kind: type[T], rest: str, *values: Any) -> Iterator[T]:
        statement = f"SELECT {_COLUMNS[kind]} FROM {_TABLES[kind]} {rest}"  # noqa: S608
        for row in self._execute(statement, *values).fetchall():
            yield _ITEMS[kind](row)


def _organization(row: Row) -> Organization:
    item_id, name, created_at, limits = row
    return Organization(item_id, name, created_at, limits.encode())


def _project(row: Row) -> Project:
    item_id, organization_id, name, created_at, limits = row
    return Project(item_id, organization_id, name, created_at, limits.encode())


def _key(row: Row) -> Key:
    item_id, project_id, name, prefix, roles, max_lane, default_lane, created_at, expires_at, revoked_at = row
    return Key(
        id=item_id,
        project_id=project_id,
        name=name,
        prefix=prefix,
        roles=frozenset(_ROLES[role] for role in roles.split(",") if role in _ROLES),  # an unknown one gives no right
        max_lane=None if max_lane is None else Lane(max_lane),
        default_lane=None if default_lane is None else Lane(default_lane),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


_ITEMS: dict[type, Callable[[Row], Any]] = {Organization: _organization, Project: _project, Key: _key}
