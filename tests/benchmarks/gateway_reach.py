"""How far one gateway process on one core reaches: latency it adds, live streams, memory over many requests.

python -m tests.benchmarks.gateway_reach --latency        # added TTFT, one client and at half load; a minute
python -m tests.benchmarks.gateway_reach --streams        # how many streams of a chunk each 20 ms; two minutes
python -m tests.benchmarks.gateway_reach --requests 1000000     # resident memory; five minutes a million
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.benchmarks.gateway_cpu import GATEWAY_COMMAND, Plan, Target, gateway, load
from tests.benchmarks.processes import family, memory_mb, running
from tests.benchmarks.workloads import WORKLOADS

STREAMS = (200, 400, 600, 800, 1000, 1200)
FULL_CORES, LATE_MS = 0.95, 50.0  # a gateway is full when its core is, or a chunk in a hundred is so late
_PLAN = Plan(1, [], None, 1.0, GATEWAY_COMMAND)
_LEAST_RATE = 3_000  # requests a second that a core is expected to do; only for how long --requests takes

Measured = dict[str, Any]


def latency(ours: Target, direct: Target, core: int | None) -> Measured:
    """TTFT of the same requests with and without the gateway, in ms: one client, then at half of what it can do."""
    small, found = WORKLOADS["small"], {}
    most = load(ours, small, _PLAN, core)["requests_per_s"]
    assert isinstance(most, float)
    for name, options in (("idle", {"connections": 1}), ("half load", {"rate": most / 2})):
        by = {target.name: load(target, small, _PLAN, core, **options)["ttft_ms"] for target in (direct, ours)}
        found[name] = {
            quantile: round(by[ours.name][quantile] - by[direct.name][quantile], 3) for quantile in ("p50", "p99")
        }
    return {"most_per_s": most, "added_ttft_ms": found}


def streams(ours: Target, core: int | None, tell: Callable[[str], None]) -> Measured:
    """Streams at once, more in each step, until the core is full, chunks come late, or the load generator is."""
    steps = []
    for number in STREAMS:
        run = load(ours, WORKLOADS["stream20"], _PLAN, core, connections=number)
        step = {"streams": number, **{name: run[name] for name in ("cores", "cpu_us", "chunks_per_s", "transit_ms")}}
        steps.append(step)
        tell(f"{number} streams: {run['cores']} cores, transit {run['transit_ms']} ms")
        if step["cores"] >= FULL_CORES or step["transit_ms"]["p99"] > LATE_MS:
            break
    return {"steps": steps}


def memory(ours: Target, core: int | None, num_requests: int, console: Console) -> Measured:
    """Resident MB of all its processes while so many small requests go through."""
    seconds, seen, is_over = num_requests / _LEAST_RATE, [], threading.Event()
    plan = Plan(1, [], seconds, 1.0, GATEWAY_COMMAND)
    num_done = 0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("requests", total=num_requests)

        def watch() -> None:
            begun = time.monotonic()
            while not is_over.wait(5.0):
                passed = time.monotonic() - begun
                seen.append((round(passed, 1), round(memory_mb(family(ours.pid)), 1)))
                progress.update(task, completed=num_done + passed * _LEAST_RATE)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            run = load(ours, WORKLOADS["small"], plan, core)
        finally:
            is_over.set()
            watcher.join()
    return {"requests": round(run["requests_per_s"] * seconds), "memory_mb": seen}  # type: ignore[operator]


def _table(found: Measured) -> Table:
    table = Table("what", "figure")
    if "latency" in found:
        table.add_row("requests a second", f"{found['latency']['most_per_s']:,.0f}")
        for name, added in found["latency"]["added_ttft_ms"].items():
            table.add_row(f"added TTFT, {name}: p50, p99", f"{added['p50']} ms, {added['p99']} ms")
    for step in found.get("streams", {}).get("steps", []):
        told = f"{step['cores']} cores, {step['cpu_us']} µs a chunk, transit p99 {step['transit_ms']['p99']} ms"
        table.add_row(f"{step['streams']} streams", told)
    if "memory" in found:
        seen = [value for _, value in found["memory"]["memory_mb"]]
        tenth = seen[len(seen) // 10] if seen else float("nan")
        table.add_row(
            f"RSS over {found['memory']['requests']:,} requests", f"{tenth} MB at a tenth, {seen[-1]} MB at the end"
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gateway_reach",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/gateway_reach.json"))
    options = parser.parse_args(arguments)
    if not (options.latency or options.streams or options.requests):
        parser.error("say what to measure: --latency, --streams, --requests N")
    console, found = Console(), dict[str, Measured]()
    cores = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    try:
        with tempfile.TemporaryDirectory(prefix="warmlane-reach-") as folder, ExitStack() as stack:
            home = Path(folder)
            mock = [sys.executable, "-m", "tests.benchmarks.mock_engine"]
            pid, ready = stack.enter_context(running(mock, core=cores[1], log=home / "mock.log"))
            ours = stack.enter_context(gateway(GATEWAY_COMMAND, ready["url"], home, cores[0]))
            if options.latency:
                found["latency"] = latency(ours, Target("direct", ready["url"][0], "none", pid), cores[1])
            if options.streams:
                found["streams"] = streams(ours, cores[1], console.print)
            if options.requests:
                found["memory"] = memory(ours, cores[1], options.requests, console)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    console.print(_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
