"""What a waiting request brings to its model's queue, and what it gets: a turn, or that nobody can serve it."""

from dataclasses import dataclass

from policies.caps import CapLimits, Hold
from policies.entry import Entry, Picked
from routing.decision import NoReplica, RouteDecision
from routing.lease import Lease
from routing.query import RouteQuery

NO_CAPS = CapLimits()


@dataclass(slots=True, eq=False)
class Waiting:
    """What an entry waits for. `caps`: its tenant's in its lane, as they are now. `has_deadline`: the client's own.

    `ticket`: the caller's own.
    """

    query: RouteQuery
    caps: CapLimits = NO_CAPS
    has_deadline: bool = False
    ticket: object = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The entry need not wait: nobody can serve it. It is out of the queue."""

    entry: Entry
    reason: NoReplica


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that was read. `decision`: where and why. `transfer`: the engine's own JSON, for the one that answers.

    `cached_tokens`: of the prompt, that need not be read; None where the engine does not say.
    """

    decision: RouteDecision
    transfer: bytes
    cached_tokens: int | None


class Turn:
    """The right to one attempt: a decision, its seat, the tenant's part of its caps. Ended exactly once, by its queue.

    `cost`: what the request has cost so far in weighted tokens, kept up to date by who runs it. `prefilled`: its
    prompt, where another replica has read it.
    """

    __slots__ = ("cost", "decision", "hold", "is_over", "lease", "picked", "prefilled", "units")

    def __init__(
        self, picked: Picked, decision: RouteDecision, lease: Lease, hold: Hold, units: tuple[str, ...]
    ) -> None:
        self.picked = picked
        self.decision = decision
        self.lease = lease
        self.hold = hold
        self.units = units
        self.cost = 0.0
        self.prefilled: Prefilled | None = None
        self.is_over = False

    @property
    def entry(self) -> Entry:
        """Whose turn it is."""
        return self.picked.entry

    @property
    def queued_s(self) -> float:
        """How long it was waited for."""
        return self.picked.queued_s

    def __repr__(self) -> str:
        return f"<Turn {self.entry.tenant} on {self.decision.chosen} {'over' if self.is_over else 'open'}>"
