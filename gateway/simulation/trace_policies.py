"""The policies a trace can be simulated with, by name: ours, and baselines with the parameters that may be tuned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from random import Random
from typing import Any

from cache_affinity.exact import ExactIndex
from cache_affinity.ratio import TokenRatios
from gateway.model_queue import MarketRules
from gateway.simulation.baseline_view import BaselineView
from gateway.simulation.baselines import (
    Additive,
    AdditiveSettings,
    Baseline,
    BoundedLoadHash,
    BoundedLoadSettings,
    LeastLoaded,
    LeastLoadedSettings,
    LongestPrefixSettings,
    LongestPrefixThreshold,
    RandomReplica,
    RoundRobin,
)
from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.direct_front import DirectFront
from gateway.simulation.dispatch import Dispatch, GatewaySettings
from gateway.simulation.fronts import Front, OurGateway, QueueFront
from gateway.simulation.gossip_net import GossipNet, gossiper
from gateway.simulation.replica import EngineSettings
from gateway.simulation.run import MODEL, FleetSettings, pool_of
from policies.fair_settings import FairSettings, LaneRule
from policies.lane import Lane
from policies.leases import SoleHoldings
from routing.router import Router

OURS = "warmlane"
_NOBODY_LEAVES = FairSettings(lanes={lane: LaneRule(bound=1 << 30) for lane in Lane})


@dataclass(frozen=True, slots=True)
class OurSettings:
    """`events`: replicas tell what they hold; without, gateways go by what they sent there.

    `capacity_factor`: what gateways are told of a replica's KV, times the truth. `gossip_s`: how long what one of
    several gateways tells takes to the others; None: they tell each other nothing. `seats_per_row`: requests that
    gateways keep in an engine for each row of its batch: some may wait where their prefix is, and a flood, which leaves
    a quarter of the seats, still has no more than the rows (docs/design/016).
    """

    events: bool = True
    capacity_factor: float = 1.0
    gossip_s: float | None = 0.02
    seats_per_row: float = 4 / 3


@dataclass(frozen=True, slots=True)
class NoSettings:
    """Nothing to tune."""


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """What a front is built for."""

    replicas: Sequence[BlockReplica]
    engine: EngineSettings
    num_gateways: int
    seed: int

    @property
    def names(self) -> list[str]:
        """Of the replicas."""
        return [replica.name for replica in self.replicas]


Settings = Any  # one of the settings above and of `baselines`
Build = Callable[[FrontPlan, Settings], Front]


@dataclass(frozen=True, slots=True)
class Policy:
    """`grid`: the values that tuning tries of each parameter; the defaults are in it."""

    build: Build
    settings: type
    grid: Mapping[str, tuple[Any, ...]]

    def candidates(self) -> list[Settings]:
        """Every combination of the grid; one where there is none."""
        names = list(self.grid)
        return [self.settings(**dict(zip(names, values, strict=True))) for values in product(*self.grid.values())]

    def parameters(self, settings: Settings) -> dict[str, Any]:
        """The settings, for output."""
        return asdict(settings)


def _ours(plan: FrontPlan, settings: OurSettings) -> Front:
    told = int(plan.engine.scheduler.kv_tokens * settings.capacity_factor)
    fleet = FleetSettings(len(plan.replicas), plan.engine, int(plan.engine.scheduler.max_seqs * settings.seats_per_row))
    seats = SoleHoldings() if plan.num_gateways > 1 else None
    if settings.events:
        for replica in plan.replicas:
            replica.cache.changes = []
    gateways, gossipers = [], []
    for number in range(1, plan.num_gateways + 1):
        exact = _exact(plan.names) if settings.events else None
        router = Router(pool_of(fleet, plan.names, kv_tokens=told), TokenRatios(), exact=exact)
        rules = MarketRules(holdings=seats)
        gateways.append(OurGateway(Dispatch(MODEL, router, GatewaySettings(_NOBODY_LEAVES), rules), exact))
        if settings.gossip_s is not None and plan.num_gateways > 1:
            gossipers.append(gossiper(router, number, plan.num_gateways))
    gossip = GossipNet(gossipers, settings.gossip_s or 0.0) if gossipers else None
    return QueueFront(gateways, plan.names, plan.engine.scheduler.block_size, gossip)


def _exact(names: Sequence[str]) -> ExactIndex:
    index = ExactIndex()
    for name in names:
        index.mark(name, is_known=True)
    return index


def seeded(seed: int, what: str) -> Random:
    """Numbers of a seed for one purpose."""
    return Random(f"{what}/{seed}")  # noqa: S311 - a simulation


def _direct(make: Callable[[BaselineView, Random, Settings], Baseline]) -> Build:
    def build(plan: FrontPlan, settings: Settings) -> Front:
        caches = [replica.cache for replica in plan.replicas]
        gateways = []
        for number in range(plan.num_gateways):
            view = BaselineView(caches, plan.engine.scheduler.block_size, plan.names)
            gateways.append((make(view, seeded(plan.seed, f"baseline/{number}"), settings), view))
        return DirectFront(gateways)

    return build


POLICIES: Mapping[str, Policy] = {
    OURS: Policy(_ours, OurSettings, {}),
    "random": Policy(_direct(lambda view, rng, _: RandomReplica(view, rng)), NoSettings, {}),
    "round_robin": Policy(_direct(lambda view, rng, _: RoundRobin(view, rng)), NoSettings, {}),
    "least_loaded": Policy(_direct(LeastLoaded), LeastLoadedSettings, {"by_tokens": (False, True)}),
    "bounded_load_hash": Policy(
        _direct(BoundedLoadHash),
        BoundedLoadSettings,
        {"prefix_tokens": (1024, 2048, 4096), "load_factor": (1.05, 1.1, 1.25, 1.5, 2.0)},
    ),
    "longest_prefix_threshold": Policy(
        _direct(LongestPrefixThreshold),
        LongestPrefixSettings,
        {
            "least_share": (0.05, 0.1, 0.3, 0.5),
            "uneven_by": (2, 8, 32, 64),
            "uneven_times": (1.1, 1.5),
            "memory": (1.0, 4.0),
        },
    ),
    "additive": Policy(
        _direct(Additive),
        AdditiveSettings,
        {
            "overlap_weight": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
            "is_normalised": (False, True),
            "by_events": (True, False),
        },
    ),
}
BASELINES = tuple(name for name in POLICIES if name != OURS)
