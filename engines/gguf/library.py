"""llama.cpp's C library: a build of this machine where there is one that fits, else the pinned xllamacpp wheel's.

The wheel's shared object is opened by path; its Python module, and the server inside, are never imported.
Struct layouts change between builds: the wheel is met by llama.cdef, a native build by declarations from its own
header, and nothing is called before abi.py has checked them.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import cffi

from engines.gguf.abi import LibraryMismatch, check_library
from engines.gguf.declarations import function_names
from engines.gguf.native import native_folder, open_build

DISTRIBUTION = "xllamacpp"
PINNED_VERSION = "2026.10.11549"
MAX_SLOTS = 256  # LLAMA_MAX_SEQ of this build; the function that tells it is not exported

CHOICE_VARIABLE = "WARMLANE_LLAMA_LIBRARY"

LogSink = Callable[[int, str], None]
"""Called with a level of `logging` and one line. It may be called from any thread."""

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUATION = 5
_KEPT_ERRORS = 8

# The pool of cells for all sequences is larger than the context of one by design; the scheduler keeps each within it.
_HARMLESS = "possible training context overflow"


@dataclass(slots=True)
class LogTail:
    """The library's log: passed on line by line, its last errors kept so that a failure can say why."""

    sink: LogSink | None = None
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_ERRORS))
    _level: int = logging.DEBUG

    def write(self, level: int, text: str) -> None:
        """Take one piece of log; `level` is the library's own number. Unknown levels count as debug."""
        if level != _CONTINUATION:
            self._level = _LEVELS.get(level, logging.DEBUG)
        line = text.strip()
        if not line.strip("."):  # load progress is a row of dots
            return
        if self._level >= logging.ERROR:
            self.errors.append(line)
        if self.sink is not None and _HARMLESS not in line:
            self.sink(self._level, line)

    def take_errors(self) -> str:
        """The errors since the last call as one phrase, or an empty text; they are forgotten."""
        phrase = "; ".join(self.errors)
        self.errors.clear()
        return phrase

    def take_reason(self) -> str:
        """The same as the end of a sentence, with its colon and without its full stop."""
        phrase = self.take_errors()
        return f": {phrase}" if phrase else ""


@dataclass(frozen=True, slots=True)
class Library:
    """The opened library. `c` holds the functions of `declarations`; `log` collects what it says.

    `description`: which library it is, for people. `note`: why a native build that is there is not used, or empty.
    """

    ffi: Any
    c: Any
    log: LogTail
    callback: Any  # NOTE: the library calls it for as long as the process lives; it must not be collected
    declarations: str
    description: str
    note: str = ""


_opening = threading.Lock()


def open_library(choice: str = "", folder: Path | None = None) -> Library:
    """The library of this process, opened once a choice (its log and its back end are process-wide in C too).

    `choice`: `wheel`, `native`, `auto` (native where there is one that fits, else the wheel), or a folder with a build
    of `engines.gguf.native_build`; empty takes `WARMLANE_LLAMA_LIBRARY`, else `auto`. `folder`: of `native`; None is
    the one in the home folder. Raises `LibraryMismatch` if what was chosen is missing or does not fit.
    """
    choice = choice or os.environ.get(CHOICE_VARIABLE, "") or "auto"
    with _opening:
        return _choose(choice, native_folder() if folder is None else folder)


@functools.cache
def _choose(choice: str, folder: Path) -> Library:
    if choice == "wheel":
        return _open_wheel()
    if choice == "auto":
        if not folder.is_dir():
            return _open_wheel()
        try:
            return _open_native(folder, needs_pinned=True)
        except LibraryMismatch as error:
            return dataclasses.replace(_open_wheel(), note=str(error))
    if choice != "native" and not Path(choice).expanduser().is_dir():
        raise LibraryMismatch(
            f"{CHOICE_VARIABLE} is {choice!r}, which is not auto, wheel, native or a folder that holds a native build."
        )
    return _open_native(folder if choice == "native" else Path(choice).expanduser(), needs_pinned=False)


def _open_native(folder: Path, *, needs_pinned: bool) -> Library:
    """A build of this machine. One that is found, not asked for, must be of the pinned version (`needs_pinned`)."""
    build = open_build(folder)
    is_pinned = build.manifest.version == PINNED_VERSION
    if needs_pinned and not is_pinned:
        raise LibraryMismatch(
            f"The native build in {folder} is of {build.manifest.source}, not of {DISTRIBUTION} {PINNED_VERSION}; "
            "run make native again."
        )
    if not set(function_names(our_declarations())) <= set(function_names(build.declarations)):
        raise LibraryMismatch(f"The native build in {folder} was made for an earlier Warmlane; run make native again.")
    what = f"The native build in {folder}"
    description = f"native build of {build.manifest.source}"
    return _open(build.library, build.declarations, what, description, is_pinned=is_pinned)


def _open_wheel() -> Library:
    _check_version()
    path = _shared_object()
    what = f"The llama.cpp library {path.name}"
    try:
        return _open(path, our_declarations(), what, f"wheel {DISTRIBUTION} {PINNED_VERSION}", is_pinned=True)
    except LibraryMismatch as error:
        raise LibraryMismatch(f"{error} {_remedy()}") from error


def our_declarations() -> str:
    """llama.cdef: what we use, as it is in the pinned wheel."""
    return resources.files(__package__).joinpath("llama.cdef").read_text(encoding="utf-8")


@functools.cache  # a second opening of the same file would take its log away from the first
def _open(path: Path, declarations: str, what: str, description: str, *, is_pinned: bool) -> Library:
    ffi: Any = cffi.FFI()
    ffi.cdef(declarations)
    try:
        c = ffi.dlopen(str(path))
    except OSError as error:
        raise LibraryMismatch(f"{what} cannot be used here: {error}.") from error
    check_library(ffi, c, function_names(our_declarations()), what, is_pinned=is_pinned)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a failed assertion in C attaches a debugger, for seconds
    log = LogTail()

    def write(level: int, text: Any, _user_data: Any) -> None:
        log.write(level, bytes(ffi.string(text)).decode(errors="replace"))

    callback = ffi.callback(ffi.typeof(c.llama_log_set).args[0], write)
    c.llama_log_set(callback, ffi.NULL)
    c.llama_backend_init()
    return Library(ffi, c, log, callback, declarations, description)


def _check_version() -> None:
    try:
        installed = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise LibraryMismatch(f"The gguf engine needs llama.cpp, which is not installed. {_remedy()}") from None
    if installed != PINNED_VERSION:
        raise LibraryMismatch(
            f"The gguf engine needs {DISTRIBUTION} {PINNED_VERSION} and found {installed}, "
            f"whose structures may be laid out differently. {_remedy()}"
        )


def _shared_object() -> Path:
    spec = importlib.util.find_spec(DISTRIBUTION)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = [path for folder in folders for path in sorted(Path(folder).glob(f"{DISTRIBUTION}*")) if path.is_file()]
    for path in found:
        if path.suffix in (".so", ".pyd", ".dylib"):
            return path
    raise LibraryMismatch(f"The {DISTRIBUTION} package has no shared library in it. {_remedy()}")


def _remedy() -> str:
    return f"Run: python -m pip install {DISTRIBUTION}=={PINNED_VERSION}"
