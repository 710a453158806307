"""The models in one folder: `NAME.gguf`, its manifest and its licence, each whole or not there.

Knows files, names and locks; how a model is brought is model_add.py's.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.launch.demo_model import DEMO_MODEL_NAME, DEMO_PACKAGE
from engines.launch.file_lock import locked, locked_if_free
from engines.launch.model_manifest import NAME_PATTERN, Manifest, ModelError, SourceKind, read_manifest, write_manifest
from engines.launch.model_probe import probe

_BESIDE = (".manifest.json", ".LICENSE.txt", ".LICENSE.html", ".stamp.json", ".gguf.part", ".gguf.part.json")
_SPARE_BYTES = 64 << 20  # chosen: a disk is not filled to its last byte


class BadName(ValueError):
    """A text that cannot be a model's name."""


def checked_name(name: str) -> str:
    """The name, without an ending `.gguf`. Raises `BadName`."""
    bare = name[: -len(".gguf")] if name.lower().endswith(".gguf") else name
    if not re.fullmatch(NAME_PATTERN, bare):
        raise BadName(f"{name!r} is no model name; take letters, digits, dots, dashes and underscores, 128 at most")
    return bare


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model of the folder. `problem`: what has become of its file since it was checked, empty if nothing.

    `part_bytes`: of an unfinished download, which has no manifest.
    """

    name: str
    file: Path
    manifest: Manifest | None
    problem: str = ""
    part_bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """Of the file as it is now."""
        if self.part_bytes is not None:
            return self.part_bytes
        try:
            return self.file.stat().st_size
        except OSError:
            return 0


class ModelStore:
    """The folder. Building it touches nothing; `exclusive` makes it."""

    def __init__(self, folder: Path, on_wait: Callable[[str], None] = lambda _: None) -> None:
        self.folder = folder
        self._on_wait = on_wait

    def __repr__(self) -> str:
        return f"ModelStore({str(self.folder)!r})"

    def file(self, name: str) -> Path:
        """Where the model lies, or would."""
        return self.folder / f"{name}.gguf"

    def part(self, name: str) -> Path:
        """Where its unfinished download lies."""
        return self.folder / f"{name}.gguf.part"

    def beside(self, name: str) -> list[Path]:
        """Everything that may lie beside the model and goes with it."""
        return [self.folder / f"{name}{ending}" for ending in _BESIDE]

    def manifest(self, name: str) -> Manifest | None:
        """What is known of the model, None if nothing was written down."""
        found = read_manifest(self.folder / f"{name}.manifest.json")
        return found if found is not None and found.name == name else None

    def has(self, name: str) -> bool:
        """Whether there is a model of that name, be it a link to nothing."""
        return self.file(name).is_file() or self.file(name).is_symlink()

    def entries(self) -> list[StoredModel]:
        """All models and unfinished downloads, by name. Raises `ModelError` for a folder that cannot be read."""
        try:
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ModelError(f"the folder {self.folder} cannot be read: {error.strerror}") from error
        models = [self._entry(one.removesuffix(".gguf")) for one in names if one.endswith(".gguf")]
        parts = [one.removesuffix(".gguf.part") for one in names if one.endswith(".gguf.part")]
        return sorted([*models, *map(self._unfinished, parts)], key=lambda one: (one.name, one.part_bytes is not None))

    def find(self, name: str) -> StoredModel:
        """The model of that name. Raises `ModelError` if there is none, or its file is gone."""
        if not self.has(name):
            known = ", ".join(one.name for one in self.entries() if one.part_bytes is None) or "none"
            raise ModelError(f"there is no model {name} in {self.folder} (there: {known})")
        found = self._entry(name)
        if not found.file.is_file():
            raise ModelError(f"the model {name} is a link to {found.file.readlink()}, which is not there")
        return found

    @contextmanager
    def exclusive(self, name: str) -> Iterator[None]:
        """Be the only one that adds, changes or removes that model; makes the folder. Raises `ModelError`.

        What killed processes left is removed first, of other models too, but for unfinished downloads.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.folder / f"{name}.lock", lambda: self._on_wait(name)):
                self._remove_left(name)
                yield
        except OSError as error:
            where = error.filename or self.folder
            raise ModelError(f"{where} cannot be read or written: {error.strerror or error}") from error

    @contextmanager
    def work(self, name: str) -> Iterator[Path]:
        """A folder for what is not whole yet, on the same disk and gone afterwards; only while `exclusive`."""
        with tempfile.TemporaryDirectory(prefix=f".work~{name}~", dir=self.folder) as folder:
            yield Path(folder)

    def check_room(self, num_bytes: int) -> None:
        """Raises `ModelError` if the disk has not that much and a little more."""
        free = shutil.disk_usage(self.folder).free
        if free < num_bytes + _SPARE_BYTES:
            raise ModelError(
                f"the disk of {self.folder} is too full: {_megabytes(num_bytes + _SPARE_BYTES)} are needed and "
                f"{_megabytes(free)} are free"
            )

    def refuse_taken(self, name: str) -> None:
        """Raises `ModelError` if there is a model of that name."""
        if self.has(name):
            raise ModelError(
                f"there is already a model {name}; remove it with `warmlane model rm {name}` or give --name"
            )

    def keep(self, name: str, whole: Path, manifest: Manifest) -> Manifest:
        """Give the checked file its place and write down what is known of it. Only while `exclusive`."""
        if whole != self.file(name):
            whole.replace(self.file(name))
        write_manifest(self.folder / f"{name}.manifest.json", manifest)
        return manifest

    def remove(self, name: str) -> int:
        """Remove the model, an unfinished download of it and all that lies beside them; the bytes that are freed."""
        freed = 0
        for path in (self.file(name), *self.beside(name)):
            if path.is_symlink() or path.is_file():
                freed += path.lstat().st_size
                path.unlink()
        return freed

    def _remove_left(self, name: str) -> None:
        """Remove the work folders of this name, whose lock is held, and those of others that nobody works on."""
        for left in self.folder.glob(".work~*~*"):
            owner = left.name.split("~")[1]
            if owner == name:
                shutil.rmtree(left, ignore_errors=True)
                continue
            with locked_if_free(self.folder / f"{owner}.lock") as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(left, ignore_errors=True)

    def _entry(self, name: str) -> StoredModel:
        file, manifest = self.file(name), self.manifest(name)
        if not file.is_file():
            return StoredModel(name, file, manifest, "missing")
        if manifest is None:
            manifest, problem = self._found(name, file)
            return StoredModel(name, file, manifest, problem)
        return StoredModel(name, file, manifest, "" if manifest.fits(file) else "changed")

    def _found(self, name: str, file: Path) -> tuple[Manifest | None, str]:
        """What a file without a manifest says of itself; the demo model, that a start brought, is known."""
        try:
            facts = probe(file, shown=str(file))
        except ModelError:
            return None, "not a usable model"
        status = file.stat()
        is_demo = name == DEMO_MODEL_NAME and status.st_size == DEMO_PACKAGE.model_bytes
        kind, source = (SourceKind.PACKAGE, DEMO_PACKAGE.requirement) if is_demo else (SourceKind.FOUND, str(file))
        licence = "Apache-2.0" if is_demo else facts.licence
        return Manifest(name, kind, source, "", status.st_size, status.st_mtime_ns, licence, facts), ""

    def _unfinished(self, name: str) -> StoredModel:
        part = self.part(name)
        size = part.stat().st_size if part.is_file() else 0
        return StoredModel(name, part, None, "unfinished", size)


def stored_or_path(text: str, models: Path) -> Path:
    """The file meant by `text`: a path, or the name of a stored model where no file is called so.

    Only a text without a slash can be a name; what is neither comes back as the path it is.
    """
    path = Path(text).expanduser()
    if "/" in text or not text or path.exists():
        return path
    try:
        stored = ModelStore(models).file(checked_name(text))
    except BadName:
        return path
    return stored if stored.is_file() or stored.is_symlink() else path


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.0f} MB"
