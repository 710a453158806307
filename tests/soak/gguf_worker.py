"""`python -m tests.soak.gguf_worker --minutes 20`: one gguf worker under everything at once, watched for what must hold.

Random requests of every kind, with clients that leave, on a KV cache that is far too small. Every request ends exactly
once, for its client and in the worker's log. About every 30 s all of it is let end: then the worker's own check of all
accounting has found nothing, `/load` is all zero, and who followed the KV events holds what the worker says it holds.
Memory does not grow. Exit status 1 on any violation, and one line that says so.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from engines.launch.demo_model import ensure_demo_model
from tests.benchmarks.processes import running
from tests.models import models_folder
from tests.soak.asking import Ending, ask
from tests.soak.kv_mirror import KvMirror
from tests.soak.traffic import MODEL, Traffic

_SIZES = ("--max-seqs", "4", "--kv-tokens", "768", "--host-kv-mb", "48", "--max-step-tokens", "256")
_WATCHED = ("--check-when-idle", "--kv-events", "--kv-events-buffer-steps", "1", "--log-level", "debug")
_ALSO = ("--embeddings", "--tool-format", "hermes", "--speculation", "ngram", "--eviction", "slru")
_QUIET_S = 1.5  # longer than a snapshot is given out again for
_PATIENCE_S = 120.0
_WARM_UP_SHARE, _WARM_UP_S = 0.25, 180.0  # whichever is shorter
_FEWEST_SAMPLES = 8  # of memory, before a slope means something
_MAX_GROWTH_MB, _MAX_SLOPE_MB_PER_MIN = 32.0, 1.0  # both: else it is noise; chosen


@dataclass
class Report:
    """What was seen. `rss`: (seconds since the start, MiB) at each idle moment."""

    seed: int
    minutes: float
    requests: Counter[str] = field(default_factory=Counter)
    left: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    idle_moments: int = 0
    kv_events: int = 0
    kv_blocks: list[int] = field(default_factory=list)
    rss: list[tuple[float, float]] = field(default_factory=list)
    rss_slope_mb_per_min: float | None = None
    load: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, ending: Ending) -> None:
        """Count one request."""
        self.requests[ending.kind] += 1
        self.left += ending.has_left
        self.prompt_tokens += ending.prompt_tokens
        self.cached_tokens += ending.cached_tokens
        self.completion_tokens += ending.completion_tokens
        self.violations += [f"{ending.kind} {ending.request_id}: {sentence}" for sentence in ending.wrong]

    def verdict(self) -> str:
        """One line."""
        host, drafts = self.load.get("host_kv", {}), self.load.get("speculation", {})
        slope = self.rss_slope_mb_per_min
        memory = "memory not judged" if slope is None else f"RSS {slope:+.2f} MiB/min"
        found = f"{len(self.violations)} VIOLATIONS, first: {self.violations[0]}" if self.violations else "all held"
        return (
            f"soak {self.minutes:g} min, seed {self.seed}: {self.requests.total()} requests ({self.left} left early), "
            f"{self.idle_moments} idle moments, {self.load.get('evictions', 0)} evictions, "
            f"{host.get('saved_tokens', 0)}/{host.get('restored_tokens', 0)} tokens saved/restored, "
            f"{drafts.get('accepted_tokens', 0)} of {drafts.get('drafted_tokens', 0)} drafts held, {memory}: {found}"
        )


class Soak:
    """One run against one worker."""

    def __init__(self, client: httpx.AsyncClient, mirror: KvMirror, pid: int, log: Path, report: Report) -> None:
        self._client = client
        self._mirror = mirror
        self._process = psutil.Process(pid)
        self._log = log
        self._report = report
        self._traffic = Traffic(report.seed)
        self._started = time.monotonic()
        self._asked: dict[str, Ending] = {}
        self._num_read = 0
        self._logged: Counter[str] = Counter()

    async def run(self, num_clients: int, idle_every_s: float, progress: Progress) -> None:
        """Phases of load, each with an idle moment behind it."""
        report = self._report
        task = progress.add_task("soak", total=report.minutes * 60, note="")
        await self._idle_moment()
        while (elapsed := time.monotonic() - self._started) < report.minutes * 60 and self._process.is_running():
            until = time.monotonic() + min(idle_every_s, report.minutes * 60 - elapsed)
            async with asyncio.TaskGroup() as clients:
                for _ in range(num_clients):
                    clients.create_task(self._be_a_client(until))
                clients.create_task(self._watch(until, progress, task))
            await self._idle_moment()
        progress.update(task, completed=report.minutes * 60)

    async def _be_a_client(self, until: float) -> None:
        while time.monotonic() < until:
            ending = await ask(self._client, self._traffic.next())
            self._asked[ending.request_id] = ending
            self._report.add(ending)

    async def _watch(self, until: float, progress: Progress, task: Any) -> None:
        while time.monotonic() < until:
            self._mirror.drain()
            report = self._report
            note = f"{report.requests.total()} requests, {len(report.violations)} violations"
            progress.update(task, completed=time.monotonic() - self._started, note=note)
            await asyncio.sleep(0.1)

    async def _idle_moment(self) -> None:
        """Everything that must hold while nothing is open."""
        load = await self._quiet()
        if load is None:
            self._report.violations.append(f"the worker does not come to rest: {self._report.load}")
            return
        report = self._report
        report.load = load
        busy = {name: load[name] for name in ("server_load", "running", "waiting", "kv_used_ratio") if load[name]}
        busy |= {lane: counts for lane, counts in load["lanes"].items() if any(counts.values())}
        if busy or load["faults"]:
            report.violations.append(f"idle, but {busy}, {load['faults']} faults")
        self._compare_events()
        self._read_log()
        report.idle_moments += 1
        elapsed = time.monotonic() - self._started
        report.rss.append((round(elapsed, 1), round(self._process.memory_info().rss / (1 << 20), 2)))

    async def _quiet(self) -> dict[str, Any] | None:
        """`/load` once no step was made for a while (copies to host memory go on when nothing is open)."""
        deadline = time.monotonic() + _PATIENCE_S
        before = -1
        while time.monotonic() < deadline:
            load = (await self._client.get("/load")).json()
            self._report.load = load
            if load["server_load"] == load["running"] == load["waiting"] == 0 and load["num_steps"] == before:
                return dict(load)
            before = load["num_steps"]
            self._mirror.drain()
            await asyncio.sleep(_QUIET_S)
        return None

    def _compare_events(self) -> None:
        report, mirror = self._report, self._mirror
        if not report.idle_moments:
            mirror.join()
            return
        told, next_sequence = mirror.snapshot()
        if not mirror.follow_until(next_sequence):
            report.violations.append(f"batches before {next_sequence} did not come: {mirror!r}")
        elif mirror.blocks != told:
            missing, surplus = len(told - mirror.blocks), len(mirror.blocks - told)
            report.violations.append(f"by the events {missing} blocks are missing and {surplus} too many")
        if mirror.gaps:
            report.violations.append(f"{mirror.gaps} gaps in the event stream")
            mirror.gaps = 0
        report.kv_events = mirror.num_events
        report.kv_blocks.append(len(told))

    def _read_log(self) -> None:
        """Each request has exactly one line, and nothing else went wrong."""
        with self._log.open("rb") as log:
            log.seek(self._num_read)
            lines = log.read()
        self._num_read += len(lines)
        for line in lines.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                self._report.violations.append(f"on stderr: {line[:200]!r}")
                continue
            if entry.get("event") == "request.finished":
                self._logged[entry["request_id"]] += 1
            elif entry.get("level") in ("error", "critical"):
                self._report.violations.append(f"in the log: {line[:500].decode(errors='replace')}")
        for request_id, ending in self._asked.items():
            ended = self._logged.pop(request_id, 0)
            if ended != 1 and not (ended == 0 and ending.has_left):  # one that left may never have arrived
                self._report.violations.append(f"{ending.kind} {request_id} ended {ended} times in the log")
        self._asked.clear()


def judge_memory(report: Report) -> None:
    """The slope of memory behind the warm-up, by least squares."""
    warm_s = min(_WARM_UP_SHARE * report.minutes * 60, _WARM_UP_S)
    samples = [(at, size) for at, size in report.rss if at >= warm_s]
    if len(samples) < 3:
        return
    mean_at = sum(at for at, _ in samples) / len(samples)
    mean_size = sum(size for _, size in samples) / len(samples)
    spread = sum((at - mean_at) ** 2 for at, _ in samples)
    slope = 60 * sum((at - mean_at) * (size - mean_size) for at, size in samples) / spread
    report.rss_slope_mb_per_min = round(slope, 3)
    growth = slope * (samples[-1][0] - samples[0][0]) / 60
    if len(samples) >= _FEWEST_SAMPLES and slope > _MAX_SLOPE_MB_PER_MIN and growth > _MAX_GROWTH_MB:
        report.violations.append(f"memory grew by {growth:.0f} MiB, {slope:.1f} MiB a minute")


async def _soak(url: str, pid: int, log: Path, report: Report, options: argparse.Namespace) -> None:
    timeout = httpx.Timeout(_PATIENCE_S)
    async with httpx.AsyncClient(base_url=url, timeout=timeout, limits=httpx.Limits(max_connections=100)) as client:
        (source,) = (await client.get("/kv_event_sources")).json()
        mirror = KvMirror(source["endpoint"], source["replay_endpoint"], source["topic"])
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        try:
            with Progress(*columns, TimeRemainingColumn()) as progress:
                soak = Soak(client, mirror, pid, log, report)
                await soak.run(options.clients, options.idle_every, progress)
        finally:
            mirror.close()


def main() -> int:
    """0 when all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.gguf_worker", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=8, help="requests open at once")
    parser.add_argument("--idle-every", type=float, default=30, help="seconds of load between two idle moments")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    parser.add_argument("--path", type=Path, help="a GGUF file; default: the demo model")
    parser.add_argument("--json", type=Path, default=Path("build/soak/gguf_worker.json"), help="where the report goes")
    options = parser.parse_args()
    report = Report(options.seed, options.minutes)
    path = options.path or ensure_demo_model(models_folder())
    command = [sys.executable, "-m", "engines.worker", "--path", str(path), "--model", MODEL]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        try:
            with running([*command, *_SIZES, *_WATCHED, *_ALSO], core=None, log=log) as (pid, ready):
                asyncio.run(_soak(ready["url"][0].removesuffix("/v1"), pid, log, report, options))
        except (httpx.HTTPError, psutil.NoSuchProcess, RuntimeError, TimeoutError, ExceptionGroup) as error:
            report.violations.append(f"the run broke off: {error!r}; {log.read_text()[-500:]}")
    judge_memory(report)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(vars(report), indent=1))
    print(f"{report.verdict()} (details: {options.json})")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
