"""The model file that is served, watched: its weights are read from it as long as the worker lives.

A file that is removed, or replaced by another under its name, stays readable for whoever has it open. One that is
written in place (`cp new.gguf served.gguf` does) changes the weights under the worker: answers become noise, and where
the file becomes shorter the system ends the process with SIGBUS.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_EVERY_S = 1.0  # chosen; the look is one system call while nothing changes
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True, slots=True)
class ServedFile:
    """A file as it was when its model was loaded. Sizes in bytes, times in nanoseconds."""

    path: Path
    inode: tuple[int, int]
    num_bytes: int
    mtime_ns: int
    samples: tuple[bytes, ...]

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The file now, None if it cannot be read."""
        try:
            if not path.is_file():  # to open a pipe would wait for its writer
                return None
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                samples = _samples(file.fileno(), status.st_size)
        except OSError:
            return None
        return cls(path, (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns, samples)

    def is_changed(self) -> bool:
        """Whether it was written to in place; a file that was only touched, or is another one now, was not."""
        try:
            status = self.path.stat()
            if (status.st_dev, status.st_ino) != self.inode:
                return False
            if (status.st_size, status.st_mtime_ns) == (self.num_bytes, self.mtime_ns):
                return False
            now = self.of(self.path)
        except OSError:
            return False
        return now is not None and (now.num_bytes, now.samples) != (self.num_bytes, self.samples)


async def until_changed(file: ServedFile | None, every_s: float = _EVERY_S) -> None:
    """Return when the file was written to in place; never, if there is none."""
    if file is None:
        await asyncio.get_running_loop().create_future()
    else:
        while not await asyncio.to_thread(file.is_changed):  # noqa: ASYNC110  # nothing else tells
            await asyncio.sleep(every_s)


def _samples(descriptor: int, num_bytes: int) -> tuple[bytes, ...]:
    """Some pieces of a file, evenly spread, its beginning and its end among them."""
    last = max(0, num_bytes - _SAMPLE_BYTES)
    places = sorted({last * index // (_NUM_SAMPLES - 1) for index in range(_NUM_SAMPLES)})
    return tuple(os.pread(descriptor, _SAMPLE_BYTES, place) for place in places)
