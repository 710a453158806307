"""Which workers on this machine serve a model file: read off the command lines of running processes.

A worker of another machine, or one whose command line this person may not read (macOS hides other people's), is not
seen. A served file can be removed all the same: it stays readable for whoever has it open, but a restart would miss it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

_WORKER = "engines.worker"


def workers_of(file: Path) -> list[int]:
    """The process ids of the workers that were started with this file, under whatever name or link."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if _WORKER in command and any(_is_same(process, text, file) for text in paths_of(command)):
                found.append(process.pid)
        except (psutil.Error, OSError):  # it ended meanwhile, or is not ours to see
            continue
    return found


def paths_of(command: Sequence[str]) -> Iterator[str]:
    """Every value of `--path` in a command line."""
    for at, word in enumerate(command):
        if word == "--path" and at + 1 < len(command):
            yield command[at + 1]
        elif word.startswith("--path="):
            yield word.removeprefix("--path=")


def _is_same(process: psutil.Process, text: str, file: Path) -> bool:
    path = Path(text)
    path = path if path.is_absolute() else Path(process.cwd()) / path
    if path.name == file.name and path.parent.exists() and path.parent.samefile(file.parent):
        return True
    # Of a link only the link would go: whoever names the file itself, or another link to it, loses nothing.
    return not file.is_symlink() and path.exists() and file.exists() and path.samefile(file)
