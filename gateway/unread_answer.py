"""A complete answer that its client does not read: what waits in our memory is given up after a while."""

import asyncio
from collections.abc import Callable


class UnreadAnswer:
    """Aborts a connection whose write buffer has not shrunk for `idle_s` seconds while no answer is under way."""

    __slots__ = ("_idle_s", "_is_answering", "_left", "_loop", "_timer", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        idle_s: float,
        is_answering: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._idle_s = idle_s
        self._is_answering = is_answering
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """An answer is complete: watch what is left of it, if anything is."""
        if self._timer is None:
            self._look_again()

    def stop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        if self._left:
            self._timer = self._loop.call_later(self._idle_s, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= self._left > 0 and not self._is_answering():
            self._transport.abort()
        else:
            self._look_again()
