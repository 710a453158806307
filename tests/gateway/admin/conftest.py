"""A store, a scripted gateway process on a Unix socket, and the admin plane between them."""

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin.app import create_admin_app
from gateway.admin.control_client import GatewayControl
from policies.sqlite_store import SqliteStore

TOKEN = "admin-token-0123456789"
START = 1_700_000_000.0


@dataclass
class FakeGateway:
    """Answers on a Unix socket from a script and remembers what it was asked. Silent where told to be."""

    socket: Path
    answers: dict[tuple[str, str], tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    is_silent: bool = False

    def will(self, method: str, path: str, answer: Any = None, status: int = 200) -> None:
        self.answers[method, path] = (status, {} if answer is None else answer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n", 1)[0].split(" ")
        lengths = [int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")]
        body = await reader.readexactly(lengths[0]) if lengths else b""
        self.asked.append((method, target, body))
        if self.is_silent:
            await reader.read()  # until the asker gives up
            return
        status, answer = self.answers.get((method, target), (404, {"error": {"message": "unknown"}}))
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(content)))
        writer.write(content)
        await writer.drain()


@pytest.fixture
def sockets():
    # A Unix socket's path has at most about 100 bytes, which tmp_path can exceed.
    folder = Path(tempfile.mkdtemp(prefix="wl-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def start_gateway(sockets):
    """Starts scripted gateways; each confirms directory refreshes unless told otherwise."""
    servers = []

    async def start() -> FakeGateway:
        gateway = FakeGateway(sockets / f"{len(servers)}.sock")
        gateway.will("POST", "/directory/refresh")
        servers.append(await asyncio.start_unix_server(gateway.serve, gateway.socket))
        return gateway

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.fixture
async def gateway(start_gateway):
    return await start_gateway()


@pytest.fixture
def control(gateway):
    return GatewayControl(lambda: [gateway.socket], timeout_s=5.0)


@pytest.fixture
async def store(tmp_path):
    async with await SqliteStore.open(tmp_path / "store.sqlite3", lambda: START) as opened:
        yield opened


@pytest.fixture
def app(store, control):
    settings = {"store": {"url": "redis://user:hunter2@host/0"}, "gateway": {"port": 8080, "admin_token": "hunter2"}}
    return create_admin_app(store, control, TOKEN, config=lambda: settings, clock=lambda: START)


@pytest.fixture
async def admin(app):
    """An HTTP client with the admin token."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
        yield client


@pytest.fixture
async def organization(admin):
    return (await admin.post("/admin/v1/organizations", json={"name": "acme"})).json()


@pytest.fixture
async def project(admin, organization):
    body = {"name": "chat", "organization_id": organization["id"]}
    return (await admin.post("/admin/v1/projects", json=body)).json()


@pytest.fixture
async def key(admin, project):
    return (await admin.post("/admin/v1/keys", json={"name": "laptop", "project_id": project["id"]})).json()
