"""The connections to one replica: which request gets which connection, and what happens when one breaks.

Each exchange is in exactly one place: waiting for a connection, connecting, or carried by one. Idle connections are
used last in, first out, so that few sockets stay hot and the rest expire. A used connection that closes before a byte
of the answer has lost a race with the engine's keep-alive timer: its request is written once more, on a fresh one.
First-token, idle and total timeouts belong to the caller, who sees the callbacks.
"""

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from engines.contract import Fault, Headers, ReplicaError, UpstreamExchange, UpstreamSink
from engines.upstream.connection import Connection, Exchange
from engines.upstream.fetch import Answer, Collector
from engines.upstream.http1 import request_head
from engines.upstream.idle import IdleConnections

_HOST = re.compile(r"[0-9A-Za-z._:%-]+")


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds of the connections to one replica. `connect_s` is also the longest wait for a free connection.

    `idle_keep_s`: below the 5 s after which uvicorn and llama-server close an idle connection, to race them rarely.
    `max_head_bytes`: of an answer's head, and of anything received in a row without a byte of body.
    """

    connect_s: float = 1.0
    max_connections: int = 256
    max_waiting: int = 256
    max_idle: int = 64
    idle_keep_s: float = 4.0
    max_head_bytes: int = 32 * 1024
    max_fetch_bytes: int = 4 * 1024 * 1024


class UpstreamStatistics(NamedTuple):
    """Counts of now. `open` is idle plus in use; connecting ones are not open yet."""

    open: int
    idle: int
    in_use: int
    connecting: int
    waiting: int


class Upstream:
    """The client pool of one replica. Used from one event loop; `send` needs a running one.

    `base_path` stands before every path. `tls` None means plain TCP.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        base_path: str = "",
        limits: UpstreamLimits | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.limits = limits or UpstreamLimits()
        self._tls = tls
        self._base_path = base_path.rstrip("/")
        self._host_header = _host_header(host, port, is_tls=tls is not None)
        self._connections: set[Connection] = set()  # open ones, idle or carrying
        self._idle = IdleConnections(self.limits.max_idle, self.limits.idle_keep_s, self._drop)
        self._connecting: dict[Exchange, asyncio.Task[None]] = {}
        self._waiting: dict[Exchange, asyncio.TimerHandle] = {}  # first come, first served
        self._is_closed = False

    @classmethod
    def from_url(
        cls, url: str, *, tls: ssl.SSLContext | None = None, limits: UpstreamLimits | None = None
    ) -> "Upstream":
        """The pool for `http(s)://host[:port][/base]`. Raises ValueError with a sentence for anything else.

        An https URL is verified against the system's authorities unless `tls` says otherwise.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url!r} is not an http or https URL with a host")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"the URL of {parts.hostname} may not carry a user, a query or a fragment")
        if parts.scheme == "https":
            tls = tls or ssl.create_default_context()
        elif tls is not None:
            raise ValueError(f"{url!r} is not an https URL, but TLS settings were given")
        host = parts.hostname.encode("idna").decode("ascii")
        if _HOST.fullmatch(host) is None:
            raise ValueError(f"{parts.hostname!r} is not a host name or address")
        port = parts.port or (443 if tls else 80)
        return cls(host, port, tls=tls, base_path=parts.path, limits=limits)

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.statistics()._asdict().items())
        return f"<Upstream {self._host_header.decode()} {'closed ' if self._is_closed else ''}{counts}>"

    def statistics(self) -> UpstreamStatistics:
        """What is open, idle, in use, connecting and waiting now."""
        num_open, num_idle = len(self._connections), len(self._idle)
        return UpstreamStatistics(num_open, num_idle, num_open - num_idle, len(self._connecting), len(self._waiting))

    def send(
        self, path: str, headers: Headers, body: bytes, sink: UpstreamSink, *, method: str = "POST"
    ) -> UpstreamExchange:
        """Start a request; callbacks follow, never before this returns.

        `content-type` is JSON and `accept-encoding` identity unless `headers` say otherwise; host and content-length
        are set here. The read that completes a body calls `on_end` without an `on_flush` before it.
        Raises ValueError for a path or header that HTTP does not allow, or that is set here.
        """
        target = f"{self._base_path}{path}".encode("latin-1", "replace")
        exchange = Exchange(self, request_head(method, target, self._host_header, headers, len(body)) + body, sink)
        self._place(exchange)
        return exchange

    async def fetch(
        self, method: str, path: str, headers: Headers | None = None, body: bytes = b"", *, timeout_s: float
    ) -> Answer:
        """A whole answer of any status, for probes and small calls. A cancelled fetch closes its connection.

        Raises ReplicaError: `Fault.TIMEOUT` after `timeout_s`, `Fault.PROTOCOL` for a body over `max_fetch_bytes`.
        """
        collector = Collector(self.limits.max_fetch_bytes)
        exchange = self.send(path, headers or [], body, collector, method=method)
        try:
            return await collector.collect(timeout_s)
        finally:
            exchange.abort()

    def close(self) -> None:
        """Drop idle connections and fail what is in flight (in the loop's next turn). Later sends fail."""
        self._is_closed = True
        self._idle.stop()
        for timer in self._waiting.values():
            timer.cancel()
        for task in self._connecting.values():
            task.cancel()
        unsent = [*self._waiting, *self._connecting]
        self._waiting.clear()
        self._connecting.clear()
        carried = [exchange for connection in self._connections if (exchange := connection.detach())]
        for connection in [*self._connections]:
            self._drop(connection)
        for exchange in unsent:
            _fail_soon(exchange, Fault.CONNECT, "the upstream was closed")
        for exchange in carried:
            _fail_soon(exchange, Fault.RESET, "the upstream was closed")

    # Where an exchange goes.

    def _place(self, exchange: Exchange) -> None:
        if self._is_closed:
            _fail_soon(exchange, Fault.CONNECT, "the upstream was closed")
        elif (connection := self._idle.take()) is not None:
            connection.carry(exchange)
        elif self._has_room():
            self._connect(exchange)
        elif len(self._waiting) < self.limits.max_waiting:
            loop = asyncio.get_running_loop()
            self._waiting[exchange] = loop.call_later(self.limits.connect_s, self._give_up, exchange)
        else:
            _fail_soon(exchange, Fault.CONNECT, f"pool exhausted: {len(self._waiting)} requests wait for a connection")

    def _has_room(self) -> bool:
        return len(self._connections) + len(self._connecting) < self.limits.max_connections

    def _give_up(self, exchange: Exchange) -> None:
        del self._waiting[exchange]
        exchange.fail(
            ReplicaError(Fault.CONNECT, f"pool exhausted: no free connection within {self.limits.connect_s:g} s")
        )

    def _serve_waiting(self) -> None:
        while self._waiting and self._has_room():
            self._connect(self._next_waiting())

    def _next_waiting(self) -> Exchange:
        exchange = next(iter(self._waiting))
        self._waiting.pop(exchange).cancel()
        return exchange

    def _connect(self, exchange: Exchange) -> None:
        self._connecting[exchange] = asyncio.get_running_loop().create_task(self._open(exchange))

    async def _open(self, exchange: Exchange) -> None:
        """Open a connection for `exchange`; `connected` is called by the connection itself, before this returns."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.limits.connect_s):
                await loop.create_connection(
                    lambda: Connection(self, exchange, self.limits.max_head_bytes),
                    self.host,
                    self.port,
                    ssl=self._tls,
                    server_hostname=self.host if self._tls else None,
                )
        except (
            OSError,
            UnicodeError,
        ) as error:  # TLS failures and timeouts are OSErrors; UnicodeError: no such host name
            if self._connecting.pop(exchange, None) is None:
                return
            reason = f"nothing within {self.limits.connect_s:g} s" if isinstance(error, TimeoutError) else str(error)
            failure = ReplicaError(Fault.CONNECT, f"cannot connect to {self.host}:{self.port}: {reason}")
            failure.__cause__ = error
            self._serve_waiting()
            asyncio.get_running_loop().call_soon(exchange.fail, failure)

    # What connections and exchanges tell (connection.py). Books first, sink last: it may send again, or raise.

    def connected(self, connection: Connection, exchange: Exchange) -> None:
        """The connection opened for `exchange` is ready to write."""
        if self._connecting.pop(exchange, None) is None:  # aborted or closed meanwhile
            connection.close()
            return
        self._connections.add(connection)
        connection.carry(exchange)

    def done(self, connection: Connection) -> None:
        """The answer is complete: the connection is kept, or given to who waits longest."""
        is_reusable = connection.is_reusable and not self._is_closed
        exchange = connection.detach()
        if is_reusable:
            self._keep(connection)
        else:
            self._drop(connection)
            self._serve_waiting()
        if exchange is not None:
            exchange.finish().on_end()

    def broke(self, connection: Connection, error: ReplicaError | None) -> None:
        """The connection is unusable. `error` None: it closed before a byte of the answer."""
        was_stale = connection.is_stale
        exchange = connection.detach()
        self._drop(connection)
        if exchange is None:
            self._serve_waiting()
        elif was_stale and not exchange.has_retried and not self._is_closed:
            exchange.has_retried = True
            self._connect(exchange)  # in the place of the connection it lost
        else:
            self._serve_waiting()
            fault = Fault.STALE if was_stale or exchange.has_retried else Fault.RESET
            exchange.fail(error or ReplicaError(fault, "the connection closed before a byte of the answer"))

    def aborted(self, exchange: Exchange) -> None:
        """The exchange is over for its caller, wherever it is."""
        if (timer := self._waiting.pop(exchange, None)) is not None:
            timer.cancel()
        elif (task := self._connecting.pop(exchange, None)) is not None:
            task.cancel()
        elif (connection := exchange.connection) is not None:
            connection.detach()
            self._drop(connection)
        self._serve_waiting()

    def _keep(self, connection: Connection) -> None:
        connection.resume()
        if self._waiting:
            connection.carry(self._next_waiting())
        else:
            self._idle.keep(connection)

    def _drop(self, connection: Connection) -> None:
        self._idle.discard(connection)
        self._connections.discard(connection)
        connection.close()


def _fail_soon(exchange: Exchange, fault: Fault, message: str) -> None:
    asyncio.get_running_loop().call_soon(exchange.fail, ReplicaError(fault, message))


def _host_header(host: str, port: int, *, is_tls: bool) -> bytes:
    name = f"[{host}]" if ":" in host else host
    return (name if port == (443 if is_tls else 80) else f"{name}:{port}").encode("ascii")
