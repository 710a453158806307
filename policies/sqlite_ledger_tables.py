"""What the SQLite ledger does in its thread: each method is one transaction, or one read. Knows no asyncio."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from policies.ledger import (
    DAY_S,
    HOUR_S,
    MAX_PAGE,
    Group,
    LedgerRow,
    Retention,
    RowPage,
    Tally,
    Totals,
    UsagePage,
    UsageRow,
    Wanted,
)
from policies.ledger_totals import Share, cursor_of, day_of, day_start, read_cursor, rolled_up, spans_of

PURGE_ROWS = 2000  # chosen: some 10 ms in one transaction, so that nobody waits for a purge

_FIELDS = LedgerRow.__struct_fields__
_COLUMNS = ", ".join(f'"{name}"' for name in _FIELDS)
_SUMS = Totals.__struct_fields__
_WHOSE = Share._fields
# NOTE: INSERT OR IGNORE would pass over a row that breaks any rule of the table, too.
_ADD_ROW = f"""
    INSERT INTO requests ({_COLUMNS}) VALUES ({", ".join("?" * len(_FIELDS))}) ON CONFLICT (request_id) DO NOTHING
"""  # noqa: S608
_ADD_TOTALS = f"""
    INSERT INTO totals (length_s, starts_at, {", ".join((*_WHOSE, *_SUMS))})
    VALUES ({", ".join("?" * (2 + len(_WHOSE) + len(_SUMS)))})
    ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in _SUMS)}
"""  # noqa: S608
_GROUPS = {group: group.value for group in Group} | {Group.DAY: f"starts_at - starts_at % {DAY_S}"}
_DROP_ROWS = """
    DELETE FROM requests WHERE position IN (
        SELECT position FROM requests WHERE started_at < ? ORDER BY started_at LIMIT ?
    )
"""
_DROP_TOTALS = """
    DELETE FROM totals WHERE (length_s, starts_at, organization, project, key, model, lane) IN (
        SELECT length_s, starts_at, organization, project, key, model, lane FROM totals
        WHERE length_s = ? AND starts_at < ? LIMIT ?
    )
"""
_TALLY = """
    SELECT organization, project, CAST(started_at AS INTEGER) - CAST(started_at AS INTEGER) % ?1 AS stretch,
        count(*), sum(outcome = 'refused'), sum(ifnull(prompt_tokens, 0)), sum(ifnull(cached_tokens, 0)),
        sum(ifnull(completion_tokens, 0)), sum(charged_tokens), sum(ifnull(cost_nanousd, 0))
    FROM requests
    WHERE started_at >= ?2 AND started_at < ?3 AND (attempts > 0 OR outcome IN ('client_gone', 'bug'))
    GROUP BY organization, project, stretch ORDER BY 1, 2, 3
"""
_HOURS = f"""
    SELECT organization, project, starts_at, {", ".join(f"sum({name})" for name in _SUMS)} FROM totals
    WHERE length_s = {HOUR_S} AND starts_at >= ? AND starts_at < ?
    GROUP BY organization, project, starts_at ORDER BY 1, 2, 3
"""  # noqa: S608


class LedgerTables:
    """The rows and totals of one open database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def add(self, rows: Sequence[LedgerRow]) -> int:
        """Insert what is new and count it."""
        with self._transaction():
            new = [row for row in rows if self._execute(_ADD_ROW, *_values(row)).rowcount]
            for (length_s, starts_at, share), totals in rolled_up(new).items():
                sums = (getattr(totals, name) for name in _SUMS)
                self._execute(_ADD_TOTALS, length_s, starts_at, *share, *sums)
        return len(new)

    def row(self, request_id: str) -> LedgerRow | None:
        """One row."""
        statement = f"SELECT {_COLUMNS} FROM requests WHERE request_id = ?"  # noqa: S608
        found = self._execute(statement, request_id).fetchone()
        return None if found is None else _row(found)

    def rows(self, wanted: Wanted, limit: int, after: str | None) -> RowPage:
        """A page in order of time."""
        limit = max(1, min(limit, MAX_PAGE))
        where, values = _where(wanted)
        if after is not None:
            where += " AND (started_at, request_id) > (?, ?)"
            values += read_cursor(after)
        statement = f"""
            SELECT {_COLUMNS} FROM requests WHERE started_at >= ? AND started_at < ?{where}
            ORDER BY started_at, request_id LIMIT ?
        """  # noqa: S608
        found = self._execute(statement, wanted.starts_at, wanted.ends_at, *values, limit + 1).fetchall()
        rows = tuple(map(_row, found[:limit]))
        return RowPage(rows, cursor_of(rows[-1]) if len(found) > limit else None)

    def usage(self, wanted: Wanted, group_by: Group, limit: int, after: str | None) -> UsagePage:
        """A page of sums."""
        spans = spans_of(wanted.starts_at, wanted.ends_at)
        if not spans:
            return UsagePage((), None)
        limit = max(1, min(limit, MAX_PAGE))
        where, values = _where(wanted)
        periods = " OR ".join(["(length_s = ? AND starts_at >= ? AND starts_at < ?)"] * len(spans))
        if after is not None:
            where += f" AND {_GROUPS[group_by]} > ?"
            values.append(day_start(after) if group_by is Group.DAY else after)
        statement = f"""
            SELECT {_GROUPS[group_by]} AS part, {", ".join(f"sum({name})" for name in _SUMS)} FROM totals
            WHERE ({periods}){where} GROUP BY part ORDER BY part LIMIT ?
        """  # noqa: S608
        bounds = [bound for span in spans for bound in span]
        found = self._execute(statement, *bounds, *values, limit + 1).fetchall()
        rows = tuple(
            UsageRow(day_of(part) if group_by is Group.DAY else part, Totals(*sums)) for part, *sums in found[:limit]
        )
        return UsagePage(rows, rows[-1].group if len(found) > limit else None)

    def tally(self, starts_at: float, ends_at: float, every_s: int) -> list[Tally]:
        """Sums of the rows themselves."""
        return [_tally(row) for row in self._execute(_TALLY, every_s, starts_at, ends_at).fetchall()]

    def hours(self, starts_at: int, ends_at: int) -> list[Tally]:
        """Sums by hour."""
        return [_tally(row) for row in self._execute(_HOURS, starts_at, ends_at).fetchall()]

    def purge(self, now: float, keep: Retention) -> int:
        """Delete one batch: of rows, or when there are none too old, of totals."""
        with self._transaction():
            dropped = self._execute(_DROP_ROWS, now - keep.rows_days * DAY_S, PURGE_ROWS).rowcount
            for length_s, days in ((HOUR_S, keep.hours_days), (DAY_S, keep.rollups_days)):
                if dropped:
                    break
                dropped = self._execute(_DROP_TOTALS, length_s, int(now) - days * DAY_S - length_s, PURGE_ROWS).rowcount
        return dropped

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


def _where(wanted: Wanted) -> tuple[str, list[Any]]:
    filters = wanted.filters()
    return "".join(f" AND {name} = ?" for name in filters), list(filters.values())


def _tally(row: tuple[Any, ...]) -> Tally:
    organization, project, starts_at, *sums = row
    return Tally(organization, project, starts_at, Totals(*sums))


def _values(row: LedgerRow) -> Iterable[Any]:
    return (getattr(row, name) for name in _FIELDS)


def _row(columns: tuple[Any, ...]) -> LedgerRow:
    values = dict(zip(_FIELDS, columns, strict=True))
    values["is_estimated"], values["recovered"] = bool(values["is_estimated"]), bool(values["recovered"])
    return LedgerRow(**values)
