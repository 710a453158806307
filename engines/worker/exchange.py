"""One HTTP request and its answer over ASGI: a bounded body in, JSON or events out, and whether the client is there.

Knows HTTP, nothing of models. A client is gone when its connection closes or it closes its sending side (nothing can
tell the two apart in time); its work is then cancelled, queued or running, streamed or not.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from engines.worker.errors import ApiError

Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client left before its answer was complete."""


class Exchange:
    """One request. `has_started`: the status line is out, so an error can only follow as an event."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self.has_started = False
        self.answer_headers: Headers = []

    def header(self, name: bytes) -> str:
        """A request header as text, the first if there are several, empty if there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    async def read_body(self, limit: int, timeout_s: float) -> bytes:
        """The whole body.

        Raises `ClientGone`, or `ApiError`: 408 after `timeout_s`, 413 above `limit` bytes, 415 for packed bodies.
        """
        if self.header(b"content-encoding") not in ("", "identity"):
            raise ApiError(415, "the body must not be packed (content-encoding)")
        too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
        declared = self.header(b"content-length")
        if declared.isdecimal() and int(declared) > limit:
            raise too_large
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(limit, too_large)
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {timeout_s:g} s") from None

    async def _read(self, limit: int, too_large: ApiError) -> bytes:
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; when the client leaves, cancel it and raise `ClientGone`. The body must have been read."""
        working = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(self._disconnect())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_finished = working.done()
            working.cancel()
            watching.cancel()
            await asyncio.wait({working, watching})
        if not has_finished and working.cancelled():
            raise ClientGone
        working.result()

    async def send_json(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """A whole answer."""
        await self._start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body})

    async def send_error(self, error: ApiError) -> None:
        """An error instead of an answer, or as the last event of one that has begun; then no end marker follows."""
        if self.has_started:
            event = b"data: " + error.body(in_stream=True) + b"\n\n"
            await self._send({"type": "http.response.body", "body": event})
            return
        headers = error.headers()
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not worth reading
        await self.send_json(error.status, error.body(), headers)

    async def start_events(self) -> None:
        """Begin an answer of server-sent events."""
        await self._start(
            200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        )

    async def send_events(self, events: Sequence[bytes]) -> None:
        """Some events in one write. Waits while the client is slow."""
        body = b"".join([b"data: " + event + b"\n\n" for event in events])
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end_events(self) -> None:
        """The end marker, then the end."""
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.answer_headers]})

    async def _disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
