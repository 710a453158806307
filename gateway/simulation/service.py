"""What every flow was charged, and when: the service that the queue's bound is about, and how near a run came to it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from policies.entry import Picked
from policies.lane import Lane

FlowName = tuple[str, Lane]


@dataclass(frozen=True, slots=True)
class Change:
    """One charge or correction of a flow, in weighted tokens divided by its weight.

    `rise`, `fall`: what its requests in flight will still be corrected by from here on, up and down.
    """

    at: float
    flow: FlowName
    amount: float
    rise: float
    fall: float


@dataclass(slots=True)
class _Charge:
    """Of one request. `correction`: 0 while it is not known."""

    flow: FlowName
    weight: float
    charged: float
    correction: float = 0.0


class ServiceLog:
    """The charges of a run, in order. Unbounded in its length, as a run is bounded itself."""

    def __init__(self) -> None:
        self._open: dict[Picked, _Charge] = {}
        self._moves: list[tuple[float, bool, _Charge]] = []  # (when, whether it is the end, whose charge)

    def __repr__(self) -> str:
        return f"<ServiceLog open={len(self._open)} moves={len(self._moves)}>"

    def opened(self, picked: Picked, now: float) -> None:
        """A request was dispatched, and its flow charged."""
        charge = _Charge((picked.entry.tenant, picked.entry.lane), picked.weight, picked.charged)
        self._open[picked] = charge
        self._moves.append((now, False, charge))

    def ended(self, picked: Picked, actual_cost: float, now: float) -> None:
        """Its charge was corrected."""
        charge = self._open.pop(picked)
        charge.correction = actual_cost - charge.charged
        self._moves.append((now, True, charge))

    def charged(self, flow: FlowName, since: float, until: float) -> float:
        """Weighted tokens the flow was charged in [since, until), corrections made in it included."""
        found = (move for move in self._moves if since <= move[0] < until and move[2].flow == flow)
        return sum(charge.correction if is_end else charge.charged for _, is_end, charge in found)

    def changes(self) -> Iterator[Change]:
        """Every change of a flow's account, in order."""
        rise: dict[FlowName, float] = defaultdict(float)
        fall: dict[FlowName, float] = defaultdict(float)
        for at, is_end, charge in self._moves:
            flow, sign, correction = charge.flow, -1 if is_end else 1, charge.correction / charge.weight
            rise[flow] += sign * max(0.0, correction)
            fall[flow] += sign * max(0.0, -correction)
            yield Change(at, flow, correction if is_end else charge.charged / charge.weight, rise[flow], fall[flow])


@dataclass(frozen=True, slots=True)
class ServiceGap:
    """Of two flows that both wait throughout, in weighted tokens by weight. `bound`: what the queue promises.

    `widest`: the greatest difference between what the two were given in any interval of the run.
    """

    widest: float
    bound: float


def service_gap(log: ServiceLog, one: FlowName, other: FlowName, *, quantum_tokens: float, since: float) -> ServiceGap:
    """The widest gap from `since` on, and `2 (Q + U)` with the U of this run (docs/design/003-fair-dispatch.md)."""
    ahead = low = high = charge = rise = fall = 0.0
    for change in log.changes():
        if change.flow not in {one, other}:
            continue
        charge, rise, fall = max(charge, change.amount), max(rise, change.rise), max(fall, change.fall)
        if change.at >= since:
            ahead += change.amount if change.flow == one else -change.amount
            low, high = min(low, ahead), max(high, ahead)
    return ServiceGap(high - low, 2 * (quantum_tokens + charge + rise + fall))
