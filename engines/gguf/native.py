"""A llama.cpp library built on this machine (`make native`): what its manifest says, and whether it fits here.

A folder holds the libraries, the declarations generated from their own header, and a manifest with the hash of each.
They run only where every processor feature exists that they were built for, so that is checked before they are opened.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engines.gguf.abi import LibraryMismatch
from engines.gguf.home import home_folder

MANIFEST_NAME = "manifest.json"
DECLARATIONS_NAME = "llama.cdef"
_FORMAT = 1


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was built, from what, for which processor. `files`: SHA-256 of every file beside the manifest.

    `source`: name and version of what was built; `cpu_flags`: all that the building machine's processor had;
    `version`: the release of the pinned package that the source is of, empty for any other source.
    """

    source: str
    source_sha256: str
    version: str
    library: str
    files: dict[str, str]
    system: str
    machine: str
    cpu_flags: list[str]
    cmake_options: list[str]
    compiler: str
    build_s: float
    format: int = _FORMAT


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """A build whose files are those of its manifest, on a machine that it was built for."""

    folder: Path
    manifest: Manifest

    @property
    def library(self) -> Path:
        """The shared object to open."""
        return self.folder / self.manifest.library

    @property
    def declarations(self) -> str:
        """C declarations for cffi, from the build's own header."""
        return (self.folder / DECLARATIONS_NAME).read_text(encoding="utf-8")


def native_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `make native` puts its build: `native` in the home folder."""
    return home_folder(environ) / "native"


def open_build(folder: Path, flags: frozenset[str] | None = None) -> NativeBuild:
    """The build in `folder`. `flags`: the processor's, as Linux names them; None reads this machine's.

    Raises `LibraryMismatch` with the reason why it cannot be used here.
    """
    manifest = _read_manifest(folder)
    here = (platform.system().lower(), platform.machine())
    if (manifest.system, manifest.machine) != here:
        raise LibraryMismatch(
            f"The native build in {folder} is for {manifest.system} on {manifest.machine}, not {here[0]} on {here[1]}."
        )
    lacking = sorted(set(manifest.cpu_flags) - (cpu_flags() if flags is None else flags))
    if lacking:
        raise LibraryMismatch(
            f"The native build in {folder} was made for another processor: this one lacks {', '.join(lacking[:3])}; "
            "run make native again."
        )
    for name, expected in manifest.files.items():
        if file_sha256(folder, name) != expected:
            raise LibraryMismatch(f"The native build in {folder} is damaged ({name}); run make native again.")
    return NativeBuild(folder, manifest)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put the manifest beside the files that it names."""
    (folder / MANIFEST_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Every feature of this processor by the system's names; empty where the system does not list them."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, ()))


def file_sha256(folder: Path, name: str) -> str:
    """The hash of a file of the build, empty if there is none. A name that leads out of the folder names none."""
    if Path(name).name != name:
        return ""
    try:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise LibraryMismatch(f"There is no native build in {folder}: {path.name}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise LibraryMismatch(f"The native build in {folder} has an unreadable manifest: {error}.") from error
    if manifest.format != _FORMAT or manifest.library not in manifest.files or DECLARATIONS_NAME not in manifest.files:
        raise LibraryMismatch(f"The native build in {folder} is of another version; run make native again.")
    return manifest
