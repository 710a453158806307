"""The admin plane's listener inside the supervisor."""

import asyncio
import os
import signal

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.admin_listener import serving
from gateway.ports import check_port, listen_on

APP = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("here"))])


async def test_it_serves_inside_the_block_and_frees_its_port_after():
    """The next start finds the port free."""
    listener = listen_on("127.0.0.1", 0, remedy="")
    port = listener.getsockname()[1]
    async with serving(APP, listener) as task, httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "here"
        assert not task.done()
    assert task.done()
    check_port("127.0.0.1", port, remedy="")


async def test_our_signal_handling_stays_ours():
    """uvicorn takes SIGTERM and raises it again at its end: the exit status would not be 0."""
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        async with serving(APP, listen_on("127.0.0.1", 0, remedy="")) as task:
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            await heard.wait()
            assert not task.done()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_an_abandoned_block_ends_the_server():
    """A failure elsewhere must not leave the listener."""
    listener = listen_on("127.0.0.1", 0, remedy="")
    port = listener.getsockname()[1]
    with pytest.raises(RuntimeError, match="elsewhere"):
        async with serving(APP, listener):
            raise RuntimeError("elsewhere")
    check_port("127.0.0.1", port, remedy="")
