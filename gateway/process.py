"""One gateway process: `python -m gateway.process --home D --control SOCKET …`, as `gateway/launch_plan.py` has it.

Started by the supervisor. Prints a ready line when it listens, with the id of its leases if it has some. On SIGTERM
readiness goes red, the listener closes, whoever waits is refused, open streams go on for `drain_s`, the rest ends with
an error event; exit 0.
"""

import asyncio
import contextlib
import errno
import gc
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
import uvloop

from gateway import server
from gateway.announced import Announcement
from gateway.app import Gateway
from gateway.gossip import Line
from gateway.isolation import opened_claims
from gateway.ledger import opened_books
from gateway.settings import ConfigError, Settings, load
from gateway.stores import is_made, opened, store_name
from observability import logs
from policies.store import StoreError, StoreLost

if TYPE_CHECKING:
    from gateway.redis_peers import RedisPeers

GC_THRESHOLDS = (5000, 20, 20)  # chosen: a young collection in a hundred requests, not in sixteen; 4 to 10% of the CPU


def main(  # noqa: PLR0917  # the options of a command line
    home: Annotated[Path, typer.Option(help="the folder with the store")],
    control: Annotated[Path, typer.Option(help="path of the control socket")],
    config: Annotated[Path | None, typer.Option(help="the configuration file")] = None,
    port: Annotated[int | None, typer.Option(help="instead of gateway.port")] = None,
    number: Annotated[int, typer.Option(help="which of the node's gateway processes this is", min=1)] = 1,
    fleet: Annotated[str, typer.Option(help="the workers that live now, as PUT /fleet has them")] = '{"replicas":[]}',
) -> None:
    """Run one gateway process.

    Example: python -m gateway.process --home .warmlane --control .warmlane/run/gateway-0.sock
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the supervisor's affair, however it was sent
    try:
        settings = load(config)
        logs.configure(settings.telemetry.log_level, "gateway")
        port = settings.gateway.port if port is None else port
        workers = msgspec.json.decode(fleet, type=Announcement)
        code = uvloop.run(_run(settings, home, control, port=port, number=number, workers=workers))
    except (ConfigError, StoreError, msgspec.MsgspecError) as error:
        logs.write_sentence(str(error))
        code = 1
    raise typer.Exit(code)


async def _run(settings: Settings, home: Path, control: Path, *, port: int, number: int, workers: Announcement) -> int:
    host = settings.gateway.host
    try:
        listener = server.listen(host, port, is_shared=settings.gateway.processes > 1)
    except OSError as error:
        why = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror
        logs.write_sentence(f"cannot listen on {host}:{port}: {why}; choose another with --port or WARMLANE_PORT")
        return 1
    if not await is_made(settings.store, home):  # the supervisor makes it: a new one here would hide that it was lost
        raise StoreLost(f"store lost: {store_name(settings.store, home)} is not there, restore it or restart")
    async with (
        opened(settings.store, home) as store,
        opened_claims(settings.store, home) as claims,
        opened_books(settings, home, f"gateway-{number}") as books,
        contextlib.AsyncExitStack() as leases,
    ):
        peers = _peers(settings) if settings.store.is_shared else None
        gateway = Gateway(settings, store, peers, claims, books, line=_line(settings))
        await gateway.parts.directory.refresh()
        await gateway.recount()
        gateway.parts.fleet.announce(workers)
        if settings.gateway.processes > 1:  # connections come at once, and others could serve them already
            await gateway.parts.fleet.probe_all()
        if peers is not None:
            peers.on_raise = gateway.parts.dispatch.recheck
            await leases.enter_async_context(peers)
            await peers.until_granting()
        lease_id = f" gateway={peers.gateway}" if peers is not None else ""
        try:
            await _serve(gateway, settings, listener, server.listen_unix(control), lease_id=lease_id)
        finally:
            server.forget_unix(control)
    return 0


def _peers(settings: Settings) -> "RedisPeers":
    from gateway.redis_peers import RedisPeers  # one process with SQLite loads nothing of it

    return RedisPeers(settings.store.url)


def _line(settings: Settings) -> Line | None:
    """Where gateways tell each other of routing; None where there are no others, or they shall not."""
    if not (settings.store.is_shared and settings.gateway.gossip):
        return None
    from gateway.redis_gossip import RedisLine

    return RedisLine(settings.store.url)


async def _serve(
    gateway: Gateway, settings: Settings, listener: socket.socket, control: socket.socket, *, lease_id: str
) -> None:
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
        _spare_collections()
        shown = f"[{host}]" if ":" in host else host
        sys.stdout.write(f"ready url=http://{shown}:{port}/v1{lease_id}\n")
        sys.stdout.flush()
        stopping = group.create_task(_stop_when_told(stop, gateway, public))
        await asyncio.wait([serving])
        stopping.cancel()
        gateway.parts.recorder.flush()  # uvicorn does not end the lifespan, which does it too, when it is in a hurry
        private.should_exit = True
        await asyncio.wait([controlling])


def _spare_collections() -> None:
    """What start-up made stays and need not be looked through again; requests leave no rings (test_rings.py)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


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
