"""`python -m tests.benchmarks.isolation_sim [--replicas 1 64]`: isolation and fairness in virtual time.

The gateway's own queue, caps, router and pool and the workers' own scheduler, on modelled step times. Tables on the
terminal, everything measured in a JSON file, and a picture where matplotlib is installed.
"""

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from engines.fake import LatencySettings
from gateway.simulation.measure import Result
from gateway.simulation.run import simulate
from policies.lane import Lane
from tests.benchmarks.fairness_sim import FLOODS, flood, locality, weights
from tests.benchmarks.simulated import (
    ALDER,
    BIRCH,
    PROFILES,
    Profile,
    Row,
    code_fingerprint,
    tables,
    told,
    whole_minutes,
)

_GROWTH = LatencySettings().bulk_growth


def isolation(
    profile: Profile,
    num_replicas: int,
    seconds: float,
    *,
    load: float = 0.4,
    bulk_growth: float = _GROWTH,
    seed: int = 1,
) -> dict[str, object]:
    """Interactive alone, bulk alone, and both: ratios of interactive p95s, and what bulk made of the free time."""
    fleet, run = profile.fleet(num_replicas, bulk_growth), whole_minutes(seconds)
    interactive = partial(profile.stream, ALDER, num_replicas, load, seed)
    bulk = partial(profile.flood, BIRCH, num_replicas, seed + 1)
    alone = simulate(fleet, run, [interactive()])
    bulk_only = simulate(fleet, run, [bulk()])
    both = simulate(fleet, run, [interactive(), bulk()])
    return compare(alone, bulk_only, both) | {"replicas": num_replicas, "load": load, "bulk_growth": bulk_growth}


def compare(alone: Result, bulk_only: Result, both: Result) -> dict[str, object]:
    """The ratios of three runs. `bulk_of_free`: by the free replica-seconds of the run with both; must be 0.8."""
    before, after = alone.lanes[Lane.INTERACTIVE], both.lanes[Lane.INTERACTIVE]
    bulk_per_s = bulk_only.lanes[Lane.BULK].output_tokens / bulk_only.replica_s
    bulk_tokens = both.lanes[Lane.BULK].output_tokens
    return {
        "ttft_p95_ratio": after.ttft_s.p95 / before.ttft_s.p95,
        "itl_p95_ratio": after.itl_s.p95 / before.itl_s.p95,
        "free_share": both.free_replica_s / both.replica_s,
        "bulk_of_free": bulk_tokens / max(1e-9, bulk_per_s * both.free_replica_s),
        "bulk_of_free_alone": bulk_tokens / max(1e-9, bulk_per_s * alone.free_replica_s),
        "alone": told(before),
        "both": told(after),
        "bulk_tokens_per_s": bulk_tokens / both.window_s,
        "bulk_only_tokens_per_s": bulk_per_s * len(bulk_only.replicas),
    }


def _draw(rows: Sequence[Row], path: Path) -> bool:
    """Whether a picture of the isolation ratios was made: matplotlib is no dependency of ours."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8, 4))
    labels = [f"{row['profile']}, {row['replicas']} replicas\ngrowth {row['bulk_growth']}" for row in rows]
    for offset, name in ((-0.2, "ttft_p95_ratio"), (0.2, "itl_p95_ratio")):
        axes.bar([place + offset for place in range(len(rows))], [row[name] for row in rows], 0.4, label=name)
    axes.axhline(1.15, linestyle="--", color="black", linewidth=1)
    axes.set_xticks(range(len(rows)), labels)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured."""
    options = _parser().parse_args(arguments)
    console, code = Console(), code_fingerprint()
    console.print(f"rules: {code}")
    found: dict[str, list[Row]] = {}
    for kind, measure in _cells(options.only, options.growth, options.floods):
        for name in options.profiles:
            for replicas in options.replicas:
                seconds = options.seconds or (600.0 if replicas == 1 else 84.0)
                for seed in options.seeds:
                    head: Row = {"profile": name, "code": code, "replicas": replicas, "seed": seed}
                    rows = [head | row for row in measure(PROFILES[name], replicas, seconds, seed)]
                    found.setdefault(kind, []).extend(rows)
                    console.print(f"{kind}: {name}, {replicas} replicas, seed {seed} done")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    for kind, rows in found.items():
        for table in tables(kind, rows):
            console.print(table)
    if "isolation" in found and _draw(found["isolation"], options.json.with_suffix(".png")):
        console.print(f"picture: {options.json.with_suffix('.png')}")
    console.print(f"details: {options.json}")
    return 0


Measure = Callable[[Profile, int, float, int], Iterable[Row]]  # (profile, replicas, seconds, seed)


def _cells(only: Sequence[str], growths: Sequence[float], floods: Sequence[str]) -> list[tuple[str, Measure]]:
    cells: list[tuple[str, Measure]] = []
    if "isolation" in only:
        cells += [("isolation", partial(_isolation, growth)) for growth in growths]
    if "flood" in only:
        cells += [("flood", partial(flood, {name: FLOODS[name] for name in floods}))]
    if "weights" in only:
        cells += [("weights", weights)]
    if "locality" in only:
        cells += [("locality", partial(locality, prefixes=prefixes)) for prefixes in (None, 0.75, 2.0)]
    return cells


def _isolation(growth: float, profile: Profile, num_replicas: int, seconds: float, seed: int) -> list[Row]:
    return [isolation(profile, num_replicas, seconds, bulk_growth=growth, seed=seed)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.isolation_sim", description=__doc__)
    kinds = ("isolation", "flood", "weights", "locality")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 64], help="sizes of the fleet")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES), help="kinds of worker")
    parser.add_argument("--seconds", type=float, help="virtual seconds of a run (600 for one replica, 84 for more)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--growth", type=float, nargs="+", default=[_GROWTH], help="the workers' bulk_growth")
    parser.add_argument("--floods", nargs="+", choices=FLOODS, default=list(FLOODS), help="what holds the flooder back")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds, help="what to measure")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/isolation_sim.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
