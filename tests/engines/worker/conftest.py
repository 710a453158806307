"""Workers to talk to: one inside the test, by ASGI, and real processes."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engines.worker.app import build_app
from engines.worker.loaded import load_engine
from engines.worker.service import Service
from engines.worker.settings import WorkerSettings
from tests.engines.worker.processes import WorkerProcess
from tests.engines.worker.scripted import fake_options

_REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
async def make_service():
    """A function that makes a running service on the fake engine; all of them are quiescent and closed at the end."""
    services = []

    def make(settings=None, template=None, embeddings=..., **options) -> Service:
        loaded = load_engine(fake_options(**options))
        if template is not None:
            loaded.model.chat_template = template
        if embeddings is not ...:
            loaded = replace(loaded, embeddings=embeddings)
        given = {"name": "fake", "engine": "fake", "default_max_tokens": 64} | (settings or {})
        service = Service(loaded, WorkerSettings(**given), asyncio.get_running_loop())
        loaded.start()
        services.append(service)
        return service

    yield make
    for service in services:
        assert service.num_requests == 0
        assert service.link.num_open == 0
        await asyncio.to_thread(service.close)
        assert service.loaded.engine.num_open == 0


@pytest.fixture
async def service(make_service) -> Service:
    """One service with the usual sizes."""
    return make_service()


@pytest.fixture
async def client(service: Service):
    """An HTTP client of that service, without sockets."""
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        yield client


@pytest.fixture(scope="module")
def fake_worker():
    """A real worker process on the fake engine, shared by the tests of a module; it must exit with 0."""
    with WorkerProcess(
        "--engine", "fake", "--fake-base-s", "0.002", "--fake-eos-every", "0", "--log-level", "debug"
    ) as worker:
        yield worker
        assert worker.stop() == 0


@pytest.fixture
def start_worker():
    """A function that starts a worker process with options of its own; what still runs at the end is killed."""
    started = []

    def start(*options: str) -> WorkerProcess:
        worker = WorkerProcess("--engine", "fake", "--fake-base-s", "0.002", "--log-level", "debug", *options)
        started.append(worker)
        return worker.__enter__()

    yield start
    for worker in started:
        worker.__exit__(None, None, None)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file, fetched once."""
    from engines.launch.demo_model import ensure_demo_model

    return ensure_demo_model(Path(os.environ.get("WARMLANE_TEST_MODELS", _REPOSITORY / ".warmlane" / "models")))
