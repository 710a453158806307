"""What the benchmarks in virtual time have in common: kinds of worker with work to match, and how results are told."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from rich.table import Table

from engines.fake import LatencySettings, SchedulerSettings
from engines.step_cost import StepCost
from gateway.simulation.capacity import rate_at
from gateway.simulation.measure import GroupResult
from gateway.simulation.replica import EngineSettings
from gateway.simulation.run import FleetSettings, RunSettings
from gateway.simulation.workload import Flood, PoissonStream, Shape, Spread
from policies.lane import Lane

Row = dict[str, object]
LABELS = ("profile", "replicas", "seed", "load", "bulk_growth", "settings")  # what tells rows apart
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

    def stream(
        self, tenant: str, num_replicas: int, load: float, seed: int, lane: Lane = Lane.INTERACTIVE
    ) -> PoissonStream:
        """People's requests at `load` times what the fleet can do at oracle hits, over all of the time."""
        shape = replace(self.interactive, num_open=self.conversations * num_replicas)
        sample = PoissonStream(tenant, lane, shape, rate_per_s=1.0, seed=seed).arrivals()
        rate = rate_at(load, islice(sample, _SAMPLE * max(1, num_replicas // 8)), self.engine, num_replicas)
        if self.active is not None:
            rate *= 60.0 / (self.active[1] - self.active[0])
        return PoissonStream(tenant, lane, shape, rate_per_s=rate, seed=seed, active=self.active)

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


def run_of(seconds: float) -> RunSettings:
    """A fifth of the time is warm-up; who comes in the last tenth, or five seconds, could not finish."""
    return RunSettings(seconds, warm_up_s=seconds * 0.2, tail_s=min(5.0, seconds * 0.1))


def whole_minutes(seconds: float) -> RunSettings:
    """A run whose window is as many whole minutes as it can be, so that what comes in part of each counts by its mean.

    The first fifth at least is warm-up, the last five seconds are tail. As `run_of` where no whole minute fits.
    """
    minutes = int((seconds * 0.8 - 5.0) // 60.0)
    return RunSettings(seconds, seconds - 5.0 - minutes * 60.0, tail_s=5.0) if minutes else run_of(seconds)


def told(group: GroupResult) -> dict[str, object]:
    """A group for the JSON file."""
    parts = ("ttft_s", "itl_s", "e2e_s", "queue_s", "entry_s", "read_s")
    found: dict[str, object] = {name: asdict(getattr(group, name)) for name in parts}
    found["hit_ratio"] = group.hit_tokens / max(1, group.prompt_tokens)
    found["predicted_hit_ratio"] = group.predicted_hit_tokens / max(1, group.prompt_tokens)
    return found


def code_fingerprint() -> str:
    """A digest of the rules that were simulated: rows of different rules must not be compared."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for folder in ("engines/core", "routing", "policies", "cache_affinity", "gateway/simulation"):
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    for name in ("engines/step_cost.py", "gateway/model_queue.py", "gateway/turn.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:12]


def tables(title: str, rows: Sequence[Row], width: int = 80) -> Iterator[Table]:
    """The numbers of the rows in as many tables as it takes for none to be wider than `width` columns."""
    names = [name for name, value in rows[0].items() if isinstance(value, int | float | str) or value is None]
    labels = [name for name in names if name in LABELS]
    left = width - 1 - sum(_width(name, rows) for name in labels)
    shown: list[str] = []
    for name in (name for name in names if name not in LABELS and name != "code"):
        if shown and sum(_width(name, rows) for name in [*shown, name]) > left:
            yield _table(title, [*labels, *shown], rows)
            shown = []
        shown.append(name)
    yield _table(title, [*labels, *shown], rows)


def _table(title: str, names: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", width=_width(name, rows) - 3)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    return table


def _width(name: str, rows: Sequence[Row]) -> int:
    """Columns it takes with its border: headers may break between words, values never."""
    return 3 + max(*map(len, name.split("_")), *(len(_cell(row.get(name))) for row in rows))


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-" if value is None else str(value)
