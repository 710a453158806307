"""A fleet in virtual time: requests arrive, get their turns, are computed step by step, and are measured.

The same seeds give the same result to the last digit: nothing here reads a clock, and no set is iterated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cache_affinity.ratio import TokenRatios
from engines.adapters.warmlane import WarmlaneAdapter
from gateway.simulation.dispatch import Dispatch, GatewaySettings
from gateway.simulation.measure import Result, Window
from gateway.simulation.replica import EngineSettings, SimulatedReplica
from gateway.simulation.simulation import Simulation
from gateway.simulation.workload import Source
from policies.lane import Lane
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from routing.replica import ReplicaSpec, ReplicaState
from routing.router import Router

MODEL = "simulated"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The fleet. `seats`: of each replica, as the gateway gives them out. `reserved_seats`: kept from lower lanes.

    `bulk_seats`: bulk's own, None where it shares. `speeds`: factors on the step time of the replicas that the gateway
    is not told of, in order; () for 1.
    """

    num_replicas: int
    engine: EngineSettings
    seats: int
    reserved_seats: dict[Lane, int] = field(default_factory=dict)
    bulk_seats: int | None = None
    speeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a fleet that cannot be."""
        if self.num_replicas < 1 or self.seats < 1:
            raise ValueError("a fleet has at least one replica, and a replica at least one seat")
        if self.speeds and len(self.speeds) != self.num_replicas:
            raise ValueError(f"{len(self.speeds)} speeds for {self.num_replicas} replicas")
        if any(speed <= 0 for speed in self.speeds):
            raise ValueError("speeds must be positive")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`duration_s` of virtual time; requests that arrive in [warm_up_s, duration_s - tail_s) are measured.

    `hop_s`: from the gateway to a replica, and back (chosen: half a millisecond, one rack).
    """

    duration_s: float
    warm_up_s: float = 0.0
    tail_s: float = 0.0
    hop_s: float = 0.0005

    def __post_init__(self) -> None:
        """Raise ValueError for a run that measures nothing."""
        if not 0 <= self.warm_up_s < self.duration_s - self.tail_s or self.tail_s < 0 or self.hop_s < 0:
            raise ValueError("warm-up and tail leave nothing of the run to measure")


def simulate(
    fleet: FleetSettings, run: RunSettings, sources: Sequence[Source], gateway: GatewaySettings | None = None
) -> Result:
    """Run the sources' requests through gateway rules and a fleet of workers; sources are used up."""
    simulation = build(fleet, run, sources, gateway)
    simulation.run_until(run.duration_s)
    return simulation.result()


def build(
    fleet: FleetSettings, run: RunSettings, sources: Sequence[Source], gateway: GatewaySettings | None = None
) -> Simulation:
    """The run before it starts."""
    window = Window(run.warm_up_s, run.duration_s - run.tail_s)
    replicas = tuple(
        SimulatedReplica(_name(number), fleet.engine, speed=fleet.speeds[number] if fleet.speeds else 1.0)
        for number in range(fleet.num_replicas)
    )
    names = [replica.name for replica in replicas]
    router = Router(pool_of(fleet, names), TokenRatios())
    return Simulation(replicas, Dispatch(MODEL, router, gateway), sources, window, hop_s=run.hop_s)


def pool_of(fleet: FleetSettings, names: Sequence[str], *, kv_tokens: int | None = None) -> ReplicaPool:
    """A gateway's view of the fleet, ready. `kv_tokens`: what it is told of each replica's KV; None: the truth."""
    pool = ReplicaPool(PoolSettings(reserved_seats=fleet.reserved_seats))
    for name in names:
        spec = ReplicaSpec(
            name,
            MODEL,
            engine="warmlane",
            url=name,
            seats=fleet.seats,
            bulk_seats=fleet.bulk_seats,
            capabilities=WarmlaneAdapter.capabilities,
            kv_tokens=kv_tokens or fleet.engine.scheduler.kv_tokens,
        )
        pool.upsert(spec, 0.0)
        pool.move(spec.name, ReplicaState.READY)
    return pool


def _name(number: int) -> str:
    return f"r{number + 1}"
