"""What our gateway costs beside others on the same machine in one run: `make bench PEERS=1`.

    python -m tests.benchmarks.beside_peers [--quick] [--rounds 5] [--write-docs]

Each gateway has core 0, the mock engines and the load core 1. In every round all gateways get every workload, one after
the other, so that what disturbs the machine disturbs all; the median of the rounds counts. CPU is that of the gateway's
whole process tree.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from tests.benchmarks.gateway_cpu import GATEWAY_COMMAND, Plan, Target, await_answer, gateway, load, processor
from tests.benchmarks.peers import PEERS, Peer, install, started
from tests.benchmarks.processes import running
from tests.benchmarks.workloads import WORKLOADS

OURS, DIRECT, LITELLM = "warmlane", "direct", "litellm"
WORKLOAD_NAMES = ("small", "large", "stream20")
FEW_STREAMS = 20  # for litellm: 200 are more than it can carry
STEP_MS = 25.0  # a first token later than the engine's by this much: Nagle and delayed acknowledgements add 40 ms
DOCS = Path("docs/benchmarks.md")
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"

Runs = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]  # by workload, then by gateway


def measure(rounds: int, seconds: float | None, names: Sequence[str], console: Console) -> dict[str, Any]:
    """All runs. Raises RuntimeError if something does not start or answers with errors."""
    plan = Plan(rounds, list(WORKLOAD_NAMES), seconds, 1.0, GATEWAY_COMMAND)
    cores = (0, 1) if (os.cpu_count() or 1) > 1 else (None, None)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in WORKLOAD_NAMES}
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="warmlane-peers-") as folder, ExitStack() as stack:
        home = Path(folder)
        mock = [sys.executable, "-m", "tests.benchmarks.mock_engine"]
        pid, ready = stack.enter_context(running(mock, core=cores[1], log=home / "mock.log"))
        targets = [Target(DIRECT, ready["url"][0], "none", pid)]
        targets.append(stack.enter_context(gateway(plan.gateway_command, ready["url"], home, cores[0])))
        for name in names:
            console.print(f"starting {name}")
            targets.append(stack.enter_context(_peer(PEERS[name], ready["url"], home, cores[0])))
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("measuring", total=rounds * len(WORKLOAD_NAMES) * len(targets))
            for number in range(rounds):
                for workload in WORKLOAD_NAMES:
                    for target in targets:
                        name = OURS if target.name == "gateway" else target.name
                        progress.update(task, description=f"{number + 1}/{rounds} {workload} {name}")
                        few = FEW_STREAMS if name == LITELLM and workload == "stream20" else 0
                        found = load(target, WORKLOADS[workload], plan, cores[1], connections=few)
                        runs[workload].setdefault(name, []).append(found)
                        progress.advance(task)
    return {
        "machine": {"processor": processor(), "cores": os.cpu_count(), "load_average": load_average},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rounds": rounds,
        "runs": runs,
    }


@contextlib.contextmanager
def _peer(peer: Peer, engines: Sequence[str], home: Path, core: int | None) -> Iterator[Target]:
    with started(peer, engines, home, core) as (url, pid):
        target = Target(peer.name, url, peer.key, pid)
        try:
            await_answer(target, patience_s=90.0)
        except RuntimeError as error:
            end = (home / f"{peer.name}.log").read_bytes()[-1500:].decode(errors="replace")
            raise RuntimeError(f"{error}\n{end}") from None
        yield target


def medians(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """By workload and gateway: CPU-µs (median, least, most), TTFT p50, and by how much the first token was later."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for workload, by_name in runs.items():
        direct = statistics.median(run["ttft_ms"]["p50"] for run in by_name[DIRECT])
        late = statistics.median(run["ttft_ms"].get("p95", run["ttft_ms"]["p50"]) for run in by_name[DIRECT])
        for name, rounds in by_name.items():
            costs = [float(run["cpu_us"]) for run in rounds]
            ttft = statistics.median(run["ttft_ms"]["p50"] for run in rounds)
            found.setdefault(workload, {})[name] = {
                "cpu_us": statistics.median(costs),
                "least": min(costs),
                "most": max(costs),
                "ttft_ms": ttft,
                "added_ms": ttft - direct,
                "added_p95_ms": statistics.median(run["ttft_ms"].get("p95", run["ttft_ms"]["p50"]) for run in rounds)
                - late,
                "memory_mb": max(float(run["memory_mb"]) for run in rounds),
            }
    return found


def ratios(of: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, tuple[float, str, float]]:
    """By workload: our CPU as a ratio to the cheapest router's, which that is, and how many times ours litellm takes."""
    found = {}
    for workload, by_name in of.items():
        ours = by_name[OURS]["cpu_us"]
        routers = {name: one["cpu_us"] for name, one in by_name.items() if name not in (OURS, DIRECT, LITELLM)}
        if not routers:
            continue
        cheapest = min(routers, key=lambda name: routers[name])
        times = by_name[LITELLM]["cpu_us"] / ours if LITELLM in by_name else float("nan")
        found[workload] = (ours / routers[cheapest], cheapest, times)
    return found


def text_of(result: Mapping[str, Any]) -> str:
    """The table for docs, in Markdown."""
    found = medians(result["runs"])
    units = {name: WORKLOADS[name].unit for name in found}
    lines = [
        "| gateway | "
        + " | ".join(f"{name}: CPU-µs a {units[name]}" for name in found)
        + " | added TTFT p50, p95 | RSS |",
        "|---|" + "---|" * (len(found) + 2),
    ]
    for name in found["small"]:
        if name == DIRECT:
            continue
        cells = []
        for by_name in found.values():
            one = by_name[name]
            cells.append(" ".join((_figure(one["cpu_us"]), f"({_figure(one['least'])}–{_figure(one['most'])})")))
        stream = found["stream20"][name]
        step = ", **a step**" if name != LITELLM and max(stream["added_ms"], stream["added_p95_ms"]) > STEP_MS else ""
        memory = max(by_name[name]["memory_mb"] for by_name in found.values())
        lines.append(
            f"| {name} | "
            + " | ".join(cells)
            + f" | {stream['added_ms']:.2f}, {stream['added_p95_ms']:.1f} ms{step} | {memory:,.0f} MB |"
        )
    lines.append("")
    for workload, (ratio, cheapest, times) in ratios(found).items():
        lines.append(
            f"- {workload}: {ratio:.2f} times the cheapest router ({cheapest}); litellm takes {times:.0f} times ours."
        )
    return "\n".join(lines)


def _figure(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.1f}"


def write_docs(text: str) -> None:
    """Put the table between its marks."""
    whole = DOCS.read_text()
    before, rest = whole.split(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 1 with a sentence when not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.beside_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved, of which the median counts (5)")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="these peers")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {DOCS}")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/beside_peers.json"))
    options = parser.parse_args(arguments)
    console = Console()
    try:
        for name in options.only:
            install(name, console)
        rounds, seconds = (1, 2.0) if options.quick else (options.rounds, None)
        result = measure(rounds, seconds, options.only, console)
    except (RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1))
    text = text_of(result)
    print(text)
    if options.write_docs:
        write_docs(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
