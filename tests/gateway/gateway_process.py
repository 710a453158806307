"""One real gateway process against a scripted engine: its ready line, its log as records, its end."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

from policies.sqlite_store import SqliteStore
from policies.store import NewKey
from tests.gateway.client import Client
from tests.gateway.kit import MODEL
from tests.scripted_engine import PATIENCE_S, within_patience

CONFIG = """
[gateway]
port = 0
drain_s = {drain_s}
[[replicas]]
name = "r1"
model = "{model}"
engine = "warmlane"
url = "{url}"
seats = {seats}
"""


class GatewayProcess:
    """`key` opens it. `lines`: what its log said so far, parsed."""

    def __init__(self, process, port, key):
        self.process = process
        self.port = port
        self.key = key
        self.lines = []
        self.clients = []
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self):
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))

    @property
    def records(self):
        """The records among the log lines."""
        return [line for line in self.lines if line["event"] == "request.finished"]

    def stop(self, number=signal.SIGTERM):
        """Send it a signal."""
        self.process.send_signal(number)

    async def exit_code(self):
        """Its exit status, once it and its log have ended."""
        code = await within_patience(self.process.wait())
        await within_patience(self._reading)
        return code

    async def connect(self):
        """A client's connection."""
        client = await Client.open(self.port)
        self.clients.append(client)
        return client

    async def start(self, body, **options):
        """A client whose request is sent."""
        client = await self.connect()
        client.send(body, **{"key": self.key, **options})
        return client

    async def readiness(self):
        """Status of GET /health/ready; None if nobody listens any more."""
        try:
            client = await self.connect()
            client.send(None, path="/health/ready", method="GET", close=True)
            status = (await client.answer()).status
        except (OSError, asyncio.IncompleteReadError):
            return None
        client.close()
        return status

    async def until_ready(self):
        """Wait until its replica answered."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.readiness() != 200:
                pass

    async def until_read(self):
        """Return once it has read what was sent to it before: a later question is answered."""
        assert await self.readiness() == 200


@contextlib.asynccontextmanager
async def gateway_process(engine, *, drain_s, seats=8):
    """A ready gateway process, killed if it is still there at the end."""
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        home = Path(folder)
        async with await SqliteStore.open(home / "warmlane.sqlite3") as store:
            organization = await store.create_organization("o")
            project = await store.create_project("p", organization.id)
            _, secret = await store.create_key(NewKey(project_id=project.id, name="k"))
        config = home / "config.toml"
        config.write_text(CONFIG.format(drain_s=drain_s, model=MODEL, url=engine.url, seats=seats))
        command = [
            "-m",
            "gateway.process",
            "--home",
            folder,
            "--control",
            str(home / "c.sock"),
            "--config",
            str(config),
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMLANE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        running = None
        try:
            ready = (await within_patience(process.stdout.readline())).decode()
            assert ready.startswith("ready url=http://127.0.0.1:"), (await process.stderr.read()).decode()
            running = GatewayProcess(process, int(ready.rpartition(":")[2].removesuffix("/v1\n")), secret.text)
            await running.until_ready()
            yield running
        finally:
            for client in running.clients if running else ():
                client.writer.transport.abort()
            if process.returncode is None:
                process.kill()
            await process.wait()
            process._transport.close()
