"""A child process kept running: started, watched, started again with back-off, and stopped for good.

Every start has a generation, so that what is known about an earlier life is never taken for the new one.
What happens is told by events to one callback; nothing is logged here.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from engines.launch.backoff import Backoff, BackoffPolicy
from engines.launch.local import Echo, LocalProcess, StartFailed, echo_to_stderr, ending
from engines.launch.ready_line import ReadyLine


@dataclass(frozen=True, slots=True)
class Started:
    """The child is ready. `generation`: 1 for its first start, never repeated."""

    name: str
    url: str
    generation: int
    ready: ReadyLine


@dataclass(frozen=True, slots=True)
class Lost:
    """The child ended, or a start failed.

    `code`: exit status, negative for a signal, None if it was not ready in time or could not be run.
    `retry_in_s`: when it is started again.
    """

    name: str
    generation: int
    was_ready: bool
    code: int | None
    reason: str
    retry_in_s: float


@dataclass(frozen=True, slots=True)
class Failing:
    """`attempts` starts in a row failed with the same `reason`; it is still tried. `tail`: its last stderr lines."""

    name: str
    attempts: int
    reason: str
    tail: tuple[str, ...]


Event = Started | Lost | Failing


class ChildState(Enum):
    """Where a supervised child is."""

    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # lost, for its back-off
    STOPPED = "stopped"


_MOVES = {
    ChildState.NEW: {ChildState.STARTING, ChildState.STOPPED},
    ChildState.STARTING: {ChildState.READY, ChildState.WAITING, ChildState.STOPPED},
    ChildState.READY: {ChildState.WAITING, ChildState.STOPPED},
    ChildState.WAITING: {ChildState.STARTING, ChildState.STOPPED},
    ChildState.STOPPED: set(),
}


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `argv` is asked before every start, with the last ready line (None before the first)."""

    name: str
    argv: Callable[[ReadyLine | None], Sequence[str]]
    start_timeout_s: float = 120.0
    grace_s: float = 10.0
    failing_after: int = 3


class Supervised:
    """One child and its restarts. `run` it once; `stop` it from elsewhere."""

    def __init__(
        self,
        spec: ChildSpec,
        on_event: Callable[[Event], None],
        policy: BackoffPolicy | None = None,
        *,
        echo: Echo = echo_to_stderr,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.state = ChildState.NEW
        self.generation = 0
        self.last_ready: ReadyLine | None = None
        self._on_event = on_event
        self._backoff = Backoff(policy or BackoffPolicy())
        self._echo = echo
        self._clock = clock
        self._process: LocalProcess | None = None
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._same_reason = ("", 0)

    def __repr__(self) -> str:
        return f"Supervised(name={self.spec.name!r}, state={self.state.value}, generation={self.generation})"

    @property
    def pid(self) -> int | None:
        """The process id of the present life, None between two."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def run(self) -> None:
        """Keep the child running until `stop`, or until cancelled (which kills it)."""
        assert self.state is ChildState.NEW, "run once"
        try:
            while not self._stopping.is_set():
                self._move(ChildState.STARTING)
                wait_s = await self._live()
                if wait_s is None:
                    break
                self._move(ChildState.WAITING)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), wait_s)
        finally:
            self._move(ChildState.STOPPED)
            self._over.set()

    async def stop(self, grace_s: float | None = None) -> None:
        """End the child: SIGTERM, then SIGKILL after the grace (default: the spec's). Again with 0 means at once."""
        self._stopping.set()
        if self.state is ChildState.NEW:
            return
        if self._process is not None:
            await self._process.stop(self.spec.grace_s if grace_s is None else grace_s)
        await self._over.wait()

    async def _live(self) -> float | None:
        """One life of the child: how long to wait before the next, or None when it was stopped."""
        self.generation += 1
        was_ready = False
        tail: tuple[str, ...] = ()
        try:
            process = await LocalProcess.start(self.spec.name, self.spec.argv(self.last_ready), self._echo)
            async with process:
                self._process = process
                if self._stopping.is_set():
                    return None
                ready = await process.ready(self.spec.start_timeout_s)
                was_ready = True
                self._begin(ready)
                code: int | None = await process.wait()
                reason = ending(code or 0, process.tail)
        except StartFailed as failure:
            code, reason, tail = failure.code, failure.reason, failure.tail
        finally:
            self._process = None
        return None if self._stopping.is_set() else self._lose(code, reason, tail, was_ready=was_ready)

    def _begin(self, ready: ReadyLine) -> None:
        self.last_ready = ready
        self._same_reason = ("", 0)
        self._backoff.ready(self._clock())
        self._move(ChildState.READY)
        self._on_event(Started(self.spec.name, ready.base_url, self.generation, ready))

    def _lose(self, code: int | None, reason: str, tail: tuple[str, ...], *, was_ready: bool) -> float:
        wait_s = self._backoff.lost(self._clock())
        self._on_event(Lost(self.spec.name, self.generation, was_ready, code, reason, wait_s))
        if not was_ready:
            last, count = self._same_reason
            count = count + 1 if last == reason else 1
            self._same_reason = (reason, count)
            if count == self.spec.failing_after:
                self._on_event(Failing(self.spec.name, count, reason, tail))
        return wait_s

    def _move(self, state: ChildState) -> None:
        assert state in _MOVES[self.state], f"{self.spec.name} cannot move from {self.state.value} to {state.value}"
        self.state = state
