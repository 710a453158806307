"""How long a request may take to come. One timer at most, and none for a request that comes whole in one read."""

import asyncio
from collections.abc import Callable
from enum import Enum

MIN_BODY_BYTES_PER_S = 16_384  # chosen: what has come of a body earns it more time, so that large ones may be slow


class Stage(Enum):
    """What a connection is waiting for from its client."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class ReadDeadline:
    """Calls `on_late` once a head has taken `head_s`, or a body `body_s` and the time it has earned. Seconds."""

    __slots__ = ("_body_s", "_earned_s", "_head_s", "_loop", "_message", "_on_late", "_since", "_stage", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, head_s: float, body_s: float, on_late: Callable[[Stage], object]
    ) -> None:
        self._loop = loop
        self._head_s = head_s
        self._body_s = body_s
        self._on_late = on_late
        self._stage = Stage.NOTHING
        self._message = 0
        self._since = 0.0
        self._earned_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, stage: Stage, message: int, num_bytes: int) -> None:
        """After a read of so many bytes: where the connection stands now, in the how-manieth message."""
        if stage is self._stage and (message == self._message or stage is Stage.NOTHING):
            self._earned_s += num_bytes / MIN_BODY_BYTES_PER_S
            return
        self.stop()
        self._stage, self._message = stage, message
        if stage is not Stage.NOTHING:
            self.restart()

    def restart(self) -> None:
        """Allow the same time again: it was not the client who kept the rest from being read."""
        self._since, self._earned_s = self._loop.time(), 0.0
        self._timer = self._loop.call_at(self._due(), self._check)

    def stop(self) -> None:
        """No deadline any more."""
        self._stage = Stage.NOTHING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> float:
        if self._stage is Stage.HEAD:
            return self._since + self._head_s
        return self._since + self._body_s + self._earned_s

    def _check(self) -> None:
        due = self._due()
        if self._loop.time() < due - 0.001:
            self._timer = self._loop.call_at(due, self._check)
            return
        self._timer = None
        self._on_late(self._stage)
