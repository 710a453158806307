"""Where a gateway process writes down its requests: files of its own, appended to by one write a line.

A write is in the kernel's hands when it returns, so a killed process loses none; nothing is synced to the disk, and
nobody waits for a store. The process holds a lock on its file for as long as it lives: who can take the lock knows
that it is dead. The supervisor takes the lines into the ledger and removes the files (`ledger_keeper.py`). Nobody else
may: a file that was taken away is made again, with all that was in it.
"""

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import structlog

from gateway.errors import Refused
from gateway.ledger_lines import CONTINUED, Intent, encode
from gateway.ledger_piece import SUFFIX, LedgerPiece
from gateway.outcome import Outcome
from observability.records import RequestRecord

MAX_FILE_BYTES = 8 * 1024 * 1024  # chosen: some 10,000 requests
MAX_FILES = 128  # chosen: a gigabyte, some 1.3 million requests that no ledger took; beyond it nothing more is sent
LOOK_AGAIN_S = 0.25  # chosen: how often it is looked whether a full folder has room, and whether the file is there

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
        self._folder = folder
        self._owner = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._clock = clock
        self._open: dict[str, bytes] = {}  # the intents that are not settled, as lines
        self._unwritten: list[bytes] = []  # records that found no room: no more than were in flight
        self._number = 0
        self._look_again_at = 0.0
        self._check_at = clock() + LOOK_AGAIN_S
        self._is_lost = False  # the file has no name any more, and none could be made in its place
        self._is_half_full = False
        self.num_dropped = 0
        self.num_restored = 0  # files that were taken away and made again
        self.fault: str | None = None  # why nothing can be written down now
        self._piece = self._begin(b"")

    def intend(self, intent: Intent) -> None:
        """Write down that a request is about to be sent. Raises `Refused` (503) when that finds no room.

        Nothing may be sent that is not written down: it could not be charged.
        """
        line = encode(intent) + b"\n"
        is_noted = (
            self._is_kept()
            and (not self._unwritten or self._write_rest())
            and (self._piece.size + len(line) <= self._max_file_bytes or self._rotate())
            and self._piece.append(line)
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
        self._is_kept()  # if not, it waits in the open file for another that has a name
        line = encode(record) + b"\n"
        if self._piece.size + len(line) > self._max_file_bytes:
            self._rotate()  # without room it goes beyond: there are no more of these than requests in flight
        if not self._piece.append(line):
            if is_intended:
                self._unwritten.append(line)
            else:
                self.num_dropped += 1

    def check(self) -> bool:
        """Whether what is written is kept. A file that was taken away is made again here, with all that was in it."""
        if self._piece.is_closed or self._piece.is_there():
            self._is_lost = False
        else:
            self._is_lost = not self._restore()
        self._check_at = self._clock() + LOOK_AGAIN_S
        return not self._is_lost

    @property
    def num_open(self) -> int:
        """Intents that are not settled."""
        return len(self._open)

    def close(self) -> None:
        """Let go of the file. Harmless the second time."""
        if not self._piece.is_closed:
            self.check()
            self._write_rest()
            self._piece.close()

    def __repr__(self) -> str:
        return f"<LedgerFile {self._owner} open={self.num_open} bytes={self._piece.size}>"

    def _is_kept(self) -> bool:
        """As `check`, as of a moment ago."""
        return self.check() if self._clock() >= self._check_at else not self._is_lost

    def _is_tight(self) -> bool:
        """Whether half of the room is used, as of a moment ago."""
        if self._is_half_full and (now := self._clock()) >= self._look_again_at:
            self._is_half_full = self._num_files() * 2 > self._max_files
            self._look_again_at = now + LOOK_AGAIN_S
        return self._is_half_full

    def _refuse(self) -> NoReturn:
        if self.fault is None:
            why = "the file was taken away and none can be made" if self._is_lost else "its disk or its files are full"
            self.fault = f"requests cannot be written down in {self._folder} (at most {self._max_files} files): {why}"
            log.warning("ledger.refuses", reason=self.fault)
        raise _full()

    def _write_rest(self) -> bool:
        while self._unwritten:
            if not self._piece.append(self._unwritten[0]):
                return False
            del self._unwritten[0]
        return True

    def _rotate(self) -> bool:
        """Go on in a new file, with the open intents carried over; False when there are as many as there may be."""
        now = self._clock()
        if now < self._look_again_at or not self.check():
            return False
        num_files = self._num_files()
        self._is_half_full = (num_files + 1) * 2 > self._max_files
        if num_files >= self._max_files:
            self._look_again_at = now + LOOK_AGAIN_S
            log.warning("ledger.full", files=self._max_files)
            return False
        try:
            following = self._begin(b"".join(self._open.values()))
        except OSError as error:
            self._look_again_at = now + LOOK_AGAIN_S
            log.warning("ledger.rotation_failed", error=error.strerror)
            return False
        # In this order: at a death in between both files hold the open intents, and each is charged once all the same.
        if not self._piece.append(CONTINUED):
            following.path.unlink(missing_ok=True)
            following.close()
            return False
        self._go_on_in(following)
        return True

    def _restore(self) -> bool:
        """Go on in a new file, with all that is in the one that was taken away: its reader may not have seen it."""
        gone = self._piece
        try:
            self._go_on_in(self._begin(gone.content()))
        except OSError as error:
            if not self._is_lost:
                log.warning("ledger.file_removed", file=str(gone.path), error=error.strerror)
            return False
        self.num_restored += 1
        log.error("ledger.file_removed", file=str(gone.path), made_again=self._piece.path.name, bytes=gone.size)
        return True

    def _go_on_in(self, piece: LedgerPiece) -> None:
        self._piece.close()
        self._piece = piece

    def _begin(self, content: bytes) -> LedgerPiece:
        self._number += 1
        return LedgerPiece(self._folder / f"{self._owner}-{self._number:06}{SUFFIX}", content)

    def _num_files(self) -> int:
        return sum(1 for _ in self._folder.glob(f"*{SUFFIX}"))


def _full() -> Refused:
    message = "the ledger has no room to write this request down, so it is not sent"
    return Refused(message, code="ledger_full", status=503, retry_after_s=1.0, outcome=Outcome.SHED)
