"""The ledger of one node: a SQLite file that the supervisor writes and its gateways read. Holds no rule.

One connection in one thread does everything in order (`sqlite_thread.py`). A file that is taken away meanwhile is made
again by whoever writes to it, with all that was in it; whoever reads goes over to the new one.
"""

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from policies.ledger import MAX_PAGE, Group, LedgerRow, Retention, RowPage, Tally, UsagePage, Wanted
from policies.sqlite_file import WatchedFile
from policies.sqlite_ledger_schema import open_ledger, restore_ledger
from policies.sqlite_ledger_tables import LedgerTables
from policies.sqlite_thread import SqliteThread

R = TypeVar("R")


class SqliteLedger:
    """`policies.ledger.Ledger` in one file. Made with `open`; `close` ends its thread."""

    def __init__(self, path: Path, thread: SqliteThread, connection: sqlite3.Connection) -> None:
        self._path = path
        self._thread = thread
        self._connection = connection
        self._tables = LedgerTables(connection)
        self._file = WatchedFile(path)
        self._num_restored = 0

    @property
    def num_restored(self) -> int:
        """How often the file was taken away and made again."""
        return self._num_restored

    @classmethod
    async def open(cls, path: Path) -> Self:
        """The ledger in `path`, made at the first start, mode 0600. Raises `StoreError`."""
        thread = SqliteThread("ledger", path)
        return cls(path, thread, await thread.open(open_ledger))

    async def add(self, rows: Sequence[LedgerRow]) -> int:
        """Keep and count what is new."""
        return await self._write(lambda: self._tables.add(rows)) if rows else 0

    async def row(self, request_id: str) -> LedgerRow | None:
        """One row."""
        return await self._read(lambda: self._tables.row(request_id))

    async def rows(self, wanted: Wanted, *, limit: int = MAX_PAGE, after: str | None = None) -> RowPage:
        """Rows in order of time. Raises `ValueError` for a bad `after`."""
        return await self._read(lambda: self._tables.rows(wanted, limit, after))

    async def usage(
        self, wanted: Wanted, group_by: Group, *, limit: int = MAX_PAGE, after: str | None = None
    ) -> UsagePage:
        """Sums by group. Raises `ValueError` for a bad `after`."""
        return await self._read(lambda: self._tables.usage(wanted, group_by, limit, after))

    async def hours(self, starts_at: int, ends_at: int) -> list[Tally]:
        """Sums by project and hour."""
        return await self._read(lambda: self._tables.hours(starts_at, ends_at))

    async def tally(self, starts_at: float, ends_at: float, every_s: int) -> list[Tally]:
        """Sums of rows by project and stretch of time."""
        return await self._read(lambda: self._tables.tally(starts_at, ends_at, every_s))

    async def purge(self, now: float, keep: Retention) -> int:
        """Drop one batch of what is too old."""
        return await self._write(lambda: self._tables.purge(now, keep))

    async def close(self) -> None:
        """Finish what was begun and let go of the file. Harmless the second time."""
        await self._thread.close(self._close_tables)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SqliteLedger {self._thread.state}>"

    async def _read(self, work: Callable[[], R]) -> R:
        return await self._thread.run(lambda: self._on_file(work, is_writing=False))

    async def _write(self, work: Callable[[], R]) -> R:
        return await self._thread.run(lambda: self._on_file(work, is_writing=True))

    def _close_tables(self) -> None:
        """In the thread, where what came before may have taken up others."""
        self._tables.close()

    def _on_file(self, work: Callable[[], R], *, is_writing: bool) -> R:
        """`work` done in the file that has the name now. Runs in the thread; raises `StoreError`."""
        if not self._path.exists():
            if not is_writing:
                return work()  # what is open still has everything; who writes makes the file again
            restore_ledger(self._connection, self._path)
            self._num_restored += 1
            self._reopen()
        elif self._file.is_other():
            self._reopen()
        return work()

    def _reopen(self) -> None:
        self._tables.close()
        self._connection = open_ledger(self._path)
        self._tables = LedgerTables(self._connection)
        self._file.reopened()
