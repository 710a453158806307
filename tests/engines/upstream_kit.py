"""What the tests of the upstream pool share: a sink that keeps what it is told."""

import asyncio
import contextlib

from engines.contract import Headers, ReplicaError
from tests.scripted_engine import within_patience

BODY = b'{"model": "m"}'
STREAM = b'{"model": "m", "stream": true}'
CHAT = "/v1/chat/completions"


class RecordingSink:
    """Keeps callbacks in order. `raises_in`: the callback that fails like a bug would."""

    def __init__(self, raises_in: str | None = None) -> None:
        self.calls: list[str] = []
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.error: ReplicaError | None = None
        self.num_endings = 0
        self.raises_in = raises_in
        self.exchange = None  # set it to abort or pause from a callback
        self.on_call = None
        self._over = asyncio.Event()
        self._news = asyncio.Event()

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers
        self._note("head")

    def on_data(self, data: bytes) -> None:
        self.body += data
        self._note("data")

    def on_flush(self) -> None:
        self._note("flush")

    def on_end(self) -> None:
        self.num_endings += 1
        self._over.set()
        self._note("end")

    def on_fail(self, error: ReplicaError) -> None:
        self.num_endings += 1
        self.error = error
        self._over.set()
        self._note("fail")

    def _note(self, name: str) -> None:
        self.calls.append(name)
        self._news.set()
        if self.on_call is not None:
            self.on_call(name)
        if self.raises_in == name:
            raise RuntimeError(f"bug in {name}")

    async def over(self) -> "RecordingSink":
        """This sink, once it was told of its end."""
        await within_patience(self._over.wait())
        return self

    async def has(self, text: bytes) -> None:
        """Wait until the body holds that text."""
        while text not in self.body:
            self._news.clear()
            await within_patience(self._news.wait())


@contextlib.asynccontextmanager
async def raw_server(serve, **options):
    """A server that gives each connection to `serve(reader, writer)`; gives its port, and leaves nothing open behind."""
    tasks = []

    async def handle(reader, writer):
        tasks.append(asyncio.current_task())
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
