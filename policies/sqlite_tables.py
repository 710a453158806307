"""What the SQLite store does in its thread: each method is one transaction, or one read. Knows no asyncio."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from policies.audit import SYSTEM, Author, Change, facts, limits_change, with_field
from policies.keys import Secret, new_id, new_secret
from policies.sqlite_audit import AuditTable
from policies.sqlite_responses import ResponseTable
from policies.sqlite_rows import COLUMNS, ITEMS, TABLES
from policies.store import (
    MAX_PAGE,
    MAX_SECRETS,
    Deleted,
    Key,
    KeyDigest,
    KeyEnded,
    Level,
    NewKey,
    NotEmpty,
    OpenedKey,
    Organization,
    Page,
    Project,
    Snapshot,
    UnknownId,
)

T = TypeVar("T", bound=Organization | Project | Key)

_LEVELS: dict[Level, type[Organization | Project]] = {Level.ORGANIZATION: Organization, Level.PROJECT: Project}
_OPEN_DIGESTS = """
    SELECT digest, key_id, digests.expires_at FROM digests JOIN keys ON keys.id = key_id WHERE revoked_at IS NULL
"""
_DROP_OLDEST_DIGESTS = """
    DELETE FROM digests WHERE digest IN (
        SELECT digest FROM digests WHERE key_id = ? ORDER BY expires_at DESC LIMIT -1 OFFSET ?
    )
"""
_NOTE_USE = """
    INSERT INTO key_uses SELECT id, ?2 FROM keys WHERE id = ?1
    ON CONFLICT (key_id) DO UPDATE SET last_used_at = max(last_used_at, excluded.last_used_at)
