"""Kept responses as a table of the SQLite store: added to, bounded and read in the store's thread. Holds no rule.

What each project holds is counted by triggers, so that no statement can forget it and no bound needs a scan.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from policies.kept_responses import KeptBound, KeptResponse

RESPONSES_SCHEMA = """
CREATE TABLE responses (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    expires_at REAL NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (project_id, id)
) STRICT;
CREATE INDEX responses_of_project ON responses (project_id, position);
CREATE INDEX responses_by_end ON responses (expires_at);
CREATE TABLE response_totals (
    project_id TEXT PRIMARY KEY REFERENCES projects (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID
"""
RESPONSES_TRIGGERS = (
    """
    CREATE TRIGGER responses_insert_is_counted AFTER INSERT ON responses BEGIN
        INSERT INTO response_totals VALUES (new.project_id, 1, length(new.content))
        ON CONFLICT (project_id) DO UPDATE SET number = number + 1, bytes = bytes + excluded.bytes;
    END
    """,
    """
    CREATE TRIGGER responses_delete_is_counted AFTER DELETE ON responses BEGIN
        UPDATE response_totals SET number = number - 1, bytes = bytes - length(old.content)
        WHERE project_id = old.project_id;
    END
    """,
)
_DROP = "DELETE FROM responses WHERE project_id = ? AND id = ?"
_EXPIRE = "DELETE FROM responses WHERE expires_at <= ?"
_INSERT = """
    INSERT INTO responses (project_id, id, expires_at, content) SELECT id, ?2, ?3, ?4 FROM projects WHERE id = ?1
"""
_TOTALS = "SELECT number, bytes FROM response_totals WHERE project_id = ?"
_DROP_OLDEST = """
    DELETE FROM responses WHERE position = (SELECT min(position) FROM responses WHERE project_id = ?)
"""
_CONTENT = "SELECT content FROM responses WHERE project_id = ? AND id = ? AND expires_at > ?"


class ResponseTable:
    """Of one open database. `clock`: Unix seconds. `transaction`: each change is one."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float],
        transaction: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._transaction = transaction

    def keep(self, responses: Sequence[KeptResponse], bound: KeptBound) -> None:
        """Add these; then each of their projects is brought within its bound."""
        with self._transaction():
            self._expire()
            for one in responses:
                self._connection.execute(_DROP, (one.project_id, one.id))
                self._connection.execute(_INSERT, (one.project_id, one.id, one.expires_at, one.content))
            for project_id in {one.project_id for one in responses}:
                while self._is_above(project_id, bound):
                    self._connection.execute(_DROP_OLDEST, (project_id,))

    def content(self, project_id: str, response_id: str) -> bytes | None:
        """What is kept, while its time lasts."""
        row = self._connection.execute(_CONTENT, (project_id, response_id, self._clock())).fetchone()
        return None if row is None else bytes(row[0])

    def drop(self, project_id: str, response_id: str) -> bool:
        """Whether there was one whose time lasted."""
        with self._transaction():
            self._expire()
            return self._connection.execute(_DROP, (project_id, response_id)).rowcount == 1

    def expire(self) -> None:
        """Those whose time is over are gone."""
        with self._transaction():
            self._expire()

    def _expire(self) -> None:
        self._connection.execute(_EXPIRE, (self._clock(),))

    def _is_above(self, project_id: str, bound: KeptBound) -> bool:
        row = self._connection.execute(_TOTALS, (project_id,)).fetchone()
        return row is not None and (row[0] > bound.number or row[1] > bound.total_bytes)
