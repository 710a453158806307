"""One request on its way (`Exchange`) and one TCP connection that carries one at a time (`Connection`).

A connection writes a request, reads its answer and tells its pool how that ended. It decides nothing about reuse,
retries or waiting: the pool does (pool.py). Sinks are called straight from the socket's callbacks; there is
no task, future or queue per chunk.
"""

import asyncio
import socket
from typing import Protocol, cast

from engines.contract import Fault, ReplicaError, UpstreamSink
from engines.upstream.http1 import DEAF, AnswerReader


class Pool(Protocol):
    """What connections and exchanges tell their pool. Told about each connection's end as often as it likes."""

    def connected(self, connection: "Connection", exchange: "Exchange") -> None:
        """The connection opened for `exchange` is ready to write."""
        ...

    def done(self, connection: "Connection") -> None:
        """The answer is complete."""
        ...

    def broke(self, connection: "Connection", error: ReplicaError | None) -> None:
        """The connection is unusable. `error` None: it closed before a byte of the answer."""
        ...

    def aborted(self, exchange: "Exchange") -> None:
        """The exchange is over for its caller, wherever it is: waiting, connecting or under way."""
        ...


class Exchange:
    """One request and the sink of its answer: the `UpstreamExchange` that callers hold.

    `request` is kept only while it might have to be written again.
    """

    __slots__ = ("_pool", "connection", "has_retried", "is_over", "is_paused", "request", "sink")

    def __init__(self, pool: Pool, request: bytes, sink: UpstreamSink) -> None:
        self._pool = pool
        self.request = request
        self.sink = sink
        self.connection: Connection | None = None
        self.has_retried = False
        self.is_paused = False
        self.is_over = False

    def abort(self) -> None:
        """Close the connection, so that the engine aborts; no further callback. Harmless when already over."""
        if not self.is_over:
            self.finish()
            self._pool.aborted(self)

    def pause(self) -> None:
        """Stop reading: the client is slow. Also before the connection stands; harmless when over."""
        self.is_paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read again."""
        self.is_paused = False
        if self.connection is not None:
            self.connection.resume()

    def finish(self) -> UpstreamSink:
        """The sink, for its last callback; from now on this exchange keeps nothing alive."""
        sink, self.sink = self.sink, DEAF
        self.is_over = True
        self.request = b""
        return sink

    def fail(self, error: ReplicaError) -> None:
        """Tell the sink, unless the exchange is over."""
        if not self.is_over:
            self.finish().on_fail(error)


class Connection(asyncio.Protocol):
    """Opened for one exchange, later given others by its pool. `exchange` is None while idle."""

    __slots__ = ("_first", "_is_paused", "_is_reused", "_pool", "_reader", "_transport", "exchange")

    def __init__(self, pool: Pool, first: Exchange, max_head_bytes: int) -> None:
        self._pool = pool
        self._first: Exchange | None = first
        self._reader = AnswerReader(max_head_bytes)
        self._transport: asyncio.Transport | None = None
        self._is_reused = False
        self._is_paused = False
        self.exchange: Exchange | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether a next request may be written: the last answer allows it and nothing of its request is left over."""
        transport = self._transport
        return (
            self._reader.can_reuse
            and transport is not None
            and not transport.is_closing()
            # An answer that came before its request was written: the rest of the body must not be sent.
            and transport.get_write_buffer_size() == 0
        )

    @property
    def is_open(self) -> bool:
        """False once the transport is closing."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_stale(self) -> bool:
        """The exchange came on a used connection and not a byte of its answer has been seen."""
        return self._is_reused and not self._reader.has_begun

    def carry(self, exchange: Exchange) -> None:
        """Write the exchange's request and read its answer."""
        assert self.exchange is None, "a connection carries one exchange at a time"
        assert self._transport is not None, "a connection carries once it is connected"
        self.exchange = exchange
        exchange.connection = self
        self._reader.begin(exchange.sink)
        self._transport.write(exchange.request)
        if not self._is_reused:
            exchange.request = b""  # only a reused connection can turn out to be stale
        if exchange.is_paused:
            # Not at once: uvloop starts to read after `connection_made`, whatever was said inside it.
            asyncio.get_running_loop().call_soon(self._pause_for, exchange)

    def detach(self) -> Exchange | None:
        """The exchange it carried, which it forgets: nothing more is told to its sink from here."""
        exchange, self.exchange = self.exchange, None
        self._reader.sink = DEAF
        self._is_reused = True
        if exchange is not None:
            exchange.connection = None
        return exchange

    def close(self) -> None:
        """At once: what is not yet written is lost, and the engine sees its client leave."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading."""
        if not self._is_paused and self.is_open:
            self._is_paused = True
            cast("asyncio.Transport", self._transport).pause_reading()

    def _pause_for(self, exchange: Exchange) -> None:
        if self.exchange is exchange and exchange.is_paused:
            self.pause()

    def resume(self) -> None:
        """Read again."""
        if self._is_paused and self.is_open:
            self._is_paused = False
            cast("asyncio.Transport", self._transport).resume_reading()

    # What asyncio calls. A sink that raises ends up in the loop's exception handler, which closes the transport:
    # `connection_lost` then fails the exchange, and the pool has lost one connection and nothing else.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected (and, with TLS, shaken hands): the pool may use it."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first, self._first = self._first, None
        assert first is not None, "a connection is made once"
        self._pool.connected(self, first)

    def data_received(self, data: bytes) -> None:
        """A read: parse it, tell the sink, once flushed or ended."""
        exchange = self.exchange
        if exchange is None:  # nobody asked: a timeout notice or worse
            self._pool.broke(self, None)
            return
        exchange.request = b""
        try:
            is_complete = self._reader.feed(data)
        except ReplicaError as error:
            self._pool.broke(self, error)
            return
        if self.exchange is not exchange:  # aborted by one of its own callbacks
            return
        if is_complete:
            self._pool.done(self)
        else:
            exchange.sink.on_flush()

    def eof_received(self) -> None:
        """The engine closed its side: the end of the answer, or too early."""
        if self.exchange is not None and self._reader.end_of_stream():
            self._pool.done(self)
        else:
            self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone, for whatever reason; told only if that was not known yet."""
        if self.exchange is None or not self._reader.has_begun:
            self._pool.broke(self, None)
            return
        error = ReplicaError(Fault.RESET, f"the connection broke in mid-answer: {exc or 'closed by the engine'}")
        error.__cause__ = exc
        self._pool.broke(self, error)
