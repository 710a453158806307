"""The store of one node: a SQLite file that the supervisor writes and its gateways read. Holds no rule.

One connection in one thread does everything in order, so there is one writer in a process, the event loop never waits
for a disk, and a caller that is cancelled leaves its transaction whole. Other processes may use the same file.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from policies.keys import Secret
from policies.sqlite_schema import open_database
from policies.sqlite_tables import Tables
from policies.store import MAX_PAGE, Key, Level, NewKey, Organization, Page, Project, Snapshot, StoreError

R = TypeVar("R")


class SqliteStore:
    """`policies.store.Store` in one file. Made with `open`; `close` ends its thread."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor, tables: Tables) -> None:
        self._path = path
        self._thread = thread
        self._tables = tables
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        """The store in `path`, made at the first start, mode 0600. Raises `StoreError`. `clock`: Unix seconds."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, open_database, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, thread, Tables(connection, clock))

    async def create_organization(self, name: str) -> Organization:
        """A new organisation."""
        return await self._in_thread(lambda: self._tables.create_organization(name))

    async def organization(self, organization_id: str) -> Organization:
        """One organisation. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Organization, organization_id))

    async def organizations(self, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[Organization]:
        """Organisations in order of creation."""
        return await self._in_thread(lambda: self._tables.page(Organization, limit, after))

    async def create_project(self, name: str, organization_id: str) -> Project:
        """A new project. Raises `UnknownId` for the organisation."""
        return await self._in_thread(lambda: self._tables.create_project(name, organization_id))

    async def project(self, project_id: str) -> Project:
        """One project. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Project, project_id))

    async def projects(
        self, *, organization_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Project]:
        """Projects in order of creation."""
        within = None if organization_id is None else ("organization_id", organization_id)
        return await self._in_thread(lambda: self._tables.page(Project, limit, after, within))

    async def create_key(self, new: NewKey) -> tuple[Key, Secret]:
        """A new key and its secret. Raises `UnknownId` for the project."""
        return await self._in_thread(lambda: self._tables.create_key(new))

    async def key(self, key_id: str) -> Key:
        """One key, revoked or not. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.one(Key, key_id))

    async def keys(
        self, *, project_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Key]:
        """Keys in order of creation, revoked ones too."""
        within = None if project_id is None else ("project_id", project_id)
        return await self._in_thread(lambda: self._tables.page(Key, limit, after, within))

    async def revoke_key(self, key_id: str) -> Key:
        """The key, now revoked. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.revoke_key(key_id))

    async def rotate_key(self, key_id: str, overlap_s: float = 0.0) -> tuple[Key, Secret]:
        """The key with a new secret. Raises `UnknownId`, `KeyEnded`."""
        return await self._in_thread(lambda: self._tables.rotate_key(key_id, overlap_s))

    async def limits(self, level: Level, of: str) -> bytes:
        """A limits document. Raises `UnknownId`."""
        return await self._in_thread(lambda: self._tables.limits(level, of))

    async def set_limits(self, level: Level, of: str, document: bytes) -> None:
        """Replace a limits document. Raises `UnknownId`."""
        await self._in_thread(lambda: self._tables.set_limits(level, of, document))

    async def revision(self) -> int:
        """A number that every change raises."""
        return await self._in_thread(self._tables.revision)

    async def snapshot(self) -> Snapshot:
        """Everything as of one moment."""
        return await self._in_thread(self._tables.snapshot)

    async def close(self) -> None:
        """Finish what was begun and let go of the file. Harmless the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._tables.close)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path.name} {'closed' if self._is_closed else 'open'}>"

    async def _in_thread(self, work: Callable[[], R]) -> R:
        if self._is_closed:
            raise StoreError(f"the store {self._path} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise StoreError(f"the store {self._path} failed: {error}") from error
