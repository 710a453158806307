"""The audit log as a table of the SQLite store: added to, trimmed and read in the store's thread. Holds no rule."""

import sqlite3
from typing import Any

from policies.audit import ActorKind, AuditEntry, AuditKeep, AuditWanted, Author, Change
from policies.store import MAX_PAGE, Page

_COLUMNS = "at, actor_kind, actor, request_id, action, subject_id, organization_id, project_id, before, after"
_INSERT = f"INSERT INTO audit ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_TRIM = "DELETE FROM audit WHERE position <= (SELECT max(position) FROM audit) - ? OR at < ?"
_EQUAL = {
    "action": "action = ?",
    "subject_id": "subject_id = ?",
    "organization_id": "organization_id = ?",
    "project_id": "project_id = ?",
    "request_id": "request_id = ?",
    "actor": "CASE actor WHEN '' THEN actor_kind ELSE actor END = ?",
    "starts_at": "at >= ?",
    "ends_at": "at < ?",
}


class AuditTable:
    """The entries in one open database. `keep`: what is older, or one too many, goes when the next one is added."""

    def __init__(self, connection: sqlite3.Connection, keep: AuditKeep) -> None:
        self._connection = connection
        self._keep = keep

    def add(self, change: Change, by: Author, now: float) -> None:
        """One more entry, within the transaction of its change."""
        texts = [None if one is None else one.decode() for one in (change.before, change.after)]
        whose = (change.action, change.subject_id, change.organization_id, change.project_id)
        self._connection.execute(_INSERT, (now, by.kind.value, by.subject, by.request_id, *whose, *texts))
        self._connection.execute(_TRIM, (self._keep.entries, self._keep.oldest(now)))

    def page(self, wanted: AuditWanted, limit: int, after: str | None) -> Page[AuditEntry]:
        """Entries older than `after`, the newest first. Raises `ValueError` for an `after` that is no position."""
        limit = max(1, min(limit, MAX_PAGE))
        conditions, values = ["1"], list[Any]()
        if after is not None:
            conditions.append("position < ?")
            values.append(_position(after))
        for name, condition in _EQUAL.items():
            if (value := getattr(wanted, name)) is not None:
                conditions.append(condition)
                values.append(value)
        where = f"WHERE {' AND '.join(conditions)} ORDER BY position DESC LIMIT ?"
        statement = f"SELECT position, {_COLUMNS} FROM audit {where}"  # noqa: S608
        found = [_entry(row) for row in self._connection.execute(statement, (*values, limit + 1))]
        return Page(tuple(found[:limit]), found[limit - 1].id if len(found) > limit else None)


def _position(after: str) -> int:
    if not (after.isascii() and after.isdigit() and len(after) <= 18):
        raise ValueError("not a position in the audit log")
    return int(after)


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    position, at, actor_kind, actor, request_id, action, subject_id, organization_id, project_id, *texts = row
    before, after = (None if one is None else one.encode() for one in texts)
    change = Change(action, subject_id, organization_id, project_id, before, after)
    return AuditEntry(str(position), at, Author(ActorKind(actor_kind), actor, request_id), change)
