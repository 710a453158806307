"""The idle connections of one pool: last in, first out, so that few sockets stay hot and the rest expire unused."""

import asyncio
from collections.abc import Callable

from engines.upstream.connection import Connection


class IdleConnections:
    """At most `max_idle` connections, none longer than `keep_s`. `drop` is called with each that must be closed.

    Whoever closes a connection also calls `discard`. One timer runs while anything is idle.
    """

    def __init__(self, max_idle: int, keep_s: float, drop: Callable[[Connection], None]) -> None:
        self._max_idle = max_idle
        self._keep_s = keep_s
        self._drop = drop
        self._since: dict[Connection, float] = {}  # loop time; oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def take(self) -> Connection | None:
        """The connection used last, if one is still fit for use."""
        oldest_allowed = asyncio.get_running_loop().time() - self._keep_s
        while self._since:
            connection, since = self._since.popitem()
            if since >= oldest_allowed and connection.is_open:
                return connection
            self._drop(connection)
        return None

    def keep(self, connection: Connection) -> None:
        """Keep it for the next `take`; with too many, the oldest is dropped."""
        loop = asyncio.get_running_loop()
        self._since[connection] = loop.time()
        if len(self._since) > self._max_idle:
            self._drop(next(iter(self._since)))
        if self._timer is None and self._since:
            self._timer = loop.call_later(self._keep_s, self._expire)

    def discard(self, connection: Connection) -> None:
        """Forget it, if it is here."""
        self._since.pop(connection, None)

    def stop(self) -> None:
        """Keep no time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._since:
            oldest, since = next(iter(self._since.items()))
            expires_at = since + self._keep_s
            if expires_at > loop.time():
                self._timer = loop.call_at(expires_at, self._expire)
                return
            self._drop(oldest)
