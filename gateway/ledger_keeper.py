"""The supervisor's part of the ledger: takes in what the gateways write down, replays what dead ones left, purges.

One pass looks at every file of the folder. A file whose gateway lives is read on from where the last pass stopped. One
whose owner is gone is read to its end, what was not settled in it is charged what it had reserved, and it is removed;
only then, so that a pass that is killed in the middle is simply repeated.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.ledger_piece import NEW_SUFFIX, SUFFIX
from gateway.ledger_replay import LedgerReader
from gateway.settings import LedgerSection
from observability.metrics import GaugeRows
from policies.ledger import Ledger, Retention
from policies.store import StoreError

POLL_S = 0.25  # chosen: so late a request may appear in usage
PURGE_EVERY_S = 60.0
ABANDONED_S = 60.0  # a file that was not made ready in so long belongs to a process that died then

log = structlog.get_logger()


def retention_of(section: LedgerSection) -> Retention:
    """How long the settings keep things."""
    return Retention(section.rows_days, section.rollups_days)


class LedgerKeeper:
    """Takes the files of one folder into a ledger. `unix`: Unix seconds."""

    def __init__(self, folder: Path, ledger: Ledger, keep: Retention, unix: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._ledger = ledger
        self._keep = keep
        self._unix = unix
        self._readers: dict[Path, LedgerReader] = {}
        self._is_failing = False
        self._num_restored = 0
        self.num_recovered = 0
        self.num_unreadable = 0

    @property
    def num_waiting(self) -> int:
        """Records that gateways wrote down and the ledger does not have yet, as of the last pass."""
        return sum(reader.num_waiting for reader in self._readers.values())

    @property
    def num_files(self) -> int:
        """Files in the folder, as of the last pass."""
        return len(self._readers)

    @property
    def num_restored(self) -> int:
        """How often the ledger's own file was taken away and made again."""
        return self._ledger.num_restored

    def statistics(self) -> dict[str, Any]:
        """For `/admin/v1/statistics`, as of the last pass."""
        counts = {
            "waiting": self.num_waiting,
            "files": self.num_files,
            "recovered": self.num_recovered,
            "unreadable": self.num_unreadable,
            "restored": self.num_restored,
        }
        return {"ledger": counts}

    def metrics(self) -> GaugeRows:
        """For `/metrics`, as of the last pass."""
        yield "warmlane_ledger_waiting", {}, self.num_waiting
        yield "warmlane_ledger_files", {}, self.num_files
        yield "warmlane_ledger_recovered_total", {}, self.num_recovered
        yield "warmlane_ledger_unreadable_total", {}, self.num_unreadable
        yield "warmlane_ledger_restored_total", {}, self.num_restored

    async def run(self) -> None:
        """Keep the ledger for ever, until cancelled. An outage of the ledger is logged once; the files wait for it."""
        purge_at = 0.0
        while True:
            try:
                await self.replay()
                if time.monotonic() >= purge_at:
                    purge_at = time.monotonic() + PURGE_EVERY_S
                    await self.purge()
            except (StoreError, OSError) as error:
                if not self._is_failing:
                    log.warning("ledger.failed", error=str(error))
                self._is_failing = True
            else:
                if self._is_failing:
                    log.info("ledger.recovered")
                self._is_failing = False
            await asyncio.sleep(POLL_S)

    async def replay(self, *, only_dead: bool = False) -> None:
        """One pass. `only_dead`: leave the files of living gateways alone. Raises `StoreError`, `OSError`."""
        paths = await asyncio.to_thread(self._paths)
        self._readers = {path: self._readers.get(path) or LedgerReader(path) for path in paths}
        readers = list(self._readers.values())
        if not only_dead:  # first: how much waits is asked where the ledger takes nothing
            await asyncio.to_thread(_count, readers)
        for reader in readers:
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                await self._take(reader, only_dead=only_dead)
        self._tell_restored()

    async def purge(self) -> None:
        """Drop what is older than it is kept, batch after batch. Raises `StoreError`."""
        dropped = 1
        while dropped:
            dropped = await self._ledger.purge(self._unix(), self._keep)
        self._tell_restored()

    def _tell_restored(self) -> None:
        if self._ledger.num_restored > self._num_restored:
            self._num_restored = self._ledger.num_restored
            log.error("ledger.store_removed", ledger=repr(self._ledger), made_again=True)

    async def _take(self, reader: LedgerReader, *, only_dead: bool) -> None:
        is_owned = reader.is_owned()  # asked first: what a dead process wrote is all there when it is read
        if is_owned and only_dead:
            return
        while (batch := await asyncio.to_thread(reader.read)) is not None:
            await self._ledger.add(batch.rows)
            reader.advance(batch)
            if batch.num_unreadable:
                self.num_unreadable += batch.num_unreadable
                log.error("ledger.unreadable_lines", file=reader.path.name, lines=batch.num_unreadable)
        if is_owned:
            return
        recovered = reader.recovered(self._unix())
        num_new = await self._ledger.add(recovered)
        reader.path.unlink(missing_ok=True)
        self._readers.pop(reader.path, None)
        if num_new:
            self.num_recovered += num_new
            log.warning("ledger.recovered_requests", file=reader.path.name, requests=num_new)

    def _paths(self) -> list[Path]:
        """The files, in the order they were begun, by each process."""
        now = time.time()
        for path in self._folder.glob(f"*{NEW_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()
        return sorted(self._folder.glob(f"*{SUFFIX}"))

    def __repr__(self) -> str:
        return f"<LedgerKeeper {self._folder.name} files={len(self._readers)} recovered={self.num_recovered}>"


def _count(readers: Sequence[LedgerReader]) -> None:
    for reader in readers:
        with contextlib.suppress(FileNotFoundError):
            reader.count()


@contextlib.asynccontextmanager
async def keeping(
    ledger: Ledger, folder: Path, keep: Retention
) -> AsyncIterator[tuple[LedgerKeeper, "asyncio.Task[None]"]]:
    """The ledger is kept inside the block: what earlier runs left is taken in first, what the block left at its end."""
    keeper = LedgerKeeper(folder, ledger, keep)
    await keeper.replay()
    task = asyncio.create_task(keeper.run(), name="ledger")
    try:
        yield keeper, task
    finally:
        task.cancel()
        await asyncio.wait([task])
        try:
            await keeper.replay()
        except (StoreError, OSError) as error:  # the files wait for the next start
            log.warning("ledger.failed", error=str(error))
