"""The upstream pool is tested on both event loops it may run on; everything else here on asyncio's."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """The loops a test runs on, by the name that its id shows."""
    if item.path.name.startswith("test_upstream"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
