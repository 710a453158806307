"""The ledger of one node: a SQLite file that the supervisor writes and its gateways read. Holds no rule.

One connection in one thread does everything in order (`sqlite_thread.py`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from policies.ledger import MAX_PAGE, Group, LedgerRow, Retention, RowPage, Tally, UsagePage, Wanted
from policies.sqlite_ledger_schema import open_ledger
from policies.sqlite_ledger_tables import LedgerTables
from policies.sqlite_thread import SqliteThread


class SqliteLedger:
    """`policies.ledger.Ledger` in one file. Made with `open`; `close` ends its thread."""

    def __init__(self, thread: SqliteThread, tables: LedgerTables) -> None:
        self._thread = thread
        self._tables = tables

    @classmethod
    async def open(cls, path: Path) -> Self:
        """The ledger in `path`, made at the first start, mode 0600. Raises `StoreError`."""
        thread = SqliteThread("ledger", path)
        return cls(thread, LedgerTables(await thread.open(open_ledger)))

    async def add(self, rows: Sequence[LedgerRow]) -> int:
        """Keep and count what is new."""
        return await self._thread.run(lambda: self._tables.add(rows)) if rows else 0

    async def row(self, request_id: str) -> LedgerRow | None:
        """One row."""
        return await self._thread.run(lambda: self._tables.row(request_id))

    async def rows(self, wanted: Wanted, *, limit: int = MAX_PAGE, after: str | None = None) -> RowPage:
        """Rows in order of time. Raises `ValueError` for a bad `after`."""
        return await self._thread.run(lambda: self._tables.rows(wanted, limit, after))

    async def usage(
        self, wanted: Wanted, group_by: Group, *, limit: int = MAX_PAGE, after: str | None = None
    ) -> UsagePage:
        """Sums by group. Raises `ValueError` for a bad `after`."""
        return await self._thread.run(lambda: self._tables.usage(wanted, group_by, limit, after))

    async def hours(self, starts_at: int, ends_at: int) -> list[Tally]:
        """Sums by project and hour."""
        return await self._thread.run(lambda: self._tables.hours(starts_at, ends_at))

    async def tally(self, starts_at: float, ends_at: float, every_s: int) -> list[Tally]:
        """Sums of rows by project and stretch of time."""
        return await self._thread.run(lambda: self._tables.tally(starts_at, ends_at, every_s))

    async def purge(self, now: float, keep: Retention) -> int:
        """Drop one batch of what is too old."""
        return await self._thread.run(lambda: self._tables.purge(now, keep))

    async def close(self) -> None:
        """Finish what was begun and let go of the file. Harmless the second time."""
        await self._thread.close(self._tables.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SqliteLedger {self._thread.state}>"
