"""`CacheClaims` in the store's SQLite file. Holds no rule.

A connection for each call, in a thread: an engine is claimed once in its life. The store has made the file before.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from policies.sqlite_opening import BUSY_TIMEOUT_MS
from policies.store import StoreError

R = TypeVar("R")

_TABLE = """
CREATE TABLE IF NOT EXISTS cache_owners (url TEXT PRIMARY KEY, domain TEXT NOT NULL, claimed_at INTEGER NOT NULL
DEFAULT (unixepoch())) STRICT, WITHOUT ROWID
"""


class SqliteCacheClaims:
    """The table `cache_owners` of the file in `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def claim(self, url: str, domain: str) -> str:
        """The owner. Raises `StoreError`."""

        def work(connection: sqlite3.Connection) -> str:
            connection.execute("INSERT OR IGNORE INTO cache_owners (url, domain) VALUES (?, ?)", (url, domain))
            owner: str = connection.execute("SELECT domain FROM cache_owners WHERE url = ?", (url,)).fetchone()[0]
            return owner

        return await self._in_thread(work)

    async def release(self, url: str) -> None:
        """No owner any more. Raises `StoreError`."""
        await self._in_thread(lambda connection: connection.execute("DELETE FROM cache_owners WHERE url = ?", (url,)))

    async def owners(self) -> dict[str, str]:
        """All rows. Raises `StoreError`."""
        return await self._in_thread(
            lambda connection: dict(connection.execute("SELECT url, domain FROM cache_owners"))
        )

    async def close(self) -> None:
        """Nothing is held between calls."""

    async def _in_thread(self, work: Callable[[sqlite3.Connection], R]) -> R:
        return await asyncio.to_thread(self._transaction, work)

    def _transaction(self, work: Callable[[sqlite3.Connection], R]) -> R:
        try:
            with closing(self._connect()) as connection, connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_TABLE)
                return work(connection)
        except sqlite3.Error as error:
            raise StoreError(f"who owns which engine cannot be read in {self._path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        # Never makes the file: a new one would hide that the store was lost.
        return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=rw", timeout=BUSY_TIMEOUT_MS / 1000, uri=True)
