"""A soak's course: traffic and trouble, then a rest at which everything must hold."""

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psutil

from tests.soak.fake_engines import FakeEngine
from tests.soak.gateway_asking import Ending, ask
from tests.soak.gateway_checks import compare_endings, compare_ledger, compare_sums, outcomes_counted
from tests.soak.gateway_report import Report, Sample
from tests.soak.gateway_tenants import Tenants, admin_client
from tests.soak.gateway_traffic import Traffic

_PATIENCE_S = 45.0  # longer than any timeout in the gateway's configuration
_POLL_S = 0.3
_SAMPLE_EVERY_S = 2.0
_THINKS_S = 0.3  # mean
_TROUBLE_EVERY_S = 15.0  # mean, of each engine
_MAX_REMEMBERED = 10_000


class Soak:
    """One run against one gateway."""

    def __init__(
        self,
        report: Report,
        ready: Mapping[str, str],
        tenants: Tenants,
        engines: Sequence[FakeEngine],
        *,
        pid: int,
        home: Path,
        log: Path,
    ) -> None:
        self._report = report
        self.ready = ready
        self._url = ready["url"].removesuffix("/v1")
        self.port = int(self._url.rpartition(":")[2])
        self._tenants = tenants
        self._engines = engines
        self._pid = pid
        self._home = home
        self._log = log
        self._num_read = 0
        self._traffic = Traffic(report.seed)
        self._last_response: dict[str, str] = {}
        self._endings: list[Ending] = []  # since the last rest
        self._records: list[dict[str, Any]] = []  # all
        self._num_compared = 0
        self._started = time.monotonic()
        self.patience_s = _PATIENCE_S

    async def run(self, num_clients: int, pause_every_s: float, random: Random) -> None:
        """Traffic and rests by turns until the time is over."""
        await self._until_served()
        self._started = time.monotonic()
        end_s = self._report.minutes * 60
        async with admin_client(self.ready) as admin:
            while (elapsed := self._elapsed()) < end_s:
                until = self._started + min(elapsed + pause_every_s, end_s)
                await self._busy(admin, num_clients, until, random)
                await self.rest(admin)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    async def _until_served(self) -> None:
        async with httpx.AsyncClient() as client, asyncio.timeout(_PATIENCE_S):
            while (await client.get(f"{self._url}/health/ready")).status_code != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(_POLL_S)

    async def _busy(self, admin: httpx.AsyncClient, num_clients: int, until: float, random: Random) -> None:
        trouble = [asyncio.ensure_future(engine.trouble(random, _TROUBLE_EVERY_S)) for engine in self._engines]
        try:
            async with (
                httpx.AsyncClient(base_url=self._url, timeout=60, limits=httpx.Limits(max_connections=100)) as client,
                asyncio.TaskGroup() as group,
            ):
                for _ in range(num_clients):
                    group.create_task(self._be_a_client(client, until, random))
                group.create_task(self._watch(admin, until))
        finally:
            for task in trouble:
                task.cancel()
            await asyncio.gather(*trouble, return_exceptions=True)

    async def _be_a_client(self, client: httpx.AsyncClient, until: float, random: Random) -> None:
        while time.monotonic() < until:
            wanted = self._traffic.next(self._last_response)
            ending = await ask(client, wanted, self._tenants.key(wanted.tenant))
            self._endings.append(ending)
            self._report.requests[ending.kind] += ending.num_sent
            self._report.seen[f"{ending.seen} {ending.status}"] += 1
            if ending.response_id is not None and ending.seen == "done" and wanted.tenant is not None:
                self._last_response[wanted.tenant] = ending.response_id
            await asyncio.sleep(random.expovariate(1 / _THINKS_S))

    async def _watch(self, admin: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            self._sample((await admin.get("/statistics")).json(), is_rest=False)
            await asyncio.sleep(_SAMPLE_EVERY_S)

    def _sample(self, statistics: Mapping[str, Any], *, is_rest: bool) -> None:
        processes = [psutil.Process(self._pid), *psutil.Process(self._pid).children(recursive=True)]
        self._report.samples.append(
            Sample(
                at_s=round(self._elapsed(), 1),
                is_rest=is_rest,
                rss_mb=round(sum(one.memory_info().rss for one in processes) / 1e6, 2),
                files=sum(one.num_fds() for one in processes),
                sockets=self._client_sockets(processes),
                in_flight=statistics["in_flight"]["requests"],
                tasks=statistics["tasks"],
            )
        )

    def _client_sockets(self, processes: Sequence[psutil.Process]) -> int:
        held = (socket for one in processes for socket in one.net_connections("tcp"))
        return sum(one.laddr.port == self.port and one.status != psutil.CONN_LISTEN for one in held)

    async def rest(self, admin: httpx.AsyncClient) -> None:
        """Nothing is asked any more: everything must come to rest, and all must have been told alike."""
        statistics: dict[str, Any] = {}
        deadline = time.monotonic() + self.patience_s
        while time.monotonic() < deadline:
            statistics = (await admin.get("/statistics")).json()
            self._sample(statistics, is_rest=False)
            is_idle = not any(statistics["in_flight"].values()) and not statistics["ledger"]["waiting"]
            if is_idle and not self._report.samples.pop().sockets:
                break
            await asyncio.sleep(_POLL_S)
        self._sample(statistics, is_rest=True)
        await self._check_rest(admin, statistics)
        await self._compare(admin)

    async def _check_rest(self, admin: httpx.AsyncClient, statistics: Mapping[str, Any]) -> None:
        report, sample = self._report, self._report.samples[-1]
        at = f"at {sample.at_s:.0f} s"
        held = {name: value for name, value in statistics["in_flight"].items() if value}
        report.add("nothing in flight at rest", [f"{at}: {held}"] if held else [])
        report.add("no client socket at rest", [f"{at}: {sample.sockets}"] if sample.sockets else [])
        if statistics["remembered"] > _MAX_REMEMBERED:
            report.add("receipts bounded", [f"{at}: {statistics['remembered']}"])
        for replica in (await admin.get("/replicas")).json()["data"]:
            if any(replica["in_flight"].values()) or replica["outstanding_tokens"]:
                report.add("no seat at rest", [f"{at}: {replica}"])
        async with httpx.AsyncClient(timeout=20) as client:
            for number, engine in enumerate(self._engines):
                with contextlib.suppress(httpx.HTTPError):
                    if num := await engine.load(client):
                        report.add("engines at rest", [f"{at}: {num} open in engine {number}"])

    async def _compare(self, admin: httpx.AsyncClient) -> None:
        report = self._report
        self._read_log()
        fresh = self._records[self._num_compared :]
        self._num_compared = len(self._records)
        report.add("one outcome a request", compare_endings(self._endings, fresh))
        self._endings.clear()
        rows = self._rows()
        report.add("one ledger row a request", compare_ledger(self._records, rows))
        usage = (await admin.get("/usage", params={"group_by": "project"})).json()["data"]
        metrics = (await admin.get(f"{self.ready['admin']}/metrics")).text
        report.add("sums equal", compare_sums(rows, usage, outcomes_counted(metrics), self._records))
        report.rows = len(rows)
        report.tokens = {name: sum(row[name] or 0 for row in rows) for name in ("prompt_tokens", "completion_tokens")}
        for record in fresh:
            report.outcomes[record["outcome"]] += 1
        self._count_faults()

    def _count_faults(self) -> None:
        report = self._report
        report.faults.clear()
        for engine in self._engines:
            report.faults.update(engine.proxy.counts)
            report.faults.update({"killed": engine.num_kills, "stopped": engine.num_stops})

    def _rows(self) -> list[dict[str, Any]]:
        path = self._home / "warmlane.ledger.sqlite3"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
            ledger.row_factory = sqlite3.Row
            return [dict(row) for row in ledger.execute("SELECT * FROM requests")]

    def _read_log(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._num_read)
            lines = log.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._num_read += len(lines)
        for line in lines.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                self._report.add("no error in the log", [line[:300].decode(errors="replace")])
                continue
            if entry.get("event") == "request.finished":
                self._records.append(entry)
            if entry.get("level") in ("error", "critical") or "exception" in entry or entry.get("outcome") == "bug":
                self._report.add("no error in the log", [line[:500].decode(errors="replace")])
