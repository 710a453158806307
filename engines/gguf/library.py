"""llama.cpp's C library, as the pinned xllamacpp wheel carries it, opened through our own declarations.

The wheel's shared object is opened by path; its Python module, and the server inside, are never imported.
Struct layouts change between builds, so nothing else may be called before `open_library` has checked them.
"""

import functools
import importlib.metadata
import importlib.util
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import cffi

DISTRIBUTION = "xllamacpp"
PINNED_VERSION = "2026.10.11549"
MAX_SLOTS = 256  # LLAMA_MAX_SEQ of this build; the function that tells it is not exported

LogSink = Callable[[int, str], None]
"""Called with a level of `logging` and one line. It may be called from any thread."""

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUATION = 5
_KEPT_ERRORS = 8

_STRUCT_BYTES = {"struct llama_model_params": 80, "struct llama_context_params": 168, "struct llama_batch": 56}
_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}


class LibraryMismatch(Exception):
    """The installed llama.cpp library is not the one our declarations describe."""


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


@dataclass(frozen=True, slots=True)
class Library:
    """The opened library. `c` holds the functions declared in llama.cdef; `log` collects what it says."""

    ffi: Any
    c: Any
    log: LogTail
    callback: Any  # NOTE: the library calls it for as long as the process lives; it must not be collected


_opening = threading.Lock()


def open_library() -> Library:
    """The one library of this process (its log and its back end are process-wide in C too).

    Raises `LibraryMismatch` if the wheel is missing, of another version, or not laid out as declared.
    """
    with _opening:
        return _open_once()


@functools.cache
def _open_once() -> Library:
    _check_version()
    ffi: Any = cffi.FFI()
    ffi.cdef(resources.files(__package__).joinpath("llama.cdef").read_text(encoding="utf-8"))
    path = _shared_object()
    try:
        c = ffi.dlopen(str(path))
        check_layout(ffi, c)
    except (OSError, AttributeError) as error:
        raise LibraryMismatch(f"The llama.cpp library {path.name} cannot be used here: {error}. {_remedy()}") from error
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else a failed assertion in C attaches a debugger, for seconds
    log = LogTail()

    def write(level: int, text: Any, _user_data: Any) -> None:
        log.write(level, bytes(ffi.string(text)).decode(errors="replace"))

    callback = ffi.callback("void(int32_t, const char *, void *)", write)
    c.llama_log_set(callback, ffi.NULL)
    c.llama_backend_init()
    return Library(ffi, c, log, callback)


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


def check_layout(ffi: Any, c: Any) -> None:
    """Raise `LibraryMismatch` unless sizes and default parameters are those our declarations were written for."""
    for name, size in _STRUCT_BYTES.items():
        if ffi.sizeof(name) != size:
            raise LibraryMismatch(f"{name} has {ffi.sizeof(name)} bytes on this machine, not {size}. {_remedy()}")
    check_defaults("model", c.llama_model_default_params(), _MODEL_DEFAULTS)
    check_defaults("context", c.llama_context_default_params(), _CONTEXT_DEFAULTS)


def check_defaults(kind: str, params: Any, expected: Mapping[str, float]) -> None:
    """Raise `LibraryMismatch` naming the first default of `params` that differs from `expected`."""
    for name, value in expected.items():
        found = getattr(params, name)
        if found != value:
            raise LibraryMismatch(
                f"llama.cpp's {kind} parameters are laid out differently than in {DISTRIBUTION} {PINNED_VERSION}: "
                f"{name} is {found!r}, not {value!r}. {_remedy()}"
            )


def _remedy() -> str:
    return f"Run: python -m pip install {DISTRIBUTION}=={PINNED_VERSION}"
