"""Gateways for tests, torn down in order; whatever a test does, nothing may be held when it is over."""

import contextlib

import pytest

from tests.gateway.kit import Engines, running_gateway, settings_for


@pytest.fixture
def way(request):
    """"hot" (our protocol class) or "asgi" (uvicorn's own); set by `pytest.mark.parametrize("way", …, indirect=True)`."""
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
