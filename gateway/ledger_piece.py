"""One file of a gateway's ledger: locked from before it has its name, appended to by one write a line.

It is open for reading, too: what was written to a file that somebody took away is still there while it is open.
"""

import errno
import fcntl
import os
from pathlib import Path

import structlog

SUFFIX = ".ledger"
NEW_SUFFIX = ".ledger-new"  # not yet locked, so nobody may read it
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

log = structlog.get_logger()


class LedgerPiece:
    """A file, made with this and open until `close`. `size`: bytes of it that were written whole."""

    def __init__(self, path: Path, content: bytes = b"") -> None:
        """Make it, with its folder if need be, with this in it. Raises `OSError`; then there is nothing of it."""
        self.path = path
        self.size = len(content)
        self._is_failing = False  # told once: what fills a disk should not be the log
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(NEW_SUFFIX)
        self._descriptor = os.open(new, _FLAGS, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_whole(self._descriptor, content)
            new.rename(path)
        except BaseException:
            self.close()
            new.unlink(missing_ok=True)
            raise
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)

    @property
    def is_closed(self) -> bool:
        """Whether it was let go."""
        return self._descriptor < 0

    def append(self, line: bytes) -> bool:
        """Whether the line was written whole; else it is as if nothing had been."""
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            if not self._is_failing:
                log.warning("ledger.write_failed", error=error.strerror)
            self._is_failing = True
            written = 0
        if written == len(line):
            self.size += written
            self._is_failing = False
            return True
        if written:
            os.ftruncate(self._descriptor, self.size)  # a reader takes whole lines alone, so it has not seen it
        return False

    def is_there(self) -> bool:
        """Whether its name still leads to it: else what is written here is lost with the process."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def content(self) -> bytes:
        """All that was written, whatever became of its name. Raises `OSError`."""
        content = bytearray()
        while piece := os.pread(self._descriptor, self.size - len(content), len(content)):
            content += piece
        return bytes(content)

    def close(self) -> None:
        """Let go of it. Harmless the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __repr__(self) -> str:
        return f"<LedgerPiece {self.path.name} bytes={self.size}>"


def _write_whole(descriptor: int, content: bytes) -> None:
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
