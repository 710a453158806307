"""The admin plane's HTTP listener inside the supervisor, ended by the supervisor and by nobody else."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from gateway.server import control_plane


@contextlib.asynccontextmanager
async def serving(app: object, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Serve `app` on `listener` inside the block; the task ends early only when the server failed.

    Leaving the block closes the listener, lets requests in flight end for a moment, and waits for the server.
    """
    server = control_plane(app)
    task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="admin listener")
    try:
        yield task
    finally:
        server.should_exit = True
        await task
        listener.close()
