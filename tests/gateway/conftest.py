"""Gateways for tests, torn down in order; whatever a test does, nothing may be held when it is over."""

import asyncio
import contextlib

import pytest
import uvloop

from gateway import answer as client_answer
from tests.gateway.kit import Engines, running_gateway, settings_for

BOTH_LOOPS = {
    "test_http1.py",
    "test_slow_clients.py",
    "test_cancel.py",
}  # what depends on how a loop closes, pauses and resets


def pytest_asyncio_loop_factories(config, item):
    """The loops a test runs on, by the name that its id shows: uvloop, which production uses, where it may differ."""
    loops = {"asyncio": asyncio.new_event_loop}
    return loops | {"uvloop": uvloop.new_event_loop} if item.path.name in BOTH_LOOPS else loops


@pytest.fixture
def way(request):
    """ "hot" (our protocol class) or "asgi" (uvicorn's own); set by `pytest.mark.parametrize("way", …, indirect=True)`."""
    return getattr(request, "param", "hot")


@pytest.fixture
async def launch(tmp_path, way):
    """Starts gateways: `await launch(engines=2, kind="vllm", seats=4, timeouts={…})`; see kit.py."""
    async with contextlib.AsyncExitStack() as stack:
        count = 0

        async def start(*, engines=1, **options):
            nonlocal count
            count += 1
            scripted = Engines(engines)
            for engine in scripted.all:
                await stack.enter_async_context(engine)
            path = tmp_path / f"store-{count}.sqlite3"
            gateway = running_gateway(settings_for(scripted, **options), path, scripted, way=way)
            return await stack.enter_async_context(gateway)

        yield start


@pytest.fixture
def quick_commit(monkeypatch):
    """Headers of a silent stream are committed after 50 ms instead of a second."""
    monkeypatch.setattr(client_answer, "COMMIT_AFTER_S", 0.05)
