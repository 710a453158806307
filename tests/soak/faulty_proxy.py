"""A TCP proxy before one engine that does to some requests what networks and overloaded engines do.

It sees each request's first bytes alone: the gateway sends one request at a time on a connection.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from random import Random

_ANSWERS = {
    "429": b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    "500": b"HTTP/1.1 500 Oops\r\ncontent-type: text/plain\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops",
    "503": b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    "garbage": b"\x16\x03\x01 this is not HTTP\r\n\r\n",
    "no JSON": b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\nconnection: close\r\n\r\n{"a":',
    "too short": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{}",
    "dropped": b"",
}
_LATER = ("cut", "reset", "stalled")  # once some of the answer has passed
FAULTS = (*_ANSWERS, *_LATER, "slow", "silent")
_MOST_PASSED_BYTES = 1500
_SLOW_S = 0.5


class FaultyProxy:
    """Listens on `port` and passes on to `upstream_port`; `share` of the requests have a fault, of `FAULTS` by lot."""

    def __init__(self, upstream_port: int, random: Random, share: float) -> None:
        self.share = share
        self.counts: Counter[str] = Counter()
        self.port = 0
        self._upstream_port = upstream_port
        self._random = random
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Reset what is open and listen no more."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.add(writer)
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:  # the engine is dead
            self._end(writer)
            return
        self._writers.add(upstream[1])
        connection = _Connection((reader, writer), upstream)
        try:
            await self._pass_requests(connection)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            connection.answers.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await connection.answers
            self._end(writer)
            self._end(upstream[1])

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    async def _pass_requests(self, connection: "_Connection") -> None:
        while piece := await connection.reader.read(65536):
            fault = ""
            if piece.startswith(b"POST ") and self._random.random() < self.share:
                fault = self._random.choice(FAULTS)
                self.counts[fault] += 1
            if fault in _ANSWERS:
                connection.writer.write(_ANSWERS[fault])
                await connection.writer.drain()
                return
            if fault == "silent":
                await connection.reader.read()  # until the gateway gives up
                return
            if fault == "slow":
                await asyncio.sleep(_SLOW_S)
            connection.fault = fault if fault in _LATER else ""
            connection.bytes_left = self._random.randrange(_MOST_PASSED_BYTES)
            connection.upstream.write(piece)
            await connection.upstream.drain()


class _Connection:
    """One of the gateway's and the one to the engine that belongs to it. `answers`: what passes answers on."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.reader, self.writer = client
        self._answers, self.upstream = upstream
        self.fault = ""
        self.bytes_left = 0
        self.answers = asyncio.ensure_future(self._pass_answers())

    async def _pass_answers(self) -> None:
        while piece := await self._answers.read(65536):
            if self.fault and len(piece) > self.bytes_left:
                self.writer.write(piece[: self.bytes_left])
                if self.fault == "stalled":
                    return
                break
            self.bytes_left -= len(piece)
            self.writer.write(piece)
            await self.writer.drain()
        if self.fault == "reset":
            held = self.writer.get_extra_info("socket")
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        self.writer.close()
