"""The numbers of the fair queue, with their units and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class LaneRule:
    """`weight`: share of the seats held, between standard and bulk only.

    `bound`: most entries waiting, once `FairQueue.overflow` was asked; tenants divide it by their weights.
    """

    weight: float = 1.0
    bound: int = 1000

    def __post_init__(self) -> None:
        if not self.weight > 0 or self.bound < 0:
            raise ValueError(f"a lane needs a weight above 0 and a bound of at least 0: {self}")


def _lanes() -> dict[Lane, LaneRule]:
    return {Lane.INTERACTIVE: LaneRule(), Lane.STANDARD: LaneRule(weight=3.0), Lane.BULK: LaneRule()}


@dataclass(frozen=True, slots=True)
class FairSettings:
    """Raises `ValueError` where a number makes no sense. Every number was chosen unless it says otherwise.

    `quantum_tokens` (Q): how far, in weighted tokens at weight 1, a flow may be ahead of the least served and still be
    chosen for its hit; 0 is strict fairness. Measured, as K is: docs/design/003-fair-dispatch.md.
    `flows`: flows that may be chosen, the least served.
    `skips` (K): how often a flow's first entry may be passed by flows that were served more. It takes about as many as
    there are replicas to wait for a seat on the warm one.
    `window` (W): entries of one flow that may be chosen, the first; so nobody is overtaken in its flow more than W - 1
    times. 1 is first come first served there.
    `heads` (H): entries with room compared in a pick. `asks`: most offers asked for in a pick, those without room too.
    `output_weight`: cost of an output token in prompt tokens (2, as in VTC's evaluation).
    `lift_after_s`: a bulk entry that waited so long is served as standard; None for never. `lifted_at_once`: how many
    may be in flight, so that a long bulk queue makes progress and does not become the standard lane.
    `debt_s`, `idle_flows`: how long, and for how many flows at most, a flow without work is remembered that got more
    than the others.
    """

    quantum_tokens: float = 4096.0
    flows: int = 8
    skips: int = 16
    window: int = 64
    heads: int = 4
    asks: int = 64
    output_weight: float = 2.0
    lift_after_s: float | None = 120.0
    lifted_at_once: int = 1
    debt_s: float = 60.0
    idle_flows: int = 4096
    lanes: Mapping[Lane, LaneRule] = field(default_factory=_lanes)

    def __post_init__(self) -> None:
        least_0 = (self.quantum_tokens, self.skips, self.output_weight, self.lifted_at_once, self.debt_s)
        if min(least_0) < 0:
            raise ValueError(f"quantum, skips, output weight, lifted entries and debt time are at least 0: {self}")
        least_1 = (self.flows, self.window, self.heads, self.idle_flows)
        if min(least_1) < 1 or self.asks < self.heads:
            raise ValueError(f"flows, window and heads are at least 1, and asks at least heads: {self}")
        if set(self.lanes) != set(Lane):
            raise ValueError("every lane needs a rule")

    def cost(self, uncached_tokens: float, output_tokens: float) -> float:
        """What a request costs in weighted tokens; at least 1, so that no service is free."""
        return max(1.0, uncached_tokens + self.output_weight * output_tokens)
