"""The file behind an open SQLite store, watched: a connection goes on with a file that has no name any more.

What is written then is lost with the process, so the store says that it is lost instead. A file that is put back is
taken up again; one with another beside the old log is not, for SQLite would read that log into it.
"""

import os
from pathlib import Path

from policies.store import StoreLost

_Identity = tuple[int, int]


class WatchedFile:
    """`path` as it was when its database was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path.with_name(f"{path.name}-wal")
        self._opened: _Identity | None = None
        self._opened_log: _Identity | None = None
        self.reopened()

    def reopened(self) -> None:
        """The file that has this name now is the one that is open."""
        self._opened, self._opened_log = _identity(self._path), _identity(self._log)

    def is_other(self) -> bool:
        """Whether another file has the name now, which may be opened in its place.

        Raises `StoreLost` where there is none, or none that can be used and written.
        """
        now = _identity(self._path)
        if now is None:
            raise StoreLost(f"store lost: {self._path} was deleted, restore it or restart")
        if now != self._opened and self._opened_log is not None and _identity(self._log) == self._opened_log:
            raise StoreLost(f"store lost: {self._path} was replaced beside its old log {self._log.name}, restart")
        for place in (self._path, self._path.parent):
            if not os.access(place, os.W_OK):
                raise StoreLost(f"store lost: {place} cannot be written, make it writable")
        return now != self._opened


def _identity(path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
