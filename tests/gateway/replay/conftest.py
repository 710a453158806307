"""A whole gateway with scripted engines, and traces small enough to be sent in a blink."""

import contextlib

import pytest

from gateway.simulation import mooncake
from tests.gateway.kit import Engines, running_gateway, settings_for
from tests.gateway.simulation.traces_kit import lines


@pytest.fixture
async def gateway(tmp_path):
    """Two engines behind a gateway."""
    async with contextlib.AsyncExitStack() as stack:
        scripted = Engines(2)
        for engine in scripted.all:
            await stack.enter_async_context(engine)
        yield await stack.enter_async_context(running_gateway(settings_for(scripted), tmp_path / "s.sqlite3", scripted))


@pytest.fixture
def recording():
    """Twelve turns of three chats."""
    return mooncake.record(lines(num=12, num_chats=3, gap_ms=10))


@pytest.fixture
def trace(tmp_path):
    """The same as a file."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(lines(num=12, num_chats=3, gap_ms=10)))
    return path
