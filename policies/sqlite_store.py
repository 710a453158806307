"""The store of one node: a SQLite file that the supervisor writes and its gateways read. Holds no rule.

One connection in one thread does everything in order (`sqlite_thread.py`). Other processes may use the same file.
While it is deleted, or cannot be written, every call raises `StoreLost`.
"""

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from policies.audit import SYSTEM, AuditEntry, AuditKeep, AuditWanted, Author, Change
from policies.kept_responses import KeptBound, KeptResponse
from policies.keys import Secret
from policies.sqlite_audit import AuditTable
from policies.sqlite_file import WatchedFile
from policies.sqlite_schema import open_database
from policies.sqlite_tables import Tables
from policies.sqlite_thread import SqliteThread
from policies.store import (
    MAX_PAGE,
    Deleted,
    Key,
    Level,
    NewKey,
    OpenedKey,
    Organization,
    Page,
    Project,
    Snapshot,
)

R = TypeVar("R")


class SqliteStore:
    """`policies.store.Store` in one file. Made with `open`; `close` ends its thread."""

    def __init__(
        self, path: Path, thread: SqliteThread, tables: Tables, clock: Callable[[], float], keep: AuditKeep
    ) -> None:
        self._path = path
        self._thread = thread
        self._tables = tables
        self._clock = clock
        self._keep = keep
        self._file = WatchedFile(path)

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Callable[[], float] = time.time,
        *,
        keep: AuditKeep = AuditKeep(),  # noqa: B008  # frozen
    ) -> Self:
        """The store in `path`, made at the first start, mode 0600. Raises `StoreError`. `clock`: Unix seconds."""
        thread = SqliteThread("store", path)
        connection = await thread.open(open_database)
        return cls(path, thread, _tables(connection, clock, keep), clock, keep)

    async def create_organization(self, name: str, *, by: Author = SYSTEM) -> Organization:
        """A new organisation."""
        return await self._in_thread(lambda: self._tables.create_organization(name, by))

    async def organization(self, organization_id: str) -> Organization:
        """One organisation. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Organization, organization_id))

    async def organizations(self, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[Organization]:
        """Organisations in order of creation."""
        return await self._in_thread(lambda: self._tables.page(Organization, limit, after))

    async def create_project(self, name: str, organization_id: str, *, by: Author = SYSTEM) -> Project:
        """A new project. Raises `UnknownId` for the organisation."""
        return await self._in_thread(lambda: self._tables.create_project(name, organization_id, by))

    async def project(self, project_id: str) -> Project:
        """One project. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Project, project_id))

    async def projects(
        self, *, organization_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Project]:
        """Projects in order of creation."""
        within = None if organization_id is None else ("organization_id", organization_id)
        return await self._in_thread(lambda: self._tables.page(Project, limit, after, within))

    async def create_key(self, new: NewKey, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """A new key and its secret. Raises `UnknownId` for the project."""
        return await self._in_thread(lambda: self._tables.create_key(new, by))

    async def key(self, key_id: str) -> Key:
        """One key, revoked or not. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Key, key_id))

    async def keys(
        self, *, project_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Key]:
        """Keys in order of creation, revoked ones too."""
        within = None if project_id is None else ("project_id", project_id)
        return await self._in_thread(lambda: self._tables.page(Key, limit, after, within))

    async def revoke_key(self, key_id: str, *, by: Author = SYSTEM) -> Key:
        """The key, now revoked. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.revoke_key(key_id, by))

    async def rotate_key(self, key_id: str, overlap_s: float = 0.0, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """The key with a new secret. Raises `UnknownId`, `KeyEnded`."""
        return await self._in_thread(lambda: self._tables.rotate_key(key_id, overlap_s, by))

    async def opened_by(self, digest: bytes) -> OpenedKey | None:
        """What a secret opens."""
        return await self._in_thread(lambda: self._tables.opened_by(digest))

    async def delete_project(self, project_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete a project and its keys. Raises `UnknownId`, `NotEmpty`."""
        return await self._in_thread(lambda: self._tables.delete_project(project_id, cascade, by))

    async def delete_organization(self, organization_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete an organisation and its projects. Raises `UnknownId`, `NotEmpty`."""
        return await self._in_thread(lambda: self._tables.delete_organization(organization_id, cascade, by))

    async def note_uses(self, used_at: dict[str, int]) -> None:
        """When keys were last used."""
        await self._in_thread(lambda: self._tables.note_uses(used_at))

    async def claim_alert(self, alert_id: str, until: float) -> bool:
        """Whether the alert is the caller's to tell until then."""
        return await self._in_thread(lambda: self._tables.claim_alert(alert_id, until))

    async def settle_alert(self, alert_id: str, until: float) -> None:
        """The alert was told."""
        await self._in_thread(lambda: self._tables.settle_alert(alert_id, until))

    async def keep_responses(self, responses: Sequence[KeptResponse], bound: KeptBound) -> None:
        """Keep these; the oldest of a project go."""
        await self._in_thread(lambda: self._tables.responses.keep(responses, bound))

    async def kept_response(self, project_id: str, response_id: str) -> bytes | None:
        """Its content, None if there is none."""
        return await self._in_thread(lambda: self._tables.responses.content(project_id, response_id))

    async def drop_response(self, project_id: str, response_id: str) -> bool:
        """Whether there was one."""
        return await self._in_thread(lambda: self._tables.responses.drop(project_id, response_id))

    async def expire_responses(self) -> None:
        """Drop all whose time is over."""
        await self._in_thread(lambda: self._tables.responses.expire())  # noqa: PLW0108  # the tables of then

    async def note_change(self, change: Change, *, by: Author) -> None:
        """One entry of the audit log for a change elsewhere."""
        await self._in_thread(lambda: self._tables.note_change(change, by))

    async def audit(self, wanted: AuditWanted, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[AuditEntry]:
        """Entries of the audit log, the newest first. Raises `ValueError` for `after`."""
        return await self._in_thread(lambda: self._tables.audit.page(wanted, limit, after))

    async def limits(self, level: Level, of: str) -> bytes:
        """A limits document. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.limits(level, of))

    async def set_limits(self, level: Level, of: str, document: bytes, *, by: Author = SYSTEM) -> None:
        """Replace a limits document. Raises `UnknownId`."""
        await self._in_thread(lambda: self._tables.set_limits(level, of, document, by))

    async def revision(self) -> int:
        """A number that every change raises."""
        return await self._in_thread(self._tables.revision)

    async def snapshot(self) -> Snapshot:
        """Everything as of one moment."""
        return await self._in_thread(self._tables.snapshot)

    async def changes(self) -> AsyncGenerator[None, None]:
        """Nothing: the file tells nobody."""
        nothing: tuple[None, ...] = ()
        for one in nothing:
            yield one

    async def close(self) -> None:
        """Finish what was begun and let go of the file. Harmless the second time."""
        await self._thread.close(self._close_tables)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._thread.state}>"

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await self._thread.run(lambda: self._on_file(work))

    def _close_tables(self) -> None:
        """In the thread, where what came before may have taken up others."""
        self._tables.close()

    def _on_file(self, work: Callable[[], R]) -> R:
        """`work` done in the file that has the name now. Runs in the store's thread; raises `StoreLost`."""
        if self._file.is_other():
            self._tables.close()
            self._tables = _tables(open_database(self._path), self._clock, self._keep)
            self._file.reopened()
        return work()


def _tables(connection: sqlite3.Connection, clock: Callable[[], float], keep: AuditKeep) -> Tables:
    return Tables(connection, clock, AuditTable(connection, keep))
