"""CPU of the gateway per request and per chunk, as it is and as a ratio to the bytes-only relay in the same run.

Core 0 has the gateway or the floor, core 1 the mock engines and the load, so that a rate is per core of gateway. Runs of
the two are interleaved and the median is taken: ratios survive a noisy machine, absolute numbers do not.
"""

import contextlib
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.benchmarks.processes import on_core, running
from tests.benchmarks.workloads import MODEL, WORKLOADS, Workload

GATEWAY_COMMAND = f"{sys.executable} -m gateway.cli gateway --config {{config}}"
# Chosen from what was measured for a Python relay with features on: a request at most 3 floors, a chunk at most 1.3.
GOALS = {"request": 3.0, "chunk": 1.3}

_CONFIG = """
[gateway]
host = "127.0.0.1"
port = 0
admin_host = "127.0.0.1"
admin_port = 0

[store]
url = "sqlite:///{home}/benchmark.db"

[telemetry]
log_level = "warning"

[[models]]
name = "{model}"
"""
_REPLICA = """
[[replicas]]
name = "mock-{number}"
model = "{model}"
engine = "openai"
url = "{url}"
seats = 512
shared_cache = "accept"
"""


@dataclass(frozen=True)
class Target:
    """Something under load."""

    name: str
    url: str
    key: str
    pid: int


@dataclass(frozen=True)
class Plan:
    """`seconds`: of each run, None for the workload's own."""

    rounds: int
    workloads: list[str]
    seconds: float | None
    warm_up_s: float
    gateway_command: str


def measure(plan: Plan, console: Console) -> dict[str, object]:
    """Every run of the plan. Raises RuntimeError if something does not start or answers with errors."""
    cores = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    runs: dict[str, dict[str, list[dict[str, object]]]] = {name: {} for name in plan.workloads}
    with tempfile.TemporaryDirectory(prefix="warmlane-bench-") as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        mock = [sys.executable, "-m", "tests.benchmarks.mock_engine"]
        _, ready = stack.enter_context(running(mock, core=cores[1], log=home / "mock.log"))
        targets = [
            stack.enter_context(_floor(ready["url"], home, cores[0])),
            stack.enter_context(gateway(plan.gateway_command, ready["url"], home, cores[0])),
        ]
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("measuring", total=plan.rounds * len(plan.workloads) * len(targets))
            for _ in range(plan.rounds):
                for name in plan.workloads:
                    for target in targets:
                        progress.update(task, description=f"{name} {target.name}")
                        found = load(target, WORKLOADS[name], plan, cores[1])
                        runs[name].setdefault(target.name, []).append(found)
                        progress.advance(task)
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "pinned": cores[0] is not None,
        "rounds": plan.rounds,
        "workloads": {name: _summary(WORKLOADS[name], by_target) for name, by_target in runs.items()},
        "runs": runs,
    }


@contextlib.contextmanager
def _floor(engines: list[str], home: Path, core: int | None) -> Iterator[Target]:
    command = [sys.executable, "-m", "tests.benchmarks.relay_floor", "--backend", *engines]
    with running(command, core=core, log=home / "floor.log") as (pid, ready):
        yield Target("floor", ready["url"][0], "none", pid)


@contextlib.contextmanager
def gateway(command: str, engines: list[str], home: Path, core: int | None) -> Iterator[Target]:
    """Ours, once it answers."""
    config = home / "gateway.toml"
    replicas = [_REPLICA.format(number=n, model=MODEL, url=url) for n, url in enumerate(engines, 1)]
    config.write_text(_CONFIG.format(home=home, model=MODEL) + "".join(replicas))
    token = "benchmark-admin-token"
    env = {"WARMLANE_HOME": str(home), "WARMLANE_ADMIN_TOKEN": token}
    with running(shlex.split(command.format(config=config)), core=core, log=home / "gateway.log", env=env) as (
        pid,
        ready,
    ):
        url = ready["url"][0].removesuffix("/").removesuffix("/v1")
        key = ready["key"][0] if "key" in ready else _new_key(ready["admin"][0], token)
        target = Target("gateway", url, key, pid)
        await_answer(target)
        yield target


