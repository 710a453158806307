"""uvicorn, driven by us: our sockets, our signals, our order of stopping."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from engines.plain_http import PlainHttpProtocol

LISTEN_BACKLOG = 4096
LAST_WORDS_S = 0.5  # chosen: enough to write an error event to a client that reads
UNREADY_BEFORE_CLOSE_S = 0.3  # chosen: a load balancer on this node sees the red readiness before connects fail


class QuietServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner, says when it listens and stops when told."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, then say so."""
        await super().startup(sockets)
        self.listening.set()

    def end_grace(self) -> None:
        """Let open answers end now, each with its error event; whoever does not read that is not waited for."""
        for task in list(self.server_state.tasks):
            task.cancel()
        asyncio.get_running_loop().call_later(LAST_WORDS_S, setattr, self, "force_exit", True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, not to a server."""
        yield


def data_plane(app: object, protocol: type[asyncio.Protocol], *, drain_s: float) -> QuietServer:
    """The server of the public port. `drain_s`: how long open answers may take once it is told to stop."""
    return QuietServer(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # an ASGI app
            http=protocol,
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=drain_s,  # type: ignore[arg-type]  # waits as well for part of a second
            backlog=LISTEN_BACKLOG,
        )
    )


def control_plane(app: object) -> QuietServer:
    """The server of the control socket."""
    return QuietServer(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # an ASGI app
            http=PlainHttpProtocol,
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A listening TCP socket. Raises `OSError` if the address cannot be had.

    `is_shared`: other processes of this user listen there too, and the kernel spreads the connections over them. So it
    is only bound: it listens once the server starts, when this process can serve as well as the others.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP, or asyncio does not set TCP_NODELAY on what it accepts.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        if not is_shared:
            listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can reach; what an earlier process left is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def forget_unix(path: Path) -> None:
    """Remove a Unix socket's file."""
    path.unlink(missing_ok=True)
