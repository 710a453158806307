"""The gateway's view of one engine instance. Everybody may read a replica; only `pool` changes one.

What other gateways have under way there, `gossip_hearing` adds to its load.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from cache_affinity.fusion import HitConfidence
from cache_affinity.shadow import ShadowIndex
from engines.contract import Capabilities
from policies.lane import Lane
from routing.breaker import Breaker
from routing.step_model import ROW_PRICE, StepModel
from routing.ttft import TtftModel

UNLIMITED = (1 << 30,) * len(Lane)  # until somebody sets less
ROW_TOKENS = 256  # chosen: a request in flight weighs on its replica like a prompt of this many tokens


class ReplicaState(Enum):
    """Where a replica stands. Only a ready one is given requests; a removed one is in no state, it is gone."""

    JOINING = "joining"  # known, not yet proven (new, restarted, or coming back)
    READY = "ready"
    DRAINING = "draining"  # an operator's wish: finishes what it has; its health no longer moves it
    LOST = "lost"  # does not answer


MOVES: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.JOINING: frozenset({ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.LOST}),
    ReplicaState.READY: frozenset({ReplicaState.JOINING, ReplicaState.DRAINING, ReplicaState.LOST}),
    ReplicaState.DRAINING: frozenset({ReplicaState.JOINING, ReplicaState.READY}),
    ReplicaState.LOST: frozenset({ReplicaState.JOINING, ReplicaState.READY, ReplicaState.DRAINING}),
}


def prefill_name(model: str) -> str:
    """Under which the replicas that only read a model's prompts are known; no model can be called so."""
    return f"{model} (prefill)"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What configuration or discovery says of a replica; `name` is its identity.

    `url`: without `/v1`. `seats`: requests it may hold at once. `bulk_seats`: seats of bulk's own beside them, for
    engines that leave bulk out of their steps; None: bulk shares `seats`. `kv_tokens`: tokens its KV cache holds, if
    known. `generation`: differs after each restart of its process (any number; only a change means something).
    `is_cache_shared`: the operator accepts that tenants share its prefix cache, where the engine cannot separate them.
    `surfaces`: those it serves, None where that is not known. `prefills_for`: the model whose prompts it reads for
    others to answer, empty for one that answers; its `model` is then another name (`prefill_name`), under which such
    replicas are a pool of their own. `is_decoder`: it goes on with what those have read.
    """

    name: str
    model: str
    engine: str
    url: str
    seats: int
    labels: Mapping[str, str] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=Capabilities)
    kv_tokens: int | None = None
    generation: int = 0
    bulk_seats: int | None = None
    is_cache_shared: bool = False
    surfaces: AbstractSet[str] | None = None
    prefills_for: str = ""
    is_decoder: bool = False

    def serves(self, surface: str) -> bool:
        """Whether a request that needs this surface may be sent there; empty: any may."""
        return not surface or self.surfaces is None or surface in self.surfaces

    @property
    def kind(self) -> tuple[str, str, int | None]:
        """What it has in common with replicas that keep as much of a prompt as it does: model, engine and stated KV."""
        return self.model, self.engine, self.kv_tokens


class Replica:
    """One engine instance with its load, health and what it is believed to hold.

    `in_flight`: open leases by lane rank, `num_in_flight`: all of them; these two are this gateway's alone, the rest of
    its load is everybody's, as far as it is known. `num_flying`: requests there. `outstanding_tokens`: uncached prompt
    tokens given to it and not read yet. `work_tokens`: outstanding tokens plus `ROW_TOKENS` for each request; what load
    is judged by. The three `hidden_…`: how much of rows in flight, outstanding and work is bulk that the engine leaves
    out of people's steps, which interactive and standard requests do not feel. `others_tokens`, `others_hidden_tokens`:
    how much of the two is other gateways'. `learned_at`: when something was last learned of it, here or elsewhere.
    `seat_limits`: open leases below which a lane (by rank) may still be given a seat. `lane_seats`: open leases of its
    own below which it may, too; `bulk_seats`: what bulk may come to hold. `row_tokens`: what a decoding row adds to a
    step, as so many prompt tokens; learned.
    """

    __slots__ = (
        "breaker",
        "bulk_seats",
        "confidence",
        "exact_confidence",
        "hidden_in_flight",
        "hidden_tokens",
        "hidden_work",
        "in_flight",
        "joined_at",
        "lane_seats",
        "learned_at",
        "name",
        "name_bytes",
        "num_flying",
        "num_in_flight",
        "others_hidden_tokens",
        "others_tokens",
        "outstanding_tokens",
        "row_tokens",
        "seat_limits",
        "shadow",
        "spec",
        "state",
        "steps",
        "ttft",
        "work_tokens",
    )

    def __init__(self, spec: ReplicaSpec, shadow: ShadowIndex, seat_limits: tuple[int, ...], now: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.name_bytes = spec.name.encode()
        self.state = ReplicaState.JOINING
        self.joined_at = now
        self.in_flight = [0] * len(Lane)
        self.num_in_flight = 0
        self.num_flying = 0
        self.outstanding_tokens = 0
        self.work_tokens = 0
        self.hidden_in_flight = 0
        self.hidden_tokens = 0
        self.hidden_work = 0
        self.others_tokens = 0
        self.others_hidden_tokens = 0
        self.learned_at = now
        self.seat_limits = seat_limits
        self.lane_seats = UNLIMITED
        self.bulk_seats = UNLIMITED[Lane.BULK.rank]
        self.shadow = shadow
        self.confidence = HitConfidence()
        self.exact_confidence = HitConfidence()
        self.ttft = TtftModel()
        self.steps = StepModel()
        self.row_tokens = ROW_PRICE
        self.breaker = Breaker()

    def __repr__(self) -> str:
        flight = "+".join(map(str, self.in_flight))
        return (
            f"<Replica {self.name} {self.state.value} model={self.spec.model} generation={self.generation} "
            f"in_flight={flight}/{self.spec.seats} outstanding_tokens={self.outstanding_tokens} "
            f"borders={len(self.shadow)}>"
        )

    @property
    def own_tokens(self) -> int:
        """Outstanding tokens of this gateway's requests."""
        return self.outstanding_tokens - self.others_tokens

    @property
    def generation(self) -> int:
        """Which run of its process this is."""
        return self.spec.generation

    def has_seat(self, lane: Lane) -> bool:
        """Whether a request of this lane may be given a seat: the last are reserved for higher lanes."""
        rank, own = lane.rank, self.spec.bulk_seats
        if own is not None:
            bulk = self.in_flight[Lane.BULK.rank]
            if lane is Lane.BULK:
                return bulk < min(own, self.lane_seats[rank])
            return self.num_in_flight - bulk < self.seat_limits[rank] and self.in_flight[rank] < self.lane_seats[rank]
        return self.num_in_flight < self.seat_limits[rank] and self.in_flight[rank] < self.lane_seats[rank]

    def num_free(self, lane: Lane) -> int:
        """Free seats that a request of this lane may be given, its lane's own bounds apart."""
        beside = self.in_flight[Lane.BULK.rank] if self.spec.bulk_seats is not None else 0
        return self.seat_limits[lane.rank] - (self.num_in_flight - beside)

    def price_rows(self) -> None:
        """For who has just taught it something: take over what a row costs once both sides are learned."""
        if self.ttft.is_rate_learned and self.steps.num_observations:
            self.row_tokens = self.steps.row_tokens(self.ttft.ms_per_token)

    def add_others(self, rows: int, tokens: int, hidden_rows: int, hidden_tokens: int) -> None:
        """Other gateways have so much more (or, below 0, less) there; the hidden part is in it."""
        self.num_flying += rows
        self.outstanding_tokens += tokens
        self.others_tokens += tokens
        self.work_tokens += tokens + rows * ROW_TOKENS
        self.hidden_in_flight += hidden_rows
        self.hidden_tokens += hidden_tokens
        self.others_hidden_tokens += hidden_tokens
        self.hidden_work += hidden_tokens + hidden_rows * ROW_TOKENS

    def restart(self, now: float) -> None:
        """For `ReplicaPool` alone: its process is another one. Open leases stay counted until they end."""
        self.shadow.forget()
        self.confidence = HitConfidence()
        self.exact_confidence = HitConfidence()
        self.ttft = TtftModel()
        self.steps = StepModel()
        self.row_tokens = ROW_PRICE
        self.lane_seats = UNLIMITED
        self.bulk_seats = UNLIMITED[Lane.BULK.rank]
        self.breaker = Breaker()
        self.joined_at = self.learned_at = now
        if self.state is not ReplicaState.DRAINING:
            self.state = ReplicaState.JOINING
