"""The systems that `isolation_wall` measures: how they are started, and what they say of themselves meanwhile."""

import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from engines.adapters import adapter_for
from engines.contract import LoadReport
from engines.launch.demo_model import DEMO_MODEL_NAME
from tests.benchmarks.isolation_load import Run, Target
from tests.benchmarks.processes import running

PATIENCE_S = 60.0
_CONFIG = """
[gateway]
port = 0
admin_port = 0
[telemetry]
log_level = "warning"
"""


@dataclass(frozen=True)
class Setup:
    """The same for every engine. `seats`: sequences at once; `kv_tokens`: of its whole cache."""

    seats: int
    kv_tokens: int
    threads: int


@dataclass(frozen=True)
class System:
    """What is measured. `engine_url`: where the engine tells of itself. `admin`, `token`: None without a gateway."""

    name: str
    engine: str
    target: Target
    engine_url: str
    admin: str | None = None
    token: str | None = None


class Observer:
    """Reads what a system says of itself, a few times a second."""

    def __init__(self, system: System, client: httpx.AsyncClient) -> None:
        self._system, self._client = system, client

    async def quiet(self) -> None:
        """Until nothing runs or waits any more. Raises RuntimeError if that does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            load = await self._load()
            held = (await self._admin("/statistics"))["in_flight"] if self._system.admin else {}
            if not (load.running or load.waiting or any(held.values())):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{self._system.name} is still busy: {load} {held}")

    async def watch(self, window: tuple[float, float], run: Run) -> dict[str, object]:
        """The engine's batch over the window: rows a step, and seats held on the average."""
        await asyncio.sleep(window[0] - run.now())
        steps, rows, seats = *(await self._counters()), []
        while run.now() < window[1] - 0.5:
            await asyncio.sleep(0.5)
            seats.append(await self._held())
        steps_after, rows_after = await self._counters()
        mean = {lane: statistics.fmean(one[lane] for one in seats) for lane in seats[0]} if seats else {}
        num = steps_after - steps
        return {"steps_per_s": num / (window[1] - window[0]), "rows": (rows_after - rows) / max(1, num), "seats": mean}

    async def queued_ms(self, request_ids: Sequence[str]) -> list[float]:
        """Each request's wait in the gateway's queue, of those whose records are there; none without a gateway."""
        if self._system.admin is None:
            return []
        records = [await self._admin(f"/requests/{one}") for one in request_ids]
        return sorted(record["queue_s"] * 1e3 for record in records if record.get("queue_s") is not None)

    async def _held(self) -> dict[str, int]:
        if self._system.admin is None:
            return {"all": (await self._load()).running or 0}
        return (await self._admin("/replicas"))["data"][0]["in_flight"]

    async def _load(self) -> LoadReport:
        return adapter_for(self._system.engine).read_load(await self._metrics())

    async def _counters(self) -> tuple[float, float]:
        """(steps, rows in them) since the engine began: decoded rows of ours, busy slots of llama-server."""
        text = (await self._metrics()).decode()
        if self._system.engine == "warmlane":
            load = (await self._client.get(f"{self._system.engine_url}/load")).json()
            return load["num_steps"], _metric(text, "warmlane:generation_tokens_total")
        steps = _metric(text, "llamacpp:n_decode_total")
        return steps, steps * _metric(text, "llamacpp:n_busy_slots_per_decode")

    async def _metrics(self) -> bytes:
        return (await self._client.get(f"{self._system.engine_url}/metrics")).content

    async def _admin(self, path: str) -> dict[str, object]:
        headers = {"authorization": f"Bearer {self._system.token}"}
        return (await self._client.get(f"{self._system.admin}/admin/v1{path}", headers=headers)).json()


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the engine does not tell {name}")
    return float(found[1])


@contextlib.contextmanager
def own_worker(setup: Setup, model: Path, home: Path) -> Iterator[System]:
    """`warmlane up` with one gguf worker."""
    section = {"model": DEMO_MODEL_NAME, "engine": "gguf", "path": str(model), "max_seqs": setup.seats}
    section |= {"kv_tokens": setup.kv_tokens, "threads": setup.threads}
    with _warmlane("up", "workers", section, home) as (ready, engine_url):
        yield _gatewayed("Warmlane worker", "warmlane", ready, engine_url)


@contextlib.contextmanager
def attached(setup: Setup, engine_url: str, home: Path) -> Iterator[System]:
    """A gateway with llama-server as its replica."""
    section = {"name": "llama", "model": DEMO_MODEL_NAME, "engine": "llama-server", "url": engine_url}
    with _warmlane("gateway", "replicas", section | {"seats": setup.seats}, home) as (ready, _):
        yield _gatewayed("llama-server, gateway", "llama-server", ready, engine_url)


@contextlib.contextmanager
def llama_server(setup: Setup, model: Path, home: Path) -> Iterator[str]:
    """The URL of a llama-server in a process of its own."""
    call = f"serve_llama({str(model)!r}, {setup.seats}, {setup.kv_tokens}, {setup.threads})"
    command = [sys.executable, "-c", f"from tests.benchmarks.isolation_systems import serve_llama; {call}"]
    with running(command, core=None, log=home / "llama.log") as (_, ready):
        yield ready["url"][0]


def serve_llama(model: str, seats: int, kv_tokens: int, threads: int) -> None:
    """Be a llama-server until a signal: the pinned wheel has it as a class. Same library, cache and threads as ours.

    `n_threads_http`: a waiting request holds one, and the flood must wait in its queue, not before its door.
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = model, ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx, params.kv_unified = seats, kv_tokens, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.endpoint_metrics, params.n_threads_http, params.ui, params.verbosity = True, 1024, False, 0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"ready url={server.listening_address}\n")
    sys.stdout.flush()
    os.dup2(2, 1)  # nobody reads stdout any more
    signal.pause()


@contextlib.contextmanager
def _warmlane(command: str, kind: str, section: dict[str, object], home: Path) -> Iterator[tuple[dict[str, str], str]]:
    """(the ready line's fields, the engine's URL) of a Warmlane with one replica, once that is ready."""
    config = home / f"{command}.toml"
    config.write_text(f"{_CONFIG}[[{kind}]]\n" + "".join(f"{key} = {json.dumps(it)}\n" for key, it in section.items()))
    words = [sys.executable, "-m", "gateway.cli", command, "--config", str(config)]
    env = {"WARMLANE_HOME": str(home / command)}
    with running(words, core=None, log=home / f"{command}.log", env=env, ready_s=PATIENCE_S) as (_, lists):
        ready = {name: values[0] for name, values in lists.items()}
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            headers = {"authorization": f"Bearer {ready['admin_token']}"}
            replicas = httpx.get(f"{ready['admin']}/admin/v1/replicas", headers=headers, timeout=PATIENCE_S).json()
            if [replica["state"] for replica in replicas["data"]] == ["ready"]:
                yield ready, replicas["data"][0]["url"]
                return
            time.sleep(0.1)
        raise RuntimeError(f"no replica became ready: {replicas}")


def _gatewayed(name: str, engine: str, ready: dict[str, str], engine_url: str) -> System:
    target = Target(ready["url"].removesuffix("/v1"), ready["key"], DEMO_MODEL_NAME)
    return System(name, engine, target, engine_url, ready["admin"], ready["admin_token"])
