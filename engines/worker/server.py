"""The process around a service: one event loop, one listening socket, and an end in order.

The only module that knows uvicorn and uvloop. Signals are ours, because uvicorn would raise them again at its end and
a stopped worker must exit with 0.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop

from engines.plain_http import BoundedHttpProtocol
from engines.worker.app import build_app
from engines.worker.loaded import CannotStart, LoadedEngine
from engines.worker.served_file import until_changed
from engines.worker.service import Service
from engines.worker.settings import WorkerSettings
from observability import logs

_BACKLOG = 2048
_CLOSE_S = 1  # for connections that still have bytes to send after the drain


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that nobody connects before the model is loaded.

    Raises `CannotStart` when the address is taken or not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(f"{host} is not an address of this machine: {error.strerror}") from error
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise CannotStart(f"port {port} on {host} cannot be used: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _listen(listener: socket.socket) -> None:
    """Listen on a bound socket. NOTE: uvloop, left to do it, does not tell that another socket listens already."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise CannotStart(f"port {listener.getsockname()[1]} cannot be used: {error.strerror}") from error


def run(loaded: LoadedEngine, settings: WorkerSettings, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Returns when all is closed; the engine is stopped in any case.

    Raises `CannotStart` when the model's file was changed under it.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(loaded, settings, listener, on_ready))
    finally:
        loaded.close()


async def _serve(
    loaded: LoadedEngine, settings: WorkerSettings, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    _listen(listener)
    service = Service(loaded, settings, loop)
    loaded.start()

    def on_signal() -> None:
        if stop.is_set():
            service.end_open_requests()  # asked twice: do not wait any longer
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    server = _Server(_config(service), on_ready)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        is_changed = await _first(serving, stop, loaded)
        if serving.done():
            serving.result()  # it never ends by itself; if it broke, say how
        if is_changed:
            service.end_open_requests()  # what they would still get is noise
        logs.get().info("worker.draining", requests=service.num_requests)
        is_complete = await service.drain()
        logs.get().info("worker.drained", is_complete=is_complete, requests=service.num_requests)
        server.should_exit = True
        await serving
    finally:
        service.close()
    if is_changed and loaded.file is not None:
        raise CannotStart(
            f"the model file {loaded.file.path} was written to while it was served; give a new model a file of its "
            "own, or move it over the old one"
        )


async def _first(serving: asyncio.Future[None], stop: asyncio.Event, loaded: LoadedEngine) -> bool:
    """Wait for the server's end, a signal, or a change of the model's file; whether it was the last."""
    stopping = asyncio.ensure_future(stop.wait())
    changing = asyncio.ensure_future(until_changed(loaded.file))
    all_ends: set[asyncio.Future[Any]] = {serving, stopping, changing}
    await asyncio.wait(all_ends, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    is_changed = changing.done()
    changing.cancel()
    return is_changed


class _Server(uvicorn.Server):
    """uvicorn without its hold on signals, and with a word when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        build_app(service),
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_CLOSE_S,
        timeout_keep_alive=75,
    )
