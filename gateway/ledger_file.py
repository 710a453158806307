"""Where a gateway process writes down its requests: files of its own, appended to by one write a line.

A write is in the kernel's hands when it returns, so a killed process loses none; nothing is synced to the disk, and
nobody waits for a store. The process holds a lock on its file for as long as it lives: who can take the lock knows
that it is dead. The supervisor takes the lines into the ledger and removes the files (`ledger_keeper.py`).
"""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import structlog

from gateway.errors import Refused
from gateway.ledger_lines import CONTINUED, Intent, encode
from gateway.outcome import Outcome
from observability.records import RequestRecord

SUFFIX = ".ledger"
NEW_SUFFIX = ".ledger-new"  # not yet locked, so nobody may read it
MAX_FILE_BYTES = 8 * 1024 * 1024  # chosen: some 10,000 requests
MAX_FILES = 128  # chosen: a gigabyte, some 1.3 million requests that no ledger took; beyond it nothing more is sent
LOOK_AGAIN_S = 0.25  # chosen: how often a full folder is looked at again

log = structlog.get_logger()


class LedgerFile:
    """The files of one gateway process. Made with its folder; `close` lets go of them."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        max_files: int = MAX_FILES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin the first file. `name`: of the process, for people. `max_files`: of the folder. Raises `OSError`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._owner = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._clock = clock
        self._open: dict[str, bytes] = {}  # the intents that are not settled, as lines
        self._unwritten: list[bytes] = []  # records that found no room: no more than were in flight
        self._number = 0
        self._look_again_at = 0.0
        self._is_half_full = False
        self.num_dropped = 0
        self.fault: str | None = None  # why nothing can be written down now
        self._descriptor, self._size = self._begin()

    def intend(self, intent: Intent) -> None:
        """Write down that a request is about to be sent. Raises `Refused` (503) when that finds no room.

        Nothing may be sent that is not written down: it could not be charged.
        """
        line = encode(intent) + b"\n"
        is_noted = (
            (not self._unwritten or self._write_rest())
            and (self._size + len(line) <= self._max_file_bytes or self._rotate())
            and self._append(line)
        )
        if not is_noted:
            self._refuse()
        if self.fault is not None:
            self.fault = None
            log.info("ledger.has_room")
        self._open[intent.request_id] = line

    def settle(self, record: RequestRecord) -> None:
        """Write down how a request ended. Without a project there is nobody to account it to."""
        if not record.project:
            return
        is_intended = self._open.pop(record.request_id, None) is not None
        if not is_intended and self._is_tight():
            self.num_dropped += 1  # refusals must not use up the room of what is served
            return
        line = encode(record) + b"\n"
        if self._size + len(line) > self._max_file_bytes:
            self._rotate()  # without room it goes beyond: there are no more of these than requests in flight
        if not self._append(line):
            if is_intended:
                self._unwritten.append(line)
            else:
                self.num_dropped += 1

    def _is_tight(self) -> bool:
        """Whether half of the room is used, as of a moment ago."""
        if self._is_half_full and (now := self._clock()) >= self._look_again_at:
            self._is_half_full = self._num_files() * 2 > self._max_files
            self._look_again_at = now + LOOK_AGAIN_S
        return self._is_half_full

    @property
    def num_open(self) -> int:
        """Intents that are not settled."""
        return len(self._open)

    def close(self) -> None:
        """Let go of the file. Harmless the second time."""
        if self._descriptor >= 0:
            self._write_rest()
            os.close(self._descriptor)
            self._descriptor = -1

    def __repr__(self) -> str:
        return f"<LedgerFile {self._owner} open={self.num_open} bytes={self._size}>"

    def _refuse(self) -> NoReturn:
        if self.fault is None:
            self.fault = (
                f"requests cannot be written down in {self._folder}: its disk or its {self._max_files} files are full"
            )
            log.warning("ledger.refuses", reason=self.fault)
        raise _full()

    def _write_rest(self) -> bool:
        while self._unwritten:
            if not self._append(self._unwritten[0]):
                return False
            del self._unwritten[0]
        return True

    def _append(self, line: bytes) -> bool:
        """Whether the line was written whole; else it is as if nothing had been."""
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            log.warning("ledger.write_failed", error=error.strerror)
            written = 0
        if written == len(line):
            self._size += written
            return True
        if written:
            os.ftruncate(self._descriptor, self._size)  # a reader takes whole lines alone, so it has not seen it
        return False

    def _rotate(self) -> bool:
        """Go on in a new file, with the open intents carried over; False when there are as many as there may be."""
        now = self._clock()
        if now < self._look_again_at:
            return False
        num_files = self._num_files()
        self._is_half_full = (num_files + 1) * 2 > self._max_files
        if num_files >= self._max_files:
            self._look_again_at = now + LOOK_AGAIN_S
            log.warning("ledger.full", files=self._max_files)
            return False
        try:
            descriptor, size = self._begin()
        except OSError as error:
            self._look_again_at = now + LOOK_AGAIN_S
            log.warning("ledger.rotation_failed", error=error.strerror)
            return False
        # In this order: at a death in between both files hold the open intents, and each is charged once all the same.
        if not self._append(CONTINUED):
            self._path(self._number).unlink(missing_ok=True)
            os.close(descriptor)
            return False
        os.close(self._descriptor)
        self._descriptor, self._size = descriptor, size
        return True

    def _begin(self) -> tuple[int, int]:
        """(descriptor, bytes) of the next file: locked before anybody can take it for a dead process's."""
        self._number += 1
        path = self._path(self._number)
        new = path.with_suffix(NEW_SUFFIX)
        content = b"".join(self._open.values())
        descriptor = os.open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_whole(descriptor, content)
            new.rename(path)
        except BaseException:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise
        return descriptor, len(content)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._owner}-{number:06}{SUFFIX}"

    def _num_files(self) -> int:
        return sum(1 for _ in self._folder.glob(f"*{SUFFIX}"))


def _write_whole(descriptor: int, content: bytes) -> None:
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _full() -> Refused:
    message = "the ledger has no room to write this request down, so it is not sent"
    return Refused(message, code="ledger_full", status=503, retry_after_s=1.0, outcome=Outcome.SHED)
