"""Fairness in virtual time: shares by weight, hits kept, and what a flooding tenant does to one that keeps to its share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from engines.fake import LatencySettings
from gateway.simulation.dispatch import GatewaySettings, TenantRule
from gateway.simulation.measure import GroupResult
from gateway.simulation.run import FleetSettings, build, simulate
from gateway.simulation.service import service_gap
from gateway.simulation.simulation import Simulation
from gateway.simulation.workload import Flood, Shape, Source, Spread
from policies.caps import CapLimits
from policies.fair_settings import FairSettings
from policies.lane import Lane
from tests.benchmarks.simulated import ALDER, BIRCH, Profile, Row, run_of, told

DEFAULTS = FairSettings()
_NUM_TENANTS = 4
_PREFIXES_OF_KV = 32  # prefixes that fill the KV memory of one replica


def weights(
    profile: Profile, num_replicas: int, seconds: float, seed: int = 1, *, fair: FairSettings = DEFAULTS
) -> list[Row]:
    """Two tenants of weights 2 and 1 flood the interactive lane: the ratio of the service they are charged.

    `gap` stays within `bound` however long the run; so the ratio is as near to 2 as the run is long against the bound.
    """
    gateway = GatewaySettings(fair, {ALDER: TenantRule(weight=2.0)})
    floods = [
        profile.flood(tenant, num_replicas, seed + number, Lane.INTERACTIVE)
        for number, tenant in enumerate((ALDER, BIRCH))
    ]
    simulation = _run(profile, num_replicas, seconds, floods, gateway)
    run, log = run_of(seconds), simulation.dispatch.service
    alder, birch = (ALDER, Lane.INTERACTIVE), (BIRCH, Lane.INTERACTIVE)
    charged = {flow[0]: log.charged(flow, run.warm_up_s, run.duration_s) for flow in (alder, birch)}
    gap = service_gap(log, alder, birch, quantum_tokens=fair.quantum_tokens, since=run.warm_up_s)
    return [
        {
            "charged_ratio": charged[ALDER] / charged[BIRCH],
            "gap": round(gap.widest),
            "bound": round(gap.bound),
            "charged_birch": round(charged[BIRCH]),
        }
    ]


def locality(
    profile: Profile, num_replicas: int, seconds: float, seed: int = 1,
    *, fair: FairSettings = DEFAULTS, prefixes: float | None = None,
) -> list[Row]:  # fmt: skip
    """Four tenants in overload: hit tokens of the fair queue against one whose quantum and skips are unlimited.

    `prefixes`: None for conversations; else every request begins with one of many prefixes, whose tokens are so many
    times the fleet's KV memory. `gap_of_bound`: of the two tenants that came nearest to their bound.
    """
    flows = [(f"tenant-{number}", Lane.INTERACTIVE) for number in range(_NUM_TENANTS)]
    ratios = []
    gap_of_bound = 0.0
    for one in (replace(fair, quantum_tokens=1e15, skips=1_000_000), fair):
        floods = [
            _quarter(profile, tenant, num_replicas, seed + number, prefixes) for number, (tenant, _) in enumerate(flows)
        ]
        simulation = _run(profile, num_replicas, seconds, floods, GatewaySettings(one))
        group = simulation.result().lanes[Lane.INTERACTIVE]
        ratios.append(group.hit_tokens / max(1, group.prompt_tokens))
        since, log = run_of(seconds).warm_up_s, simulation.dispatch.service
        pairs = combinations(flows, 2)
        gaps = (service_gap(log, *pair, quantum_tokens=one.quantum_tokens, since=since) for pair in pairs)
        gap_of_bound = max(gap.widest / gap.bound for gap in gaps)
    name = "conversations" if prefixes is None else f"prefixes {prefixes:g} of KV"
    row: Row = {
        "settings": name,
        "hits_locality": ratios[0],
        "hits_fair": ratios[1],
        "of_locality": ratios[1] / ratios[0],
    }
    return [row | {"gap_of_bound": gap_of_bound}]


@dataclass(frozen=True, slots=True)
class FloodSettings:
    """What an operator may set against a flooding tenant. Chosen by who runs it; the defaults hold nobody back.

    `lane`: of its requests. `seats`: its `batch_cap` as a part of a replica's seats, None for none. `bulk_growth`: of
    the workers. `num_waiting`: the lane's `queue`; with more than a run brings, nobody is refused.
    """

    lane: Lane = Lane.INTERACTIVE
    seats: float | None = None
    bulk_growth: float = 1.05
    num_waiting: int = 1 << 20


FLOODS: Mapping[str, FloodSettings] = {
    "none": FloodSettings(),
    "none, 1000 wait": FloodSettings(num_waiting=1000),
    "cap 1/2": FloodSettings(seats=0.5),
    "cap 1/4": FloodSettings(seats=0.25),
    "cap 1/8": FloodSettings(seats=0.125),
    "cap 1/16": FloodSettings(seats=0.0625),
    "standard": FloodSettings(Lane.STANDARD),
    "standard, cap 1/2": FloodSettings(Lane.STANDARD, seats=0.5),
    "bulk": FloodSettings(Lane.BULK),
    "bulk, growth 1": FloodSettings(Lane.BULK, bulk_growth=1.0),
}


def flood(
    floods: Mapping[str, FloodSettings], profile: Profile, num_replicas: int, seconds: float, seed: int = 1
) -> list[Row]:
    """B asks for half of its share (a quarter of the fleet): alone, beside an A at its share, and beside one at 10 times.

    Ratios are B's: to B alone (`to_alone`); to B alone at the rate of its share, on workers half as fast (`to_rate`),
    which is what weighted fair queueing promises; and to B beside an A within its share, held back by nothing
    (`to_share`). `share_tokens_per_s`: what that A makes.
    """
    trial = _Trial(replace(profile, active=None), num_replicas, seconds, seed)
    alone, rate = trial.birch(None, 0.0)[0], trial.birch(None, 0.0, speed=2.0)[0]
    share, share_tokens_per_s = trial.birch(FloodSettings(), 0.5)
    rows: list[Row] = []
    for name, settings in floods.items():
        found, alder_tokens_per_s = trial.birch(settings, 5.0)
        row: Row = {"settings": name, "refused": found.num_refused / max(1, found.num_arrived)}
        row |= _ratios(found, alone, "to_alone") | _ratios(found, rate, "to_rate") | _ratios(found, share, "to_share")
        row |= {"flood_tokens_per_s": round(alder_tokens_per_s), "share_tokens_per_s": round(share_tokens_per_s)}
        rows.append(row | {"alone": told(alone), "share": told(share), "beside": told(found)})
    return rows


def _ratios(found: GroupResult, baseline: GroupResult, name: str) -> Row:
    return {
        f"ttft_p95_{name}": found.ttft_s.p95 / baseline.ttft_s.p95,
        f"e2e_p95_{name}": found.e2e_s.p95 / baseline.e2e_s.p95,
        f"e2e_p50_{name}": found.e2e_s.p50 / baseline.e2e_s.p50,
        f"itl_p95_{name}": found.itl_s.p95 / baseline.itl_s.p95,
        f"itl_mean_{name}": found.itl_s.mean / baseline.itl_s.mean,
    }


@dataclass(frozen=True, slots=True)
class _Trial:
    """The same B each time, beside another A."""

    profile: Profile
    num_replicas: int
    seconds: float
    seed: int

    def birch(self, settings: FloodSettings | None, load: float, *, speed: float = 1.0) -> tuple[GroupResult, float]:
        """What B got beside an A at `load`, None for alone; A's output tokens a second. `speed`: factor on all steps."""
        held, profile, num = settings or FloodSettings(), self.profile, self.num_replicas
        sources: list[Source] = [profile.stream(BIRCH, num, 0.25, self.seed)]
        if settings is not None:
            sources.append(profile.stream(ALDER, num, load, self.seed + 1, held.lane))
        caps = CapLimits() if held.seats is None else CapLimits(per_replica=max(1, round(held.seats * profile.seats)))
        lanes = {lane: replace(rule, bound=held.num_waiting) for lane, rule in DEFAULTS.lanes.items()}
        gateway = GatewaySettings(replace(DEFAULTS, lanes=lanes), {ALDER: TenantRule(caps={held.lane: caps})})
        fleet = replace(_fleet(profile, num, held), speeds=(speed,) * num)
        result = simulate(fleet, run_of(self.seconds), sources, gateway)
        alder = result.tenants.get((ALDER, held.lane))
        return result.tenants[BIRCH, Lane.INTERACTIVE], alder.output_tokens / result.window_s if alder else 0.0


