"""The home folder: what Warmlane keeps on this machine, and who may hold it.

Secrets are files of mode 0600, made whole before they have their name. One supervisor holds a home at a time.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gateway.settings import ConfigError

# The kernel takes 108 bytes on Linux and 104 on macOS, the ending zero included; the longest file name we use is short.
_SOCKET_PATH_BYTES = 100
_SOCKET_NAME_BYTES = len("/gateway-00.sock")


class HomeError(Exception):
    """The home folder cannot be used; the message says which file and why."""


def home_path(home: Path | None, environment: Mapping[str, str]) -> Path:
    """The home folder, absolute: the given one, else `WARMLANE_HOME`, else `.warmlane` in the current folder."""
    return (home or Path(environment.get("WARMLANE_HOME") or ".warmlane")).expanduser().absolute()


def store_path(url: str, home: Path) -> Path:
    """The SQLite file of `[store] url` (`sqlite:///relative`, `sqlite:////absolute`, empty: in the home folder).

    Raises `ConfigError` for every other URL.
    """
    if not url:
        return home / "warmlane.sqlite3"
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise ConfigError(
            "store.url: write it as sqlite:///path/to/file, redis://host:port/db or rediss://host:port/db"
        )
    return Path(path)


class Home:
    """Names and secrets in one home folder. Building it touches nothing; `create` makes the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = path / "models"
        self.demo = path / "demo.json"
        self._token = path / "admin_token"
        self._lock = path / "supervisor.lock"

    def __repr__(self) -> str:
        return f"Home({str(self.path)!r})"

    def create(self) -> None:
        """Make the folder (mode 0700) if it is not there. Raises `HomeError` when it cannot be written."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise HomeError(f"the home folder {self.path} is a file; choose another with --home") from error
        except OSError as error:
            raise HomeError(f"the home folder {self.path} cannot be made: {error.strerror}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise HomeError(f"the home folder {self.path} cannot be written; choose another with --home")

    def check(self) -> None:
        """Raises `HomeError` where a start would find that it cannot use the folder. Leaves nothing behind."""
        if self.path.exists() and not self.path.is_dir():
            raise HomeError(f"the home folder {self.path} is a file; choose another with --home")
        try:
            try_to_write(self.path)
        except OSError as error:
            what = "written" if self.path.is_dir() else "made"
            why = f"cannot be {what}: {error.strerror}; choose another with --home"
            raise HomeError(f"the home folder {self.path} {why}") from error

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold this home for this process; the kernel lets go of it even after kill -9. Raises `HomeError` if taken."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HomeError(f"{self._lock} cannot be opened: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise HomeError(
                    f"another Warmlane (process {self.holder() or 'unknown'}) uses the home folder {self.path}; "
                    "stop it, or give this one its own with --home"
                ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> str | None:
        """The process id of the Warmlane that holds this home, None if none does. Asking takes nothing."""
        try:
            with self._lock.open(encoding="ascii", errors="replace") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return (_read(self._lock) or "").strip() or "unknown"
        except OSError:
            return None
        return None

    @contextlib.contextmanager
    def sockets(self) -> Iterator[Path]:
        """A private folder for Unix sockets: `run` in here, or a temporary one where that path would be too long.

        Raises `HomeError`. Only the holder of this home may ask.
        """
        folder = self.path / "run"
        try:
            if len(os.fsencode(folder)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_BYTES:
                folder = Path(tempfile.mkdtemp(prefix="warmlane-"))
            else:
                shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
                folder.mkdir(mode=0o700)
        except OSError as error:
            raise HomeError(f"no folder for sockets can be made at {folder}: {error.strerror}") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def admin_token(self, environment: Mapping[str, str]) -> str:
        """`WARMLANE_ADMIN_TOKEN` if set, else the kept one, made at first use. Raises `HomeError`.

        A kept one that others can read is made private again.
        """
        token = environment.get("WARMLANE_ADMIN_TOKEN", "")
        where = "WARMLANE_ADMIN_TOKEN"
        if not token:
            where = str(self._token)
            token = (_read(self._token) or "").strip()
            if token:
                _make_private(self._token)
        if not token:
            token = secrets.token_urlsafe(32)
            write_private(self._token, token + "\n")
        if not re.fullmatch(r"[\x21-\x7e]{16,512}", token):
            raise HomeError(f"{where} must have 16 to 512 visible ASCII characters and no spaces")
        return token

    def read_demo(self) -> dict[str, Any]:
        """What demo.json says, empty if it is absent or not ours: it is made anew then. Raises `HomeError`."""
        try:
            content = json.loads(self.demo.read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        except OSError as error:
            raise HomeError(f"{self.demo} cannot be read: {error.strerror}") from error
        return content if isinstance(content, dict) else {}


def try_to_write(folder: Path) -> None:
    """Make the folder if need be, and a file in it; both are gone afterwards. Raises `OSError`.

    Rights alone do not tell: some file systems let nobody make anything.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".warmlane-", buffering=0) as file:
            file.write(b"warmlane")
    finally:
        for one in missing:
            with contextlib.suppress(OSError):  # it was not made, or somebody uses it already
                one.rmdir()


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, whole or not at all. Raises `HomeError`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise HomeError(f"{path} cannot be written: {error.strerror}") from error


def _make_private(path: Path) -> None:
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as error:
        raise HomeError(f"{path} can be read by others, and that cannot be changed: {error.strerror}") from error


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HomeError(f"{path} cannot be read: {error}") from error
