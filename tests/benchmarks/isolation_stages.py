"""How far a long measurement is: one bar over all its stages, and what may still take how long."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_TICK_S = 0.5


@dataclass(frozen=True)
class Stage:
    """`expected_s`: what it takes on a machine that is not too slow."""

    name: str
    expected_s: float


class Stages:
    """The stages of a run in their order; each is entered once. Where nobody watches, each is a printed line.

    `limit_s`: what all of them together may take; `spare_s` tells what is over, or lacking.
    """

    def __init__(self, stages: Sequence[Stage], console: Console, limit_s: float) -> None:
        self._left = list(stages)
        self._console = console
        self._ends_at = time.monotonic() + limit_s
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=2,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=sum(stage.expected_s for stage in stages))
        self._num_done_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text)

    @property
    def spare_s(self) -> float:
        """What is left of the limit after all stages that are to come, if these take what they should; may be negative."""
        return self._ends_at - time.monotonic() - sum(stage.expected_s for stage in self._left)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """While inside, the bar moves over the next stage, which must have this name."""
        stage = self._left.pop(0)
        assert stage.name == name, f"{stage.name} comes before {name}"
        self._progress.update(self._task, description=name)
        if not self._console.is_terminal:
            self._console.print(name)
        over = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(stage, over), daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()
            self._num_done_s += stage.expected_s
            self._progress.update(self._task, completed=self._num_done_s)

    def skip(self, prefix: str) -> None:
        """The next stages whose names begin so will not be entered: what they belong to has failed."""
        while self._left and self._left[0].name.startswith(prefix):
            self._num_done_s += self._left.pop(0).expected_s

    def _tick(self, stage: Stage, over: threading.Event) -> None:
        begun_at = time.monotonic()
        while not over.wait(_TICK_S):
            done_s = min(stage.expected_s, time.monotonic() - begun_at)
            self._progress.update(self._task, completed=self._num_done_s + done_s)