def _fleet(profile: Profile, num_replicas: int, settings: FloodSettings | None = None) -> FleetSettings:
    """As many seats as a worker has for one lane: with more, requests would queue where no fairness reaches."""
    settings = settings or FloodSettings()
    scheduler = profile.engine.scheduler
    latency = LatencySettings(bulk_growth=settings.bulk_growth)
    engine = replace(profile.engine, scheduler=replace(scheduler, latency=latency))
    return FleetSettings(num_replicas, engine, profile.seats, bulk_seats=profile.seats)


def _run(
    profile: Profile, num_replicas: int, seconds: float, sources: list[Flood], gateway: GatewaySettings
) -> Simulation:
    run = run_of(seconds)
    simulation = build(_fleet(profile, num_replicas), run, sources, gateway)
    simulation.run_until(run.duration_s)
    return simulation


def _quarter(profile: Profile, tenant: str, num_replicas: int, seed: int, prefixes: float | None) -> Flood:
    """A flood of one of several tenants: its part of the conversations, or of the prefixes."""
    shape = replace(profile.interactive, num_open=max(1, profile.conversations * num_replicas // _NUM_TENANTS))
    if prefixes is not None:
        num_systems = max(1, round(prefixes * _PREFIXES_OF_KV * num_replicas / _NUM_TENANTS))
        prefix_tokens = profile.engine.scheduler.kv_tokens // _PREFIXES_OF_KV
        shape = Shape(prefix_tokens, Spread(100, 0.8), Spread(60, 0.6), num_systems)
    return Flood(tenant, Lane.INTERACTIVE, shape, depth=profile.seats * num_replicas, seed=seed)