"""


class Tables:
    """The rows of one open database. `clock`: Unix seconds. `audit`: where every change is written down with it."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], float], audit: AuditTable) -> None:
        self._connection = connection
        self._clock = clock
        self._audit = audit
        self.responses = ResponseTable(connection, clock, self._transaction)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def create_organization(self, name: str, by: Author = SYSTEM) -> Organization:
        """One new row."""
        made = Organization(new_id("org"), name, int(self._clock()))
        with self._transaction():
            self._insert("organizations", id=made.id, name=name, created_at=made.created_at)
            self._note(by, Change("organization.created", made.id, made.id, after=facts(made)))
        return made

    def create_project(self, name: str, organization_id: str, by: Author = SYSTEM) -> Project:
        """One new row under an organisation that must exist."""
        made = Project(new_id("proj"), organization_id, name, int(self._clock()))
        with self._transaction():
            self.one(Organization, organization_id)
            self._insert("projects", id=made.id, organization_id=organization_id, name=name, created_at=made.created_at)
            self._note(by, Change("project.created", made.id, organization_id, made.id, after=facts(made)))
        return made

    def create_key(self, new: NewKey, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """One new key under a project that must exist, with one digest."""
        key_id = new_id("key")
        secret = new_secret(key_id)
        with self._transaction():
            project = self.one(Project, new.project_id)
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
            made = self.one(Key, key_id)
            self._note(by, Change("key.created", key_id, project.organization_id, project.id, after=facts(made)))
            return made, secret

    def revoke_key(self, key_id: str, by: Author = SYSTEM) -> Key:
        """The key without digests, so that no secret opens it any more."""
        with self._transaction():
            before = self.one(Key, key_id)
            if before.revoked_at is not None:
                return before
            self._execute("UPDATE keys SET revoked_at = ? WHERE id = ?", int(self._clock()), key_id)
            self._execute("DELETE FROM digests WHERE key_id = ?", key_id)
            revoked = self.one(Key, key_id)
            self._note(by, self._key_change("key.revoked", before, facts(revoked)))
            return revoked

    def rotate_key(self, key_id: str, overlap_s: float, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """The key with one more digest; the older ones end after the overlap, or go at once if there is none."""
        now = self._clock()
        secret = new_secret(key_id)
        with self._transaction():
            key = self.one(Key, key_id)
            if (ended := key.ended(now)) is not None:
                raise KeyEnded(f"the key {key_id} is {ended}")
            ends_at = now + overlap_s
            self._execute(
                "UPDATE digests SET expires_at = min(ifnull(expires_at, ?1), ?1) WHERE key_id = ?2", ends_at, key_id
            )
            self._execute("DELETE FROM digests WHERE key_id = ? AND expires_at <= ?", key_id, now)
            self._execute(_DROP_OLDEST_DIGESTS, key_id, MAX_SECRETS - 1)
            self._insert("digests", digest=secret.digest, key_id=key_id)
            told = with_field(facts(key), "old_secrets_end_at", int(ends_at))
            self._note(by, self._key_change("key.rotated", key, told))
            return self.one(Key, key_id), secret

    def set_limits(self, level: Level, of: str, document: bytes, by: Author = SYSTEM) -> None:
        """Replace one document."""
        kind = _LEVELS[level]
        with self._transaction():
            item = self.one(kind, of)
            self._execute(f"UPDATE {TABLES[kind]} SET limits = ? WHERE id = ?", document.decode(), of)  # noqa: S608
            self._note(by, limits_change(item, document))

    def delete_project(self, project_id: str, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """The project, its keys and their digests gone."""
        with self._transaction():
            return Deleted((), (project_id,), self._delete_project(self.one(Project, project_id), cascade, by))

    def delete_organization(self, organization_id: str, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """The organisation gone, with all its projects."""
        with self._transaction():
            organization = self.one(Organization, organization_id)
            projects = tuple(self._select(Project, "WHERE organization_id = ? ORDER BY position", organization_id))
            if projects and not cascade:
                raise NotEmpty(f"the organisation {organization_id} has {len(projects)} projects")
            keys = tuple(key_id for one in projects for key_id in self._delete_project(one, cascade, by))
            self._execute("DELETE FROM organizations WHERE id = ?", organization_id)
            change = Change("organization.deleted", organization_id, organization_id, before=facts(organization))
            self._note(by, change)
            return Deleted((organization_id,), tuple(one.id for one in projects), keys)

    def note_uses(self, used_at: dict[str, int]) -> None:
        """When keys were last used; those that are gone are passed over."""
        with self._transaction():
            self._connection.executemany(_NOTE_USE, used_at.items())

    def claim_alert(self, alert_id: str, until: float) -> bool:
        """Whether nobody had it; those whose time is over are dropped."""
        with self._transaction():
            self._execute("DELETE FROM alerts WHERE until <= ?", self._clock())
            found = self._execute("INSERT OR IGNORE INTO alerts (id, until) VALUES (?, ?)", alert_id, until)
            return found.rowcount == 1

    def settle_alert(self, alert_id: str, until: float) -> None:
        """Nobody gets it until then."""
        with self._transaction():
            self._execute("INSERT OR REPLACE INTO alerts (id, until) VALUES (?, ?)", alert_id, until)

    def note_change(self, change: Change, by: Author) -> None:
        """One entry of the audit log for something that is not in this store."""
        with self._transaction():
            self._note(by, change)

    @property
    def audit(self) -> AuditTable:
        """The log of every change."""
        return self._audit

    def opened_by(self, digest: bytes) -> OpenedKey | None:
        """What a digest opens."""
        row = self._execute("SELECT key_id, expires_at FROM digests WHERE digest = ?", digest).fetchone()
        if row is None:
            return None
        key = self.one(Key, row[0])
        ends = [end for end in (key.expires_at, row[1]) if end is not None]
        return OpenedKey(key, self.one(Project, key.project_id), min(ends, default=None))

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
        table = TABLES[kind]
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

    def _delete_project(self, project: Project, cascade: bool, by: Author) -> tuple[str, ...]:
        """The ids of its keys that could still be used. Within a transaction."""
        keys = tuple(self._select(Key, "WHERE project_id = ? AND revoked_at IS NULL ORDER BY position", project.id))
        if keys and not cascade:
            raise NotEmpty(f"the project {project.id} has {len(keys)} keys that are not revoked")
        for key in keys:
            self._note(by, Change("key.deleted", key.id, project.organization_id, project.id, before=facts(key)))
        of_project = "IN (SELECT id FROM keys WHERE project_id = ?)"
        self._execute(f"DELETE FROM digests WHERE key_id {of_project}", project.id)  # noqa: S608
        self._execute("DELETE FROM keys WHERE project_id = ?", project.id)
        self._execute("DELETE FROM projects WHERE id = ?", project.id)
        before = with_field(facts(project), "limits", msgspec.Raw(project.limits))
        self._note(by, Change("project.deleted", project.id, project.organization_id, project.id, before=before))
        return tuple(key.id for key in keys)

    def _key_change(self, action: str, key: Key, after: bytes) -> Change:
        project = self.one(Project, key.project_id)
        return Change(action, key.id, project.organization_id, project.id, before=facts(key), after=after)

    def _note(self, by: Author, change: Change) -> None:
        self._audit.add(change, by, self._clock())

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
        statement = f"SELECT {COLUMNS[kind]} FROM {TABLES[kind]} {rest}"  # noqa: S608
        for row in self._execute(statement, *values).fetchall():
            yield ITEMS[kind](row)
