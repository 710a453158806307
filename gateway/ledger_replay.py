"""From the lines of one gateway's file to rows of the ledger: what was settled, and after a death what was not.

Reading is repeatable: a batch that could not be kept is read again, and a file that was read half by a process that
was killed is read from its beginning; the ledger knows each request by its id.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from gateway.ledger_lines import Intent, Unreadable, parse, recovered_row, row_of
from policies.ledger import LedgerRow

READ_BYTES = 256 * 1024  # chosen: some 400 requests, a millisecond or two of work


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of a file: what was settled in it, what was begun, where it ended.

    `num_unreadable`: whole lines that nobody could read; where one was the end of a request, its row is in `rows`,
    charged what had been reserved, if its beginning is known.
    """

    rows: tuple[LedgerRow, ...]
    begun: tuple[Intent, ...]
    is_continued: bool
    ends_at: int
    num_unreadable: int = 0


class LedgerReader:
    """Reads one file from its beginning. `read` does not change it, `advance` does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_waiting = 0  # records that are written and not in the ledger, as of the last `count`
        self._offset = 0
        self._counted_to = 0
        self._open: dict[str, Intent] = {}
        self._is_continued = False

    def is_owned(self) -> bool:
        """Whether the process that writes it lives and still writes here. Raises `FileNotFoundError`."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def count(self) -> None:
        """Count the records that came since the last time, whether or not the ledger can take them now."""
        with self.path.open("rb") as file:
            file.seek(self._counted_to)
            while data := file.read(READ_BYTES):
                if b"\n" not in data:
                    data += file.readline()  # a line longer than that
                end = data.rfind(b"\n") + 1
                if not end:
                    return
                self.num_waiting += data.count(b"\n{", 0, end) + data.startswith(b"{")
                self._counted_to += end
                file.seek(self._counted_to)

    def read(self, max_bytes: int = READ_BYTES) -> Batch | None:
        """What has come since the last `advance`, about so much of it; None if there is no whole line more."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(max_bytes)
            if data and b"\n" not in data:
                data += file.readline()  # a line longer than that
        end = data.rfind(b"\n") + 1
        if not end:
            return None
        rows: list[LedgerRow] = []
        begun: dict[str, Intent] = {}
        is_continued = False
        num_unreadable = 0
        for line in parse(data[:end]):
            if isinstance(line, Intent):
                begun[line.request_id] = line
            elif isinstance(line, Unreadable):
                num_unreadable += 1
                intent = begun.pop(line.request_id, None) or self._open.get(line.request_id)
                if intent is not None:
                    rows.append(recovered_row(intent, intent.started_at))
            elif line is None:
                is_continued = True
            else:
                begun.pop(line.request_id, None)
                if line.project:
                    rows.append(row_of(line))
        return Batch(tuple(rows), tuple(begun.values()), is_continued, self._offset + end, num_unreadable)

    def advance(self, batch: Batch) -> None:
        """The batch is in the ledger."""
        if batch.ends_at < self._counted_to:
            self.num_waiting = max(0, self.num_waiting - len(batch.rows))
        else:
            self.num_waiting, self._counted_to = 0, batch.ends_at
        self._offset = batch.ends_at
        self._is_continued |= batch.is_continued
        for intent in batch.begun:
            self._open[intent.request_id] = intent
        for row in batch.rows:
            self._open.pop(row.request_id, None)

    def recovered(self, now: float) -> list[LedgerRow]:
        """The rows of what a dead process left unsettled; those of a file that goes on elsewhere are there."""
        return [] if self._is_continued else [recovered_row(intent, now) for intent in self._open.values()]

    def __repr__(self) -> str:
        return f"<LedgerReader {self.path.name} at={self._offset} open={len(self._open)}>"
