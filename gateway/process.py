"""One gateway process: `python -m gateway.process --home D --control SOCKET [--config F] [--port N]`.

Started by the supervisor. Prints a ready line when it listens. On SIGTERM readiness goes red, the listener closes,
whoever waits is refused, open streams go on for `drain_s`, the rest ends with an error event; exit 0.
"""

import asyncio
import errno
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from gateway import server
from gateway.app import Gateway
from gateway.home import store_path
from gateway.settings import ConfigError, Settings, load
from observability import logs
from policies.sqlite_store import SqliteStore
from policies.store import StoreError


def main(
    home: Annotated[Path, typer.Option(help="the folder with the store")],
    control: Annotated[Path, typer.Option(help="path of the control socket")],
    config: Annotated[Path | None, typer.Option(help="the configuration file")] = None,
    port: Annotated[int | None, typer.Option(help="instead of gateway.port")] = None,
) -> None:
    """Run one gateway process.

    Example: python -m gateway.process --home .warmlane --control .warmlane/run/gateway-0.sock
    """
    try:
        settings = load(config)
        logs.configure(settings.telemetry.log_level, "gateway")
        code = uvloop.run(_run(settings, home, control, settings.gateway.port if port is None else port))
    except (ConfigError, StoreError) as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    raise typer.Exit(code)


async def _run(settings: Settings, home: Path, control: Path, port: int) -> int:
    host = settings.gateway.host
    try:
        listener = server.listen(host, port)
    except OSError as error:
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        sys.stderr.write(f"cannot listen on {host}:{port}: {why}; choose another with --port or WARMLANE_PORT\n")
        return 1
    async with await SqliteStore.open(store_path(settings.store.url, home)) as store:
        gateway = Gateway(settings, store)
        await gateway.parts.directory.refresh()
        try:
            await _serve(gateway, settings, listener, server.listen_unix(control))
        finally:
            server.forget_unix(control)
    return 0


async def _serve(gateway: Gateway, settings: Settings, listener: socket.socket, control: socket.socket) -> None:
    public = server.data_plane(
        gateway.app(),
        gateway.protocol(),
        drain_s=settings.gateway.drain_s,
    )
    private = server.control_plane(gateway.control)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, public)
    host, port = listener.getsockname()[:2]
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(public.serve(sockets=[listener]))
        controlling = group.create_task(private.serve(sockets=[control]))
        await public.listening.wait()
        await private.listening.wait()
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"ready url=http://{shown}:{port}/v1\n")
        sys.stdout.flush()
        stopping = group.create_task(_stop_when_told(stop, gateway, public))
        await asyncio.wait([serving])
        stopping.cancel()
        gateway.parts.recorder.flush()  # uvicorn does not end the lifespan, which does it too, when it is in a hurry
        private.should_exit = True
        await asyncio.wait([controlling])


def _on_signal(stop: asyncio.Event, public: server.QuietServer) -> None:
    """The first signal drains, the second ends the grace."""
    if stop.is_set():
        public.end_grace()
    stop.set()


async def _stop_when_told(stop: asyncio.Event, gateway: Gateway, public: server.QuietServer) -> None:
    await stop.wait()
    logs.get().info("gateway.draining", in_flight=gateway.lifecycle.num_in_flight)
    gateway.drain()
    await asyncio.sleep(server.UNREADY_BEFORE_CLOSE_S)
    public.should_exit = True


if __name__ == "__main__":
    typer.run(main)
