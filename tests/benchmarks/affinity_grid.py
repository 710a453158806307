"""`python -m tests.benchmarks.affinity_grid`: our routing against tuned baselines on the Mooncake trace, cell by cell.

A cell is a number of replicas, their KV together as a share of the trace's working set, and a load. Baselines are tuned
once per replicas and KV, on the first seed at 75%. What was run is kept as JSON lines and not run again, unless the code
it ran on has changed: baselines need not be run anew for a change of our routing.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gateway.simulation.recording import Recording
from gateway.simulation.trace_files import read_recording
from gateway.simulation.trace_policies import BASELINES, OURS, POLICIES, OurSettings, Settings
from gateway.simulation.trace_report import one_run
from gateway.simulation.trace_run import TraceEngine, TraceSettings, run_trace, speed_at
from tests.benchmarks.simulated import code_fingerprint

TRACE = Path(__file__).parents[1] / "traces" / "mooncake_conversation.jsonl.gz"
TUNING_LOAD = 0.75
Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Task:
    """One run. `parameters`: of the policy, as they are told."""

    policy: str
    parameters: str
    replicas: int
    kv: float
    load: float
    seed: int
    requests: int
    code: str

    @property
    def place(self) -> tuple[int, float]:
        """What a baseline is tuned for."""
        return self.replicas, self.kv


def told(settings: Settings) -> str:
    """Parameters as a name."""
    return json.dumps(asdict(settings), sort_keys=True)


def settings_of(task: Task) -> Settings:
    """The other way round."""
    return POLICIES[task.policy].settings(**json.loads(task.parameters))


@lru_cache(1)
def recording(num_requests: int) -> Recording:
    """The trace, once a process."""
    whole = read_recording(TRACE)
    return whole.first(num_requests) if num_requests else whole


def run(task: Task) -> Row:
    """What came of it."""
    trace = recording(task.requests)
    facts, engine = trace.facts(), TraceEngine()
    kv_tokens = int(facts.distinct_tokens * task.kv / task.replicas)
    speed = speed_at(task.load, facts, engine.settings(kv_tokens, trace.block_tokens), task.replicas)
    settings = TraceSettings(task.replicas, kv_tokens, speed=speed, engine=engine)
    return asdict(task) | one_run(run_trace(trace, settings, task.policy, settings_of(task), task.seed), facts)


@lru_cache(1)
def baseline_fingerprint() -> str:
    """A digest of what baselines run on: the fleet and their own rules, nothing of our routing."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    simulation = root / "gateway" / "simulation"
    names = (
        "baseline*", "block_*", "direct_front", "recording", "mooncake", "trace_fleet", "trace_run", "capacity",
        "events", "json_lines",
    )  # fmt: skip
    paths = [path for name in names for path in sorted(simulation.glob(f"{name}.py"))]
    for path in [*paths, root / "engines/core/latency_guard.py", root / "engines/step_cost.py"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """Rows by task, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[Task, Row] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[Task(**{name: row[name] for name in Task.__dataclass_fields__})] = row

    def run(self, tasks: Iterable[Task], processes: int, what: str) -> None:
        """Run what has not been run."""
        missing = [task for task in dict.fromkeys(tasks) if task not in self.rows]
        if not missing:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(processes) as pool, self._path.open("a") as file, Progress() as progress:
            bar = progress.add_task(what, total=len(missing))
            running = {pool.submit(run, task): task for task in missing}
            for done in as_completed(running):
                row = self.rows[running.pop(done)] = done.result()
                file.write(json.dumps(row) + "\n")
                file.flush()
                progress.advance(bar)


def p95(row: Row) -> float:
    """Of the time to first token, in seconds."""
    ttft_s = row["ttft_s"]
    assert isinstance(ttft_s, dict), "percentiles"
    return float(ttft_s["p95"])


@dataclass(frozen=True, slots=True)
class Grid:
    """The part of the grid that is asked for."""

    replicas: Sequence[int]
    kv: Sequence[float]
    loads: Sequence[float]
    seeds: Sequence[int]
    ours: Settings
    requests: int

    def cells(self) -> Iterator[tuple[int, float, float]]:
        """(replicas, KV, load)."""
        return ((n, kv, load) for n in self.replicas for kv in self.kv for load in self.loads)

    def task(self, policy: str, settings: Settings, cell: tuple[int, float, float], seed: int) -> Task:
        """One run of it."""
        code = code_fingerprint() if policy == OURS else baseline_fingerprint()
        return Task(policy, told(settings), *cell, seed=seed, requests=self.requests, code=code)

    def tuning(self) -> dict[tuple[str, int, float], list[Task]]:
        """All runs that tune, by policy and place."""
        return {
            (name, n, kv): [
                self.task(name, settings, (n, kv, TUNING_LOAD), self.seeds[0])
                for settings in POLICIES[name].candidates()
            ]
            for name in BASELINES
            for n in self.replicas
            for kv in self.kv
        }

    def measuring(self, best: dict[tuple[str, int, float], Task], names: Sequence[str]) -> dict[tuple, list[Task]]:
        """The runs of each (policy, replicas, KV, load), one a seed."""
        found: dict[tuple, list[Task]] = {}
        for cell in self.cells():
            for name in names:
                settings = self.ours if name == OURS else settings_of(best[name, cell[0], cell[1]])
                found[name, *cell] = [self.task(name, settings, cell, seed) for seed in self.seeds]
        return found


def compare(grid: Grid, results: Results, runs: dict[tuple, list[Task]]) -> list[Row]:
    """A row for each cell: ours beside the best tuned baselines, by p95 and by hits, medians over the seeds."""
    rows: list[Row] = []
    for cell in grid.cells():
        found = {
            name: (
                median(p95(results.rows[task]) for task in runs[name, *cell]),
                median(int(results.rows[task]["hit_tokens"]) for task in runs[name, *cell]),  # type: ignore[call-overload]
            )
            for name in POLICIES
            if (name, *cell) in runs
        }
        fastest = min(BASELINES, key=lambda name: found[name][0])
        warmest = max(BASELINES, key=lambda name: found[name][1])
        ours_s, ours_hits = found[OURS]
        rows.append(
            {
                "replicas": cell[0], "kv": cell[1], "load": cell[2], "p95_s": ours_s, "hit_tokens": ours_hits,
                "fastest": fastest, "fastest_p95_s": found[fastest][0], "p95_ratio": ours_s / found[fastest][0],
                "warmest": warmest, "hit_ratio": ours_hits / max(1, found[warmest][1]),
                "hit_of_fastest": ours_hits / max(1, found[fastest][1]),
                "all": {name: {"p95_s": s, "hit_tokens": hits} for name, (s, hits) in found.items()},
            }
        )  # fmt: skip
    return rows


def mean_ratio(rows: Sequence[Row], name: str) -> float:
    """The geometric mean over cells of our p95 to a baseline's."""
    found = [row["p95_s"] / row["all"][name]["p95_s"] for row in rows]  # type: ignore[index, operator]
    return exp(sum(map(log, found)) / len(found))


def table(rows: Sequence[Row]) -> Table:
    """The cells. Must hold: `p95 ratio` at most 1.02, `hit ratio` at least 0.95."""
    shown = Table(title="ours to the best tuned baselines (medians over seeds)")
    names = ("replicas", "kv", "load", "p95_s", "fastest", "p95_ratio", "warmest", "hit_ratio", "hit_of_fastest")
    for name in names:
        shown.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        shown.add_row(*(f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name]) for name in names))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was run."""
    options = _parser().parse_args(arguments)
    console, results = Console(), Results(options.json)
    grid = Grid(
        options.replicas, options.kv, options.loads, options.seeds, OurSettings(events=not options.no_events),
        options.requests,
    )  # fmt: skip
    tuning = grid.tuning()
    results.run((task for tasks in tuning.values() for task in tasks), options.processes, "tuning baselines")
    best = {place: min(tasks, key=lambda task: p95(results.rows[task])) for place, tasks in tuning.items()}
    for (name, n, kv), task in best.items():
        if len(tuning[name, n, kv]) > 1:
            console.print(f"{name}, {n} replicas, KV {kv:g}: {task.parameters}")
    runs = grid.measuring(best, BASELINES)
    results.run((task for tasks in runs.values() for task in tasks), options.processes, "baselines")
    ours = grid.measuring(best, [OURS])
    results.run((task for tasks in ours.values() for task in tasks), options.processes, "ours")
    rows = compare(grid, results, runs | ours)
    console.print(table(rows))
    means = {name: mean_ratio(rows, name) for name in BASELINES}
    single = max(means, key=lambda name: means[name])
    console.print(f"geometric mean of p95 to the best single baseline, {single}: {means[single]:.3f} (must: 0.9)")
    console.print(", ".join(f"{name} {mean:.3f}" for name, mean in sorted(means.items(), key=lambda item: -item[1])))
    options.json.with_suffix(".cells.json").write_text(json.dumps(rows, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.affinity_grid", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--kv", type=float, nargs="+", default=[0.25, 0.5, 1.0], help="of the working set, together")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.75, 0.9])
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="baselines are tuned on the first"
    )
    parser.add_argument("--requests", type=int, default=0, help="only the first so many of the trace; 0: all")
    parser.add_argument("--no-events", action="store_true", help="our gateways go by what they sent")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/affinity_grid.jsonl"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
