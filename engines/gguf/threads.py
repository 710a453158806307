"""How many threads a step takes: one number for steps of one token, one for all others, both measured on this machine.

One token reads all weights and is bound by memory, where fewer threads than cores are often as fast; more tokens
compute, and want the cores. Hyper-threads and noisy neighbours make neither a matter of counting, so it is measured,
shortly, and remembered for machine and model.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.gguf.home import home_folder

CACHE_NAME = "threads.json"
_PATIENCE_S = 2.0  # for one phase; then the best so far is taken
_REPEATS = 3  # the shortest counts: others were disturbed
_WORTH = 0.97  # more threads must save 3 % or they are left to others
_MOST_ENTRIES = 64
_MAX_CHARS = 1 << 20  # of the file; ours has some kilobytes
_BUSY_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Threads:
    """`single`: for steps of one token; `batch`: for all others. `origin`: given, measured, remembered, or why not."""

    single: int
    batch: int
    origin: str

    def __str__(self) -> str:
        return f"{self.single} and {self.batch} ({self.origin})"


def candidates(most: int) -> tuple[int, ...]:
    """Numbers of threads to try, growing: powers of two, half, three quarters and all of `most`."""
    powers = {1 << bit for bit in range(most.bit_length()) if 1 << bit <= most}
    return tuple(sorted({*powers, most, max(1, most // 2), max(1, 3 * most // 4)}))


def fastest(most: int, step: Callable[[int], None], clock: Callable[[], float] = time.perf_counter) -> int:
    """The fewest threads, at most `most`, with which `step` is as fast as it gets.

    `step(threads)` runs one step and is called some times for each number; stops growing where steps get slower.
    """
    started = clock()
    best, best_s = 1, float("inf")
    for threads in candidates(most):
        if best_s < float("inf") and clock() - started > _PATIENCE_S:
            break
        seconds = min(_seconds(step, threads, clock) for _ in range(_REPEATS))
        if seconds < best_s * _WORTH:
            best, best_s = threads, seconds
        elif seconds > 2 * best_s:
            break
    return best


def is_busy(load_1m: float, cpus: int) -> bool:
    """Whether others compute here now, so that what is measured would be theirs as much as ours."""
    return load_1m > _BUSY_SHARE * cpus


def load_now() -> float:
    """Processes that want to compute, averaged over the last minute; 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def measure(most: int, single: Callable[[int], None], batch: Callable[[int], None]) -> Threads:
    """Measured numbers for both phases; with one core nothing is measured."""
    if most <= 1:
        return Threads(1, 1, "one core")
    return Threads(fastest(most, single), fastest(most, batch), "measured")


def _seconds(step: Callable[[int], None], threads: int, clock: Callable[[], float]) -> float:
    started = clock()
    step(threads)
    return clock() - started


class ThreadCache:
    """Remembered numbers, in one small file of the home folder. What cannot be read or written is measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def recall(self, key: str, most: int) -> Threads | None:
        """What was measured for this key, if it is still possible with `most` threads."""
        match self._read().get(key):
            case [int(single), int(batch)] if 1 <= min(single, batch) <= max(single, batch) <= most:
                return Threads(single, batch, "remembered")
        return None

    def remember(self, key: str, threads: Threads) -> None:
        """Keep it; the oldest of too many is forgotten. A folder that cannot be written is no failure."""
        entries = {name: value for name, value in self._read().items() if name != key}
        entries[key] = [threads.single, threads.batch]
        kept = dict(list(entries.items())[-_MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{CACHE_NAME}-", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(kept, file, indent=1)
                Path(name).replace(self._path)
            except OSError:  # a full disk, say
                Path(name).unlink(missing_ok=True)

    def _read(self) -> dict[str, object]:
        try:
            if not self._path.is_file():  # to open a pipe would wait for its writer
                return {}
            with self._path.open(encoding="utf-8") as file:
                content = json.loads(file.read(_MAX_CHARS))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def cache_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The file in the home folder."""
    return home_folder(environ) / CACHE_NAME
