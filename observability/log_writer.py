"""Log lines on their way to a file descriptor, so that nobody who logs ever waits for who reads.

A pipe that is not read, a stopped supervisor, a terminal under Ctrl-S: the lines wait in a bounded queue, a thread of
its own writes them, and what finds the queue full is dropped and counted.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING_BYTES = 4 << 20  # chosen: about 10,000 requests' lines
_BATCH_BYTES = 1 << 16  # what a Linux pipe takes at once
_LOOK_AGAIN_S = 0.5


class LogWriter:
    """Writes whole lines to `descriptor` in their order. Of any thread; no method but `flush` waits.

    `lost_line`: the line, with its end, that says how many were dropped; it stands where they would have stood.
    """

    def __init__(
        self, descriptor: int, lost_line: Callable[[int], bytes], max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._descriptor = descriptor
        self.lost_line = lost_line
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0  # those that are being written included
        self._unsaid = 0
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self.num_dropped = 0

    def __repr__(self) -> str:
        return f"LogWriter(waiting_bytes={self._waiting_bytes}, num_dropped={self.num_dropped})"

    def write(self, lines: bytes) -> None:
        """Take one or more whole lines; with too much waiting already they are dropped and counted."""
        with self._changed:
            if self._waiting_bytes and self._waiting_bytes + len(lines) > self._max_waiting_bytes:
                self._drop(lines.count(b"\n"))
                return
            self._say_loss()
            self._push(lines)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written, but no longer than `timeout_s`; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes and not self._unsaid, timeout_s)

    def _drop(self, lines: int) -> None:
        self._unsaid += lines
        self.num_dropped += lines

    def _say_loss(self) -> None:
        if self._unsaid:
            self._push(self.lost_line(self._unsaid))
            self._unsaid = 0

    def _push(self, lines: bytes) -> None:
        self._waiting.append(lines)
        self._waiting_bytes += len(lines)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                batch = self._batch()
            is_written = self._write_all(batch)
            with self._changed:
                self._waiting_bytes -= len(batch)
                if not is_written:
                    self.num_dropped += batch.count(b"\n")
                if not self._waiting:
                    self._say_loss()
                self._changed.notify_all()

    def _batch(self) -> bytes:
        chunks = [self._waiting.popleft()]
        size = len(chunks[0])
        while self._waiting and size + len(self._waiting[0]) <= _BATCH_BYTES:
            size += len(self._waiting[0])
            chunks.append(self._waiting.popleft())
        return b"".join(chunks)

    def _write_all(self, batch: bytes) -> bool:
        """Write it however long that takes; False when nobody can read it any more (a closed pipe, a gone terminal)."""
        rest = memoryview(batch)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program made the shared terminal non-blocking
                select.select([], [self._descriptor], [], _LOOK_AGAIN_S)
            except OSError:
                return False
        return True
