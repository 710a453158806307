"""A copy of a home's SQLite files while it runs: each whole, as of one moment, and checked before it has its name."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn

from gateway.home import store_path
from gateway.ledger import ledger_path
from gateway.settings import ConfigError, Settings
from policies.sqlite_opening import BUSY_TIMEOUT_MS
from policies.store import StoreError

PAGES_PER_STEP = 1024  # chosen: 4 MiB at a time, so that writers get in between

Progress = Callable[[str, int, int], None]  # name of the file, pages done, pages in all


@dataclass(frozen=True, slots=True)
class Copy:
    """One file that was copied."""

    source: Path
    target: Path
    num_bytes: int


def backup(settings: Settings, home: Path, folder: Path, on_progress: Progress = lambda *_: None) -> list[Copy]:
    """Copy the store and the ledger into a folder, which is made if need be; copies of the same names are replaced.

    Raises `ConfigError` for a store that is not ours to copy, `StoreError` for a file that cannot be copied.
    """
    if settings.store.is_shared:
        raise ConfigError("the store is in Redis: copy it with Redis's own tools (BGSAVE, or its append-only file)")
    store = store_path(settings.store.url, home)
    if not store.exists():
        raise StoreError(f"there is no store at {store}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise StoreError(f"{folder} is a file; give a folder for the copies") from error
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be made: {error.strerror}") from error
    sources = [path for path in (store, ledger_path(store)) if path.exists()]
    return [_copied(source, folder / source.name, on_progress) for source in sources]


@contextlib.contextmanager
def copying() -> Iterator[Progress]:
    """A progress bar on stderr, where somebody looks."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with rich.progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[str, rich.progress.TaskID] = {}

        def on_progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(f"copying {name}", total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield on_progress


def _copied(source: Path, target: Path, on_progress: Progress) -> Copy:
    if target.exists() and target.samefile(source):
        raise StoreError(f"{source} cannot be copied onto itself; give another folder")
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _copy(source, partial, lambda done, total: on_progress(source.name, done, total))
        partial.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{source} cannot be copied to {target}: {error}") from error
    finally:
        for left in (partial, partial.with_name(f"{partial.name}-wal"), partial.with_name(f"{partial.name}-shm")):
            left.unlink(missing_ok=True)
    return Copy(source, target, target.stat().st_size)


def _copy(source: Path, target: Path, on_pages: Callable[[int, int], None]) -> None:
    """Raises `sqlite3.Error`, also for a copy that is damaged."""
    origin, copy = _opened(source, "ro"), _opened(target, "rw")
    try:
        origin.backup(
            copy, pages=PAGES_PER_STEP, progress=lambda _, left, total: on_pages(total - left, total), sleep=0.01
        )
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, with nothing beside it
        found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
    finally:
        copy.close()
        origin.close()
    if found != "ok":
        raise sqlite3.DatabaseError(f"the copy is damaged: {found}")


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    return connection
