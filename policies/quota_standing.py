"""How a tenant stands: what is left of each limit, for the headers of an answer and for `GET /v1/limits`."""

from collections.abc import Sequence
from dataclasses import dataclass

from policies.lane import Lane
from policies.meters import Meter, Meters, Moment, Short, Standing
from policies.quota_level import Level
from policies.quota_refusal import Rejected, Scope, over


@dataclass(frozen=True, slots=True)
class LimitStanding:
    """One limit. `name`: as in the limits document. `lane`: of a `concurrency`, else None.

    `limit`, `remaining`, `used`: requests, charged tokens or nanodollars; what is reserved counts as used, which may be
    more than the limit. `reset_s`: as of a `Standing`; None for what is in flight. `is_shadow`: it refuses nothing.
    """

    scope: Scope
    name: str
    lane: Lane | None
    limit: int
    remaining: int
    used: int
    reset_s: float | None
    is_shadow: bool


def strictest(limits: Sequence[Meter], meters: Meters, moment: Moment) -> Standing | None:
    """The one with the least remaining, and of several the one that takes longest to be whole again."""
    found: Meter | None = None
    least, longest_s = 0, 0.0
    for meter in limits:
        remaining, reset_s = meters.remaining(meter, moment)
        if found is None or remaining < least or (remaining == least and reset_s > longest_s):
            found, least, longest_s = meter, remaining, reset_s
    return None if found is None else Standing(found.limit, least, longest_s)


def standings(levels: Sequence[Level], meters: Meters, moment: Moment) -> tuple[LimitStanding, ...]:
    """Every limit of every level, those in shadow mode and those inherited from the level above too."""
    found: list[LimitStanding] = []
    for level in levels:
        counted = (level.requests,) if level.has_rpm and level.requests is not None else ()
        found.extend(_of_meter(level, meter, meters, moment) for meter in counted + level.budgets(moment.unix))
        for lane, limit in zip(Lane, level.most_in_flight or (), strict=False):
            if limit is not None:
                used = level.in_flight[lane.rank]
                left = max(0, limit - used)
                found.append(LimitStanding(level.scope, "concurrency", lane, limit, left, used, None, level.is_shadow))
    return tuple(found)


def used_up(
    levels: Sequence[Level],
    meters: Meters,
    moment: Moment,
    *,
    with_requests: bool = False,
) -> Rejected | None:
    """The first enforced limit that has nothing left. `with_requests`: of requests a minute too.

    Where gateways count together, only what is known: while an allowance is on its way nothing is used up.
    """
    for level in levels:
        if level.is_shadow:
            continue
        requests = (level.requests,) if with_requests and level.has_rpm and level.requests is not None else ()
        for meter in requests + level.budgets(moment.unix):
            if meters.remaining(meter, moment)[0]:
                continue
            taken = meters.take(meter, 1, moment)
            if not isinstance(taken, Short):
                taken.undo(moment)
            elif not taken.is_pending:
                return over(taken, level.scope, 0, time_zone=level.limits.time_zone)
    return None


def _of_meter(level: Level, meter: Meter, meters: Meters, moment: Moment) -> LimitStanding:
    remaining, reset_s = meters.remaining(meter, moment)
    used = meters.used(meter, moment)
    return LimitStanding(level.scope, meter.counted.value, None, meter.limit, remaining, used, reset_s, level.is_shadow)