def _post(url: str, secret: str, body: dict[str, object]) -> dict[str, object]:
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        parsed: dict[str, object] = json.load(answer)
        return parsed


def _new_key(admin: str, token: str) -> str:
    """A key of a new organisation and project, by the admin API."""
    base = admin.rstrip("/") + "/admin/v1"
    organization = _post(f"{base}/organizations", token, {"name": "benchmark"})
    project = _post(f"{base}/projects", token, {"name": "benchmark", "organization_id": organization["id"]})
    return str(_post(f"{base}/keys", token, {"name": "benchmark", "project_id": project["id"]})["secret"])


def await_answer(target: Target, patience_s: float = 30.0) -> None:
    """Until a request is answered: the gateway may still be probing its replicas."""
    deadline = time.monotonic() + patience_s
    body: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    while True:
        try:
            _post(f"{target.url}/v1/chat/completions", target.key, body)
        except urllib.error.URLError as error:
            if time.monotonic() > deadline:
                said = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
                raise RuntimeError(f"{target.name} does not answer: {error} {said}") from error
            time.sleep(0.2)
        else:
            return


def load(
    target: Target, workload: Workload, plan: Plan, core: int | None, *, connections: int = 0, rate: float = 0.0
) -> dict[str, object]:
    """One run of the load generator. Raises RuntimeError if requests failed. `connections`, `rate`: see load.py."""
    command = [sys.executable, "-m", "tests.benchmarks.load", "--url", target.url, "--key", target.key]
    command += ["--workload", workload.name, "--pid", str(target.pid), "--warm-up", str(plan.warm_up_s)]
    command += ["--seconds", str(plan.seconds or workload.seconds)]
    command += ["--connections", str(connections), "--rate", str(rate)]
    with on_core(core):
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120 + (plan.seconds or 0))
    found: dict[str, object] = json.loads(done.stdout)
    if found["errors"] or found["cpu_us"] is None:
        raise RuntimeError(
            f"{workload.name} against {target.name}: {found['errors']} errors, last {found['last_error']!r}"
        )
    return found


def _summary(workload: Workload, by_target: dict[str, list[dict[str, object]]]) -> dict[str, object]:
    """Medians per target, and the median of the ratios of runs that stood beside each other."""
    ratios = [
        float(str(mine["cpu_us"])) / float(str(floor["cpu_us"]))
        for mine, floor in zip(by_target["gateway"], by_target["floor"], strict=True)
    ]
    return {
        "unit": workload.unit,
        "ratio": round(statistics.median(ratios), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "goal": GOALS[workload.unit],
        **{name: _median_run(found) for name, found in by_target.items()},
    }


def _median_run(found: list[dict[str, object]]) -> dict[str, object]:
    """The run whose CPU cost is the median (the lower of two)."""
    ordered = sorted(found, key=lambda run: float(str(run["cpu_us"])))
    return ordered[(len(ordered) - 1) // 2]


def table_of(result: dict[str, object]) -> Table:
    """The summary for people: 80 columns wide. Ratios of one round have no range."""
    caption = "µs of CPU per request or chunk; floor: a relay that only copies bytes; rates are per core"
    table = Table(title="What the gateway costs", caption=caption, padding=(0, 1))
    table.add_column("workload", no_wrap=True)
    for column in ("per", "µs", "floor", "ratio", "goal", "per s", "TTFT ms"):
        table.add_column(column, justify="left" if column == "per" else "right", no_wrap=True)
    workloads = result["workloads"]
    assert isinstance(workloads, dict)
    for name, row in workloads.items():
        mine, floor = row["gateway"], row["floor"]
        low, high = row["ratio_range"]
        table.add_row(
            name,
            row["unit"],
            f"{mine['cpu_us']:.1f}",
            f"{floor['cpu_us']:.1f}",
            f"{row['ratio']:.2f}" + (f" ({low:.1f}-{high:.1f})" if low < high else ""),
            f"{row['goal']:.1f}",
            f"{mine[row['unit'] + 's_per_s']:,.0f}",
            f"{mine['ttft_ms'].get('p50', 0):.2f}",
        )
    return table


def processor() -> str:
    """As /proc/cpuinfo names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
