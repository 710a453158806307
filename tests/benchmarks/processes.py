"""Starting processes on a chosen core, hearing that they are ready, and reading what they cost from /proc."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """What is started inside runs on that core alone; None leaves it to the system."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(
    command: Sequence[str], *, core: int | None, log: Path, env: dict[str, str] | None = None, ready_s: float = 60.0
) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """A process in its own group, from its ready line to its end: (process id, the line's `name=value` pairs).

    Raises RuntimeError with the end of its log if it ends or says nothing within `ready_s`.
    """
    with log.open("wb") as errors, on_core(core):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **(env or {})}, start_new_session=True
        )
    try:
        yield process.pid, _ready_line(process, log, ready_s)
    finally:
        end(process)


def _ready_line(process: subprocess.Popen[bytes], log: Path, ready_s: float) -> dict[str, list[str]]:
    deadline = time.monotonic() + ready_s
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            piece = os.read(process.stdout.fileno(), 65536)
            said += piece
            for line in said.splitlines(keepends=True):
                if line.startswith(b"ready ") and line.endswith(b"\n"):
                    return _pairs(line.decode())
            if not piece:
                break
    end = (said + log.read_bytes())[-2000:].decode(errors="replace")
    raise RuntimeError(f"{process.args!r} did not become ready:\n{end}")


def _pairs(line: str) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for word in line.split()[1:]:
        name, _, value = word.partition("=")
        pairs.setdefault(name, []).append(value)
    return pairs


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process and its group to end, then make them."""
    for number, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    if process.stdout is not None:
        process.stdout.close()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """A process and all its descendants now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, []))
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds these processes have used, user and system."""
    return sum((int(fields[11]) + int(fields[12])) * _TICK_S for pid in pids if (fields := _stat(pid)))


def memory_mb(pids: Sequence[int]) -> float:
    """Resident memory of these processes together."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(fields[21]) * page for pid in pids if (fields := _stat(pid))) / 1e6


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
