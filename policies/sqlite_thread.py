"""One thread that does all the work of one SQLite file, in order.

So there is one writer in a process, the event loop never waits for a disk, and a caller that is cancelled leaves its
transaction whole.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from policies.store import StoreError

R = TypeVar("R")


class SqliteThread:
    """`noun`: what people call the file at `path`."""

    def __init__(self, noun: str, path: Path) -> None:
        self._noun = noun
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=noun)
        self._is_closed = False

    async def open(self, work: Callable[[Path], R]) -> R:
        """The first work, on the path; the thread ends if it fails, whatever that raised."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._path)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def run(self, work: Callable[[], R]) -> R:
        """What `work` gives. Raises `StoreError` where the file fails or is closed."""
        if self._is_closed:
            raise StoreError(f"the {self._noun} {self._path} is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OverflowError) as error:  # the latter: a number of more than 64 bits
            raise StoreError(f"the {self._noun} {self._path} failed: {error}") from error

    async def close(self, work: Callable[[], None]) -> None:
        """Finish what was begun, do the last work and end. Harmless the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._thread.shutdown(wait=False)

    @property
    def state(self) -> str:
        """For people: the file's name, and whether it is open."""
        return f"{self._path.name} {'closed' if self._is_closed else 'open'}"

    def __repr__(self) -> str:
        return f"<SqliteThread {self._noun} {self.state}>"
