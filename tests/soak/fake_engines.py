"""Fake engines as processes of their own behind faulty proxies: killed, started again and stopped for a while."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from random import Random

import httpx

from tests.benchmarks.processes import free_port
from tests.soak.faulty_proxy import FaultyProxy
from tests.soak.gateway_traffic import MODEL


class FakeEngine:
    """One worker on a port that it keeps, and the proxy before it."""

    def __init__(self, random: Random, share: float, log: Path) -> None:
        self.proxy = FaultyProxy(free := free_port(), random, share)
        self.num_kills = self.num_stops = 0
        self._port = free
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """The proxy and the worker, until it says that it is ready."""
        if not self.proxy.port:
            await self.proxy.start()
        options = ("--max-seqs", "6", "--kv-tokens", "4096", "--fake-base-s", "0.01", "--fake-per-row-s", "0.001")
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "engines.worker", "--engine", "fake", "--model", MODEL),
                *("--port", str(self._port), "--die-with-parent", "--check-when-idle", "--drain-s", "1", *options),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        await self._process.stdout.readline()

    async def kill(self, number: int = signal.SIGKILL) -> None:
        """End it."""
        if self._process is not None and self._process.returncode is None:
            self.num_kills += 1
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            await self._process.wait()

    async def stall(self, seconds: float) -> None:
        """It stands still for so long."""
        if self._process is not None and self._process.returncode is None:
            self.num_stops += 1
            self._process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGCONT)

    async def trouble(self, random: Random, every_s: float) -> None:
        """Kill or stall it now and then, until cancelled; then it runs again."""
        try:
            while True:
                await asyncio.sleep(random.expovariate(1 / every_s))
                if random.random() < 0.5:
                    await self.stall(random.uniform(0.5, 5.0))
                    continue
                await self.kill(random.choice([signal.SIGKILL, signal.SIGTERM]))
                await asyncio.sleep(random.uniform(0.0, 3.0))
                await self.start()
        finally:
            if self._process is None or self._process.returncode is not None:
                await self.start()

    async def load(self, client: httpx.AsyncClient) -> int:
        """Requests that it has open."""
        told = (await client.get(f"http://127.0.0.1:{self._port}/load")).json()
        return int(told["running"] + told["waiting"])

    async def stop(self) -> None:
        """End both."""
        await self.kill()
        await self.proxy.stop()
