"""One Warmlane at a time serves from a SQLite file: two, each in a home of its own, would each grant every limit whole.

The lock is a file beside the database that the kernel holds for the process: it vanishes with it, also after kill -9.
Whoever only reads (a backup, an export, the doctor) asks for none. The file that a link names is meant, not the link.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from policies.store import StoreError


def lock_path(store: Path) -> Path:
    """The lock's file, whatever links lead to the database."""
    real = store.resolve()
    return real.with_name(f"{real.name}.lock")


@contextlib.contextmanager
def sqlite_held(store: Path) -> Iterator[None]:
    """Hold the SQLite file at `store`, made or not yet, for this process. Raises `StoreError` if another has it."""
    path = lock_path(store)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"the store {store} cannot be held: {path} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                f"another Warmlane (process {holder}) serves from the store {store}, and limits would hold twice; stop "
                "it, give this one its own with store.url, or let both share a Redis"
            ) from error
        except OSError as error:
            raise StoreError(f"the store {store} cannot be held: {error.strerror}; move it to a local disk") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
