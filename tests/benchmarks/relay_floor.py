"""The floor: a Python relay that copies bytes between a client and an engine and looks at none of them.

    python -m tests.benchmarks.relay_floor --backend http://127.0.0.1:9001 http://127.0.0.1:9002

What it costs is what sockets cost in Python; a gateway is judged by its ratio to it in the same run.
"""

import argparse
import asyncio
import itertools
from collections.abc import Iterator
from urllib.parse import urlsplit

import uvloop

from tests.benchmarks.mock_engine import serve


class Upper(asyncio.Protocol):
    """The connection to the engine."""

    def __init__(self, lower: "Lower") -> None:
        self._lower = lower

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._lower.connected(transport)

    def data_received(self, data: bytes) -> None:
        self._lower.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lower.transport.close()


class Lower(asyncio.Protocol):
    """The connection from the client; each has one to an engine, by turns."""

    engines: Iterator[tuple[str, int]]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._upper: asyncio.BaseTransport | None = None
        self._early: list[bytes] = []
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(loop.create_connection(lambda: Upper(self), *next(self.engines)))

    def connected(self, transport: asyncio.BaseTransport) -> None:
        self._upper = transport
        if self._early:
            transport.write(b"".join(self._early))

    def data_received(self, data: bytes) -> None:
        if self._upper is None:
            self._early.append(data)
        else:
            self._upper.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upper is not None:
            self._upper.close()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--backend", nargs="+", required=True)
    options = parser.parse_args()
    backends = [urlsplit(url) for url in options.backend]
    Lower.engines = itertools.cycle([(backend.hostname, backend.port) for backend in backends])
    uvloop.run(serve(Lower, [options.port]))


if __name__ == "__main__":
    main()
