"""The ledger as a gateway process sees it: where requests are written down, and where what is kept of them is read.

Writing is on the request path and never waits: one line before a request is sent, one at its end. Reading is not.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gateway.home import store_path
from gateway.ledger_file import LedgerFile
from gateway.ledger_keeper import LedgerKeeper, retention_of
from gateway.ledger_lines import Intent
from gateway.settings import Settings
from observability.records import RequestRecord
from policies.ledger import Ledger
from policies.sqlite_ledger import SqliteLedger
from policies.store import StoreError

FOLDER = "ledger"  # in the home folder


class Journal(Protocol):
    """Takes every request down. `LedgerFile` writes it to a file."""

    @property
    def num_open(self) -> int:
        """Requests that were noted and have not ended."""
        ...

    @property
    def fault(self) -> str | None:
        """Why requests cannot be written down now and are refused; None when they can."""
        ...

    @property
    def num_dropped(self) -> int:
        """Refusals and the like that were not written down, for want of room."""
        ...

    @property
    def num_restored(self) -> int:
        """Files that somebody took away and that were made again."""
        ...

    def check(self) -> bool:
        """Look whether what is written is kept, and see to it; False where it cannot be."""
        ...

    def intend(self, intent: Intent) -> None:
        """A request is about to be sent to an engine, for the first time. Raises `Refused` if it cannot be noted."""
        ...

    def settle(self, record: RequestRecord) -> None:
        """A request has ended, whether or not it was ever sent."""
        ...


class NoJournal:
    """Writes nothing down: a gateway without a home."""

    num_open = 0
    num_dropped = 0
    num_restored = 0
    fault = None

    def check(self) -> bool:
        """There is nothing to keep."""
        return True

    def intend(self, intent: Intent) -> None:
        """Nothing."""

    def settle(self, record: RequestRecord) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Books:
    """Both sides: the journal that the gateway writes, the ledger that the supervisor fills from it."""

    journal: Journal
    ledger: Ledger


def ledger_path(store: Path) -> Path:
    """The SQLite ledger's file, beside the store's."""
    return store.with_name(f"{store.stem}.ledger{store.suffix}")


@contextlib.asynccontextmanager
async def opened_ledger(settings: Settings, home: Path) -> AsyncIterator[Ledger]:
    """The ledger, made at the first start, closed at the end. Raises `ConfigError`, `StoreError`."""
    ledger: Ledger
    if settings.store.is_shared:
        from policies.redis_ledger import RedisLedger

        ledger = await RedisLedger.open(settings.store.url, retention_of(settings.ledger))
    else:
        ledger = await SqliteLedger.open(ledger_path(store_path(settings.store.url, home)))
    try:
        yield ledger
    finally:
        await ledger.close()


@contextlib.asynccontextmanager
async def opened_books(settings: Settings, home: Path, name: str) -> AsyncIterator[Books]:
    """The books of one gateway process; what dead ones left in this home is in the ledger by then.

    `name`: of the process, for people. Raises `ConfigError`, `StoreError`.
    """
    async with opened_ledger(settings, home) as ledger:
        folder = home / FOLDER
        # The supervisor does the same, but maybe later than limits are read from the ledger.
        try:
            await LedgerKeeper(folder, ledger, retention_of(settings.ledger)).replay(only_dead=True)
            journal = LedgerFile(folder, name)
        except OSError as error:
            raise StoreError(f"requests cannot be written down in {folder}: {error.strerror}") from error
        with contextlib.closing(journal):
            yield Books(journal, ledger)
