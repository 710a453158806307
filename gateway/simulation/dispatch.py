"""The gateway's side of a run: live traffic's own queue, caps, router and pool, driven by events in place of asyncio.

Who gets which seat, `ModelQueue` says, here as there. A turn's story is the lifecycle's: first content, settle (what
the engine reported teaches router and queue), turn ended, and whoever waits is looked at again. Nobody is shed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.model_queue import MarketRules, ModelQueue
from gateway.simulation.prompts import key_of
from gateway.simulation.service import ServiceLog
from gateway.simulation.workload import SimulatedRequest
from gateway.turn import NO_CAPS, Absent, Turn, Waiting
from policies.caps import CapLimits, Caps
from policies.entry import Entry
from policies.fair_queue import FairQueue
from policies.fair_settings import FairSettings
from policies.lane import Lane
from policies.output_estimate import OutputEstimates
from policies.saturation import Saturation, SaturationSettings
from routing.query import RouteQuery
from routing.router import Router


@dataclass(frozen=True, slots=True)
class TenantRule:
    """What a tenant is worth, and what it may hold by lane."""

    weight: float = 1.0
    caps: Mapping[Lane, CapLimits] = field(default_factory=dict)


_USUAL = TenantRule()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The queue's numbers, and the tenants' rules by name; others have weight 1 and no caps."""

    fair: FairSettings = field(default_factory=FairSettings)
    tenants: Mapping[str, TenantRule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Served:
    """The work a request really was, whether it ended well or its client left: what its flow is charged for."""

    uncached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What the engine reported of a request. `ttft_s`: from dispatch; None if no token came."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None


class Dispatch:
    """One model's queue over one router. `service`: what every flow was charged, and when."""

    def __init__(
        self, model: str, router: Router, settings: GatewaySettings | None = None, rules: MarketRules | None = None
    ) -> None:
        self.settings = settings or GatewaySettings()
        self.router = router
        fair = FairQueue(self.settings.fair)
        self.caps = Caps(on_give_back=fair.wake_flow)
        saturation, rules = Saturation(SaturationSettings()), rules or MarketRules()
        self.queue = ModelQueue(model, router, self.caps, queue=fair, saturation=saturation, rules=rules)
        self.service = ServiceLog()
        self._outputs = OutputEstimates()

    def enter(self, request: SimulatedRequest, ticket: object, now: float) -> Entry:
        """Let a request wait. `ticket`: what the caller wants to find in its turn. Then `turns`, then `turned_away`."""
        key = key_of(request.prompt, self.queue.model, request.tenant)
        query = RouteQuery(self.queue.model, key, request.lane, request.tenant, request.answer.num_tokens)
        return self.wait(query, ticket, now)

    def wait(self, query: RouteQuery, ticket: object, now: float) -> Entry:
        """The same for a request whose prompt is no text."""
        tenant, lane = query.project_id, query.lane
        rule = self.settings.tenants.get(tenant, _USUAL)
        waiting = Waiting(query, rule.caps.get(lane, NO_CAPS), ticket=ticket)
        expected = self._outputs.expected(tenant, lane)
        entry = Entry(tenant, lane, waiting, weight=rule.weight, output_tokens=expected)
        self.queue.enter(entry, now)
        return entry

    def turned_away(self, newcomer: Entry, now: float) -> Entry | None:
        """Who had to leave the queue for it, mostly itself; None if it has a seat or a place."""
        overflow = self.queue.queue.overflow(newcomer) if newcomer.is_waiting else None
        if overflow is None:
            return None
        self.queue.leave(overflow.entry, now)
        return overflow.entry

    def leave(self, entry: Entry, now: float) -> None:
        """Its client has left; harmless if it does not wait (any more)."""
        self.queue.leave(entry, now)

    def turns(self, now: float) -> list[Turn]:
        """All turns that can be given now."""
        turns: list[Turn] = []
        for turn in self.queue.turns(now):
            assert not isinstance(turn, Absent), f"no replica will ever serve {turn}"
            self.service.opened(turn.picked, now)
            turns.append(turn)
        return turns

    def first_token(self, turn: Turn) -> None:
        """The prompt is read."""
        turn.lease.prefilled()

    def finished(self, turn: Turn, usage: Usage, now: float) -> None:
        """The answer is complete: learn from it, give the seat back."""
        self.router.settled(
            turn.decision, turn.lease, now=now, prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens,
            ttft_s=usage.ttft_s,
        )  # fmt: skip
        self._outputs.observe(turn.entry.tenant, turn.entry.lane, usage.output_tokens)
        self._end(turn, Served(usage.prompt_tokens - usage.cached_tokens, usage.output_tokens), now)

    def abandoned(self, turn: Turn, served: Served, now: float) -> None:
        """Its client has left: the work is charged and nothing else learned."""
        self._end(turn, served, now)

    def _end(self, turn: Turn, served: Served, now: float) -> None:
        turn.cost = self.settings.fair.cost(served.uncached_tokens, served.output_tokens)
        self.service.ended(turn.picked, turn.cost, now)
        self.queue.end(turn, now)
