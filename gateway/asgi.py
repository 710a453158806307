"""The same answers over plain ASGI, for requests that do not take the hot path, such as pipelined ones."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from engines.contract import Headers
from gateway.body import Bodies, Body
from gateway.edge import ABORT, Ask, Serve
from gateway.errors import Problem
from gateway.language import Language
from gateway.languages import language_of
from gateway.sink import Incoming, SinkWatcher
from policies.quota_refusal import Rejected

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HIGH_WATER_BYTES = 65536  # as uvicorn's own mark for a connection


class AsgiSink:
    """Collects what the lifecycle writes; `deliver` sends it. Bounded by the watcher's obedience and one read."""

    def __init__(self, drop: Callable[[], object] = lambda: None) -> None:
        """`drop`: closes the connection at once; a server that offers none closes it once everything is sent."""
        self._drop = drop
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._is_slow = False
        self._is_over = False
        self._watcher: SinkWatcher | None = None
        self._on_gone: Callable[[], object] | None = None
        self._delivery: asyncio.Task[Any] | None = None
        self.is_gone = False

    def start(self, status: int, headers: Headers, length: int | None) -> None:
        """The first message."""
        sized = [(b"content-length", b"%d" % length)] if length is not None else []
        self._put({"type": "http.response.start", "status": status, "headers": [*headers, *sized]})

    def write(self, data: bytes) -> None:
        """A body message."""
        if self._is_over or not data:
            return
        self._waiting_bytes += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if self._waiting_bytes > HIGH_WATER_BYTES and not self._is_slow:
            self._is_slow = True
            if self._watcher is not None:
                self._watcher.on_slow()

    def end(self) -> None:
        """The last message."""
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._finish()

    def abort(self) -> None:
        """Give up on the client: whoever answers it is told that it is gone, and the server closes the connection."""
        if not self._is_over:
            self.leave()
            self._drop()
            if self._delivery is not None:
                self._delivery.cancel()  # it may be waiting for a client that never reads

    def watch(self, watcher: SinkWatcher | None) -> None:
        """Who is told of a slow client."""
        self._watcher = watcher
        if watcher is not None and self._is_slow:
            watcher.on_slow()

    def on_gone(self, callback: Callable[[], object]) -> None:
        """Called by `leave`; at once if the client has left already."""
        self._on_gone = callback
        if self.is_gone:
            callback()

    def leave(self) -> None:
        """The client has left."""
        if self._is_over:
            return
        self.is_gone = True
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()
        self._finish()

    async def deliver(self, send: Send) -> None:
        """Send everything until the end. Runs in a task of its own, which `abort` cancels."""
        self._delivery = asyncio.current_task()
        while (message := await self._messages.get()) is not None:
            await send(message)
            self._waiting_bytes -= len(message.get("body", b""))
            if self._is_slow and self._waiting_bytes <= HIGH_WATER_BYTES // 4:
                self._is_slow = False
                if self._watcher is not None:
                    self._watcher.on_drained()

    def _put(self, message: Message) -> None:
        if not self._is_over:
            self._messages.put_nowait(message)

    def _finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._messages.put_nowait(None)


class _Unreadable(Exception):
    """The body passed a limit; its argument is the `Problem`."""


class InferenceRoute:
    """An ASGI app that runs the lifecycle for one path."""

    def __init__(self, serve: Serve, ask: Ask, bodies: Bodies) -> None:
        self._serve = serve
        self._ask = ask
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within its limit, then serve, watching for the client to leave."""
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        try:
            # The lifecycle needs no body to say that the caller is not known or has nothing left.
            problem = self._ask(headers)
            body = await self._read(receive) if problem is None else b""
        except _Unreadable as error:
            await self._refuse(send, error.args[0], language_of(scope["path"]))
            return
        if body is None:
            return
        sink = AsgiSink(scope.get("extensions", {}).get(ABORT, lambda: None))
        used_up = problem if isinstance(problem, Rejected) else None
        incoming = Incoming(scope["path"], headers, body, time.monotonic(), used_up=used_up)
        serving = asyncio.create_task(self._serve(incoming, sink))
        delivering = asyncio.create_task(sink.deliver(send))
        watching = asyncio.create_task(_watch_client(receive, sink))
        try:
            await asyncio.wait([serving, delivering])
        except asyncio.CancelledError:
            serving.cancel()  # it says so to the client, which must still be delivered
            await asyncio.wait([serving, delivering])
            raise
        finally:
            watching.cancel()
        if not delivering.cancelled():
            delivering.result()

    async def _refuse(self, send: Send, problem: Problem, language: Language) -> None:
        body = language.problem(problem, "")
        headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *problem.headers()]
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": problem.status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})

    async def _read(self, receive: Receive) -> bytes | None:
        """The body, None if the client left in the middle of it. Raises `_Unreadable`."""
        body = Body(self._bodies)
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                problem = body.add(message.get("body", b""))
                if problem is not None:
                    raise _Unreadable(problem)
                if not message.get("more_body", False):
                    return body.take()
        finally:
            body.drop()


async def _watch_client(receive: Receive, sink: AsgiSink) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    sink.leave()
