"""One policy over one trace and fleet, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.fake import SchedulerSettings
from engines.step_cost import StepCost
from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.capacity import Demand
from gateway.simulation.recording import Recording, TraceFacts
from gateway.simulation.replica import EngineSettings
from gateway.simulation.trace_fleet import TraceFleet, nobody_watches
from gateway.simulation.trace_policies import POLICIES, FrontPlan, Settings, seeded

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TraceEngine:
    """What each replica is: by default roughly a 7B model on one data-centre GPU, as in `tests.benchmarks.simulated`.

    `max_seqs`: rows of its batch, and seats that gateways give out. `max_step_tokens`: of a step.
    """

    cost: StepCost = field(default_factory=lambda: StepCost(0.010, 0.00025, 0.00004))
    max_seqs: int = 32
    max_step_tokens: int = 2048

    def settings(self, kv_tokens: int, block_tokens: int) -> EngineSettings:
        """With so much KV, in whole blocks of the trace."""
        scheduler = SchedulerSettings(
            max_seqs=self.max_seqs, max_step_tokens=self.max_step_tokens, context_tokens=1 << 30, kv_tokens=kv_tokens,
            block_size=block_tokens,
        )  # fmt: skip
        return EngineSettings(scheduler, self.cost)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """A fleet and how it is asked.

    `kv_tokens`: of each replica. `speed`: times as fast as recorded. `speed_error`: each replica's steps take from
    1 - `speed_error` to 1 + `speed_error` times what is said of them, drawn by seed.
    """

    num_replicas: int
    kv_tokens: int
    speed: float = 1.0
    num_gateways: int = 1
    speed_error: float = 0.3
    hop_s: float = 0.0005
    engine: TraceEngine = field(default_factory=TraceEngine)

    def __post_init__(self) -> None:
        """Raise ValueError for a fleet that cannot be."""
        if min(self.num_replicas, self.num_gateways) < 1:
            raise ValueError("there must be at least one replica and one gateway")
        if not 0 < self.speed < float("inf") or not 0 <= self.speed_error < 1:
            raise ValueError("speed must be above 0, and the error of replicas' speeds from 0 to below 1")


@dataclass(frozen=True, slots=True)
class ReplicaRun:
    """What one replica did. `speed`: factor on its step times."""

    name: str
    speed: float
    requests: int
    prompt_tokens: int
    hit_tokens: int
    busy_s: float
    evicted_blocks: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Times in seconds by request in order of arrival. `gap_s`, `gap_counts`: gaps between tokens, and how many."""

    ttft_s: Seconds
    e2e_s: Seconds
    gap_s: Seconds
    gap_counts: npt.NDArray[np.int64]
    replicas: tuple[ReplicaRun, ...]
    duration_s: float

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were not computed, as replicas report them."""
        return sum(replica.hit_tokens for replica in self.replicas)


def replica_s(facts: TraceFacts, engine: EngineSettings) -> float:
    """Modelled replica-seconds of a trace at oracle hits."""
    asked = Demand(facts.requests, facts.prompt_tokens, facts.distinct_tokens, facts.output_tokens)
    return asked.replica_s(engine)


def speed_at(load: float, facts: TraceFacts, engine: EngineSettings, num_replicas: int) -> float:
    """How many times as fast a trace must come for a load: 1.0 is `replica_s` over replicas times duration.

    Raises ValueError where that cannot be: all requests come at once.
    """
    if facts.duration_s <= 0:
        raise ValueError("all requests of the trace come at the same time, so no load can be set: take more of them")
    return load * num_replicas * facts.duration_s / replica_s(facts, engine)


def run_trace(
    recording: Recording, settings: TraceSettings, policy: str, parameters: Settings, seed: int, *,
    on_progress: Callable[[int], Any] = nobody_watches,
) -> TraceResult:  # fmt: skip
    """Simulate until everything is answered. The same arguments give the same result to the last digit.

    Raises ValueError for a request that does not fit into a replica.
    """
    engine = settings.engine.settings(settings.kv_tokens, recording.block_tokens)
    rng, error = seeded(seed, "speeds"), settings.speed_error
    speeds = [rng.uniform(1 - error, 1 + error) for _ in range(settings.num_replicas)]
    # The seed is in the names, so that it also draws which prompts are at home where.
    replicas = [BlockReplica(f"r{number + 1}-{seed}", engine, speed=speed) for number, speed in enumerate(speeds)]
    plan = FrontPlan(replicas, engine, settings.num_gateways, seed)
    front = POLICIES[policy].build(plan, parameters)
    gateways = seeded(seed, "gateways")
    fleet = TraceFleet(
        replicas, front, hop_s=settings.hop_s, on_progress=on_progress,
        gateway_of=lambda _request: gateways.randrange(settings.num_gateways),
    )  # fmt: skip
    end_s = fleet.run(recording.requests, settings.speed)
    return _result(fleet, replicas, speeds, end_s)


def _result(fleet: TraceFleet, replicas: list[BlockReplica], speeds: list[float], end_s: float) -> TraceResult:
    flights = fleet.flights
    num_sent = [0] * len(replicas)
    for flight in flights:
        num_sent[flight.replica] += 1
    return TraceResult(
        ttft_s=np.array([flight.first_at - flight.arrived_at for flight in flights]),
        e2e_s=np.array([flight.over_at - flight.arrived_at for flight in flights]),
        gap_s=np.concatenate([np.array(replica.gaps.seconds, dtype=np.float64) for replica in replicas]),
        gap_counts=np.concatenate([np.array(replica.gaps.counts, dtype=np.int64) for replica in replicas]),
        replicas=tuple(
            ReplicaRun(
                name=f"r{number + 1}", speed=speed, requests=num, prompt_tokens=replica.prompt_tokens,
                hit_tokens=replica.hit_tokens, busy_s=replica.busy_s, evicted_blocks=replica.cache.evictions,
                preemptions=replica.preemptions,
            )
            for number, (replica, speed, num) in enumerate(zip(replicas, speeds, num_sent, strict=True))
        ),
        duration_s=end_s,
    )  # fmt: skip
