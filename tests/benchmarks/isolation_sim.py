"""`python -m tests.benchmarks.isolation_sim [--replicas 1 64]`: isolation and fairness in virtual time.

The gateway's own queue, caps, router and pool and the workers' own scheduler, on modelled step times. A table on the
terminal, everything measured in a JSON file, and a picture where matplotlib is installed.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engines.fake import LatencySettings, SchedulerSettings
from engines.step_cost import StepCost
from gateway.simulation.capacity import rate_at
from gateway.simulation.fair_order import FairOrder, TenantRule
from gateway.simulation.measure import GroupResult, Result
from gateway.simulation.replica import EngineSettings
from gateway.simulation.run import FleetSettings, RunSettings, simulate
from gateway.simulation.workload import Flood, PoissonStream, Shape, Source, Spread
from policies.caps import CapLimits
from policies.fair_settings import FairSettings
from policies.lane import Lane

ALDER, BIRCH = "alder", "birch"
_SAMPLE = 500  # requests from which the mean demand of a workload is taken


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of worker with work to match. `conversations`: open ones for each replica.

    `active`: the part of each minute in which interactive requests come, so that a tenth of the replica-seconds holds
    none also where full batches are far cheaper than small ones.
    """

    engine: EngineSettings
    interactive: Shape
    bulk: Shape
    conversations: int
    active: tuple[float, float] | None = None

    @property
    def seats(self) -> int:
        """Urgent seats of a replica; as many again are bulk's."""
        return self.engine.scheduler.max_seqs

    def stream(self, tenant: str, num_replicas: int, load: float, seed: int) -> PoissonStream:
        """Interactive requests at `load` times what the fleet can do at oracle hits, over all of the time."""
        shape = replace(self.interactive, num_open=self.conversations * num_replicas)
        sample = PoissonStream(tenant, Lane.INTERACTIVE, shape, rate_per_s=1.0, seed=seed).arrivals()
        rate = rate_at(load, islice(sample, _SAMPLE * max(1, num_replicas // 8)), self.engine, num_replicas)
        if self.active is not None:
            rate *= 60.0 / (self.active[1] - self.active[0])
        return PoissonStream(tenant, Lane.INTERACTIVE, shape, rate_per_s=rate, seed=seed, active=self.active)

    def flood(self, tenant: str, num_replicas: int, seed: int, lane: Lane = Lane.BULK) -> Flood:
        """Three times as many requests as there are bulk seats, at all times."""
        shape = self.bulk
        if lane is not Lane.BULK:
            shape = replace(self.interactive, num_open=self.conversations * num_replicas)
        return Flood(tenant, lane, shape, depth=3 * self.seats * num_replicas, seed=seed)

    def fleet(self, num_replicas: int, bulk_growth: float) -> FleetSettings:
        """Seats for both, interactive's kept for it."""
        scheduler = replace(self.engine.scheduler, latency=LatencySettings(bulk_growth=bulk_growth))
        engine = replace(self.engine, scheduler=scheduler)
        return FleetSettings(num_replicas, engine, self.seats, bulk_seats=self.seats)

    def one_lane_fleet(self, num_replicas: int) -> FleetSettings:
        """As many seats as the worker has for one lane: with more, requests would queue where no fairness reaches."""
        return FleetSettings(num_replicas, self.engine, self.seats, bulk_seats=self.seats)


PROFILES: Mapping[str, Profile] = {
    "gpu": Profile(  # a 7B model on one data-centre GPU, roughly
        EngineSettings(SchedulerSettings(32, 2048, 8192, 65_536), StepCost(0.010, 0.00025, 0.00004)),
        interactive=Shape(600, Spread(120, 0.8), Spread(100, 0.6), 4, mean_turns=5, max_prompt_tokens=3000),
        bulk=Shape(300, Spread(800, 0.6), Spread(150, 0.5)),
        conversations=12,
        active=(0.0, 48.0),
    ),
    "cpu": Profile(  # the demo model on two cores, roughly
        EngineSettings(SchedulerSettings(8, 512, 4096, 16_384), StepCost(0.012, 0.003, 0.001)),
        interactive=Shape(600, Spread(120, 0.8), Spread(100, 0.6), 4, mean_turns=5, max_prompt_tokens=3000),
        bulk=Shape(100, Spread(300, 0.6), Spread(100, 0.5)),
        conversations=4,
    ),
}


def isolation(
    profile: Profile, num_replicas: int, seconds: float, *, load: float = 0.4, bulk_growth: float = 1.0, seed: int = 1
) -> dict[str, object]:
    """Interactive alone, bulk alone, and both: ratios of interactive p95s, and what bulk made of the free time."""
    fleet, run = profile.fleet(num_replicas, bulk_growth), _run(seconds)
    interactive = partial(profile.stream, ALDER, num_replicas, load, seed)
    bulk = partial(profile.flood, BIRCH, num_replicas, seed + 1)
    alone = simulate(fleet, run, [interactive()], FairOrder)
    bulk_only = simulate(fleet, run, [bulk()], FairOrder)
    both = simulate(fleet, run, [interactive(), bulk()], FairOrder)
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
        "alone": _told(before),
        "both": _told(after),
        "bulk_tokens_per_s": bulk_tokens / both.window_s,
        "bulk_only_tokens_per_s": bulk_per_s * len(bulk_only.replicas),
    }


def flood_beside(
    profile: Profile, num_replicas: int, seconds: float, *, cap: int | None, seed: int = 1
) -> dict[str, object]:
    """B asks for half of its share (a quarter of the fleet) alone, and beside A, who floods the same lane.

    `cap`: A's seats in one replica's batch; None for none.
    """
    fleet, run = profile.one_lane_fleet(num_replicas), _run(seconds)
    profile = replace(profile, active=None)
    caps = {Lane.INTERACTIVE: CapLimits(per_replica=cap)}
    order = partial(FairOrder, tenants={ALDER: TenantRule(caps=caps)})
    quiet = partial(profile.stream, BIRCH, num_replicas, 0.25, seed)
    flood = profile.flood(ALDER, num_replicas, seed + 1, Lane.INTERACTIVE)
    flow = (BIRCH, Lane.INTERACTIVE)
    alone = simulate(fleet, run, [quiet()], order).tenants[flow]
    beside = simulate(fleet, run, [quiet(), flood], order)
    found = beside.tenants[flow]
    return {
        "replicas": num_replicas,
        "cap": cap,
        "ttft_p95_ratio": found.ttft_s.p95 / alone.ttft_s.p95,
        "e2e_p50_ratio": found.e2e_s.p50 / alone.e2e_s.p50,
        "itl_p95_ratio": found.itl_s.p95 / alone.itl_s.p95,
        "alone": _told(alone),
        "beside": _told(found),
        "flood_tokens_per_s": beside.tenants[ALDER, Lane.INTERACTIVE].output_tokens / beside.window_s,
    }


def weights(
    profile: Profile, num_replicas: int, seconds: float, *, quantum_tokens: float = 8192.0, seed: int = 1
) -> dict[str, object]:
    """Two tenants of weights 2 and 1 flood the interactive lane: the ratio of the service they are charged.

    `gap`: of service by weight. It stays within the queue's bound, about two quanta, however long the run: so the
    ratio is as near to 2 as the run is long against the quantum.
    """
    fleet, run, settings = (
        profile.one_lane_fleet(num_replicas),
        _run(seconds),
        FairSettings(quantum_tokens=quantum_tokens),
    )
    order = partial(FairOrder, settings=settings, tenants={ALDER: TenantRule(weight=2.0)})
    floods = [
        profile.flood(tenant, num_replicas, seed + number, Lane.INTERACTIVE)
        for number, tenant in enumerate((ALDER, BIRCH))
    ]
    found = simulate(fleet, run, floods, order)
    charged = {
        tenant: settings.cost(group.uncached_tokens, group.output_tokens)
        for (tenant, _), group in found.tenants.items()
    }
    return {
        "replicas": num_replicas,
        "quantum_tokens": quantum_tokens,
        "charged_ratio": charged[ALDER] / charged[BIRCH],
        "gap": charged[ALDER] / 2 - charged[BIRCH],
        "charged": charged,
    }


def locality(profile: Profile, num_replicas: int, seconds: float, *, seed: int = 1) -> dict[str, object]:
    """Four tenants in overload: hit tokens of the fair queue against a queue that looks at hits alone."""
    fleet, run = profile.one_lane_fleet(num_replicas), _run(seconds)
    settings = {"fair": FairSettings(), "locality": FairSettings(quantum_tokens=1e15, skips=1_000_000)}
    ratios = {}
    for name, one in settings.items():
        floods = [tenant_flood(profile, f"tenant-{number}", num_replicas, seed + number) for number in range(4)]
        found = simulate(fleet, run, floods, partial(FairOrder, settings=one)).lanes[Lane.INTERACTIVE]
        ratios[name] = found.hit_tokens / max(1, found.prompt_tokens)
    return {"replicas": num_replicas, "hit_ratio": ratios, "of_locality": ratios["fair"] / ratios["locality"]}


def tenant_flood(profile: Profile, tenant: str, num_replicas: int, seed: int) -> Source:
    """A flood of one of several tenants: each a quarter of the conversations and of the requests."""
    shape = replace(profile.interactive, num_open=max(1, profile.conversations * num_replicas // 4))
    return Flood(tenant, Lane.INTERACTIVE, shape, depth=profile.seats * num_replicas, seed=seed)


def _run(seconds: float) -> RunSettings:
    return RunSettings(seconds, warm_up_s=seconds * 0.2, tail_s=min(5.0, seconds * 0.1))


def _told(group: GroupResult) -> dict[str, object]:
    parts = ("ttft_s", "itl_s", "e2e_s", "queue_s", "entry_s", "read_s")
    told: dict[str, object] = {name: asdict(getattr(group, name)) for name in parts}
    told["hit_ratio"] = group.hit_tokens / max(1, group.prompt_tokens)
    told["predicted_hit_ratio"] = group.predicted_hit_tokens / max(1, group.prompt_tokens)
    return told


Row = dict[str, object]


def code_fingerprint() -> str:
    """A digest of the rules that were simulated: rows of different rules must not be compared."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for folder in ("engines/core", "routing", "policies", "cache_affinity", "gateway/simulation"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    digest.update((root / "engines" / "step_cost.py").read_bytes())
    return digest.hexdigest()[:12]


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    names = [name for name, value in rows[0].items() if isinstance(value, int | float | str) or value is None]
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in map(row.get, names)))
    return table


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
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.isolation_sim", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 64], help="sizes of the fleet")
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES), help="kinds of worker")
    parser.add_argument("--seconds", type=float, help="virtual seconds of a run (600 for one replica, 60 for more)")
    parser.add_argument("--growth", type=float, nargs="+", default=[1.0, 1.05, 1.15], help="the workers' bulk_growth")
    parser.add_argument("--only", nargs="+", choices=("isolation", "fairness"), default=["isolation", "fairness"])
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks/isolation_sim.json"))
    options = parser.parse_args(arguments)
    cells: list[tuple[str, Callable[[Profile, int, float], Row]]] = []
    if "isolation" in options.only:
        cells += [("isolation", partial(isolation, bulk_growth=growth)) for growth in options.growth]
    if "fairness" in options.only:
        cells += [("flood", partial(flood_beside, cap=cap)) for cap in (None, 8, 2)]
        cells += [("weights", partial(weights, quantum_tokens=quantum)) for quantum in (8192.0, 512.0)]
        cells += [("locality", locality)]
    console, code = Console(), code_fingerprint()
    found: dict[str, list[Row]] = {}
    for kind, measure in cells:
        for name in options.profiles:
            for replicas in options.replicas:
                seconds = options.seconds or (600.0 if replicas == 1 else 60.0)
                row = {"profile": name, "code": code} | measure(PROFILES[name], replicas, seconds)
                found.setdefault(kind, []).append(row)
                console.print(_table(kind, [row]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    for kind, rows in found.items():
        console.print(_table(kind, rows))
    if "isolation" in found and _draw(found["isolation"], options.json.with_suffix(".png")):
        console.print(f"picture: {options.json.with_suffix('.png')}")
    console.print(f"details: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
