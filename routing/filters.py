"""Which replicas may be given a request at all, and in a few words why not."""

from collections.abc import Callable, Iterable
from enum import Enum

from routing.holdbacks import Holdbacks
from routing.query import RouteQuery
from routing.replica import Replica, ReplicaSpec, ReplicaState

MayUse = Callable[[str, ReplicaSpec], bool]  # (cache domain, replica): False keeps the tenant off one without a salt


class Rejection(Enum):
    """Why a replica is no candidate; receipts show the value."""

    NOT_READY = "not ready"
    EXCLUDED = "already tried"
    NOT_ALLOWED = "not for this tenant"
    NOT_LABELLED = "not one of the lane's replicas"
    UNFIT = "does not serve this endpoint"
    ASIDE = "asked to be left alone"
    FAILING = "failing"
    EJECTED = "ejected: it stands out among its model's replicas"
    STARTING = "starting slowly"
    NO_SEAT = "no free seat in the lane"
    BARRED = "no free seat there for this tenant"


_READY = ReplicaState.READY  # a global: looking a member up costs more than the test, once per replica and request


def fitting(
    replicas: Iterable[Replica],
    query: RouteQuery,
    may_use: MayUse | None,
    now: float,
    holdbacks: Holdbacks | None = None,
) -> tuple[list[Replica], list[tuple[str, Rejection]]]:
    """(those that can take the request now, the names of the others with why not), in order.

    `holdbacks`: who is held back, None for nobody.
    `rejection` says which; a healthy replica with a free seat, which is the common case, is seen here at once.
    """
    fit: list[Replica] = []
    filtered: list[tuple[str, Rejection]] = []
    rank = query.lane.rank
    is_plain = not (holdbacks or query.excluded or query.labels or query.barred or query.needs)
    for replica in replicas:
        breaker, spec = replica.breaker, replica.spec
        if (
            is_plain
            and replica.state is _READY
            and (may_use is None or spec.capabilities.cache_salt)
            and not breaker.is_open
            and now >= breaker.aside_until
            and replica.num_in_flight < replica.seat_limits[rank]
            and replica.in_flight[rank] < replica.lane_seats[rank]
            and spec.bulk_seats is None
        ):
            fit.append(replica)
            continue
        reason = rejection(replica, query, may_use, now, holdbacks)
        if reason is None:
            fit.append(replica)
        else:
            filtered.append((replica.name, reason))
    return fit, filtered


def rejection(
    replica: Replica, query: RouteQuery, may_use: MayUse | None, now: float, holdbacks: Holdbacks | None = None
) -> Rejection | None:
    """Why the replica (of the right model) cannot take the request now, or None if it can; the first reason that holds.

    Missing seats come last: they alone are worth waiting for.
    """
    if replica.state is not _READY:
        return Rejection.NOT_READY
    if query.excluded and replica.name in query.excluded:
        return Rejection.EXCLUDED
    spec = replica.spec
    domain = query.cache_domain or query.project_id
    if may_use is not None and not (spec.capabilities.cache_salt or may_use(domain, spec)):
        return Rejection.NOT_ALLOWED
    misfit = _misfit(spec, query)
    if misfit is not None:
        return misfit
    breaker = replica.breaker
    if not breaker.can_try(now):
        return Rejection.ASIDE if breaker.is_aside(now) else Rejection.FAILING
    return _missing_seat(replica, query) or (_held_back(replica, holdbacks, now) if holdbacks is not None else None)


def _held_back(replica: Replica, holdbacks: Holdbacks, now: float) -> Rejection | None:
    if holdbacks.is_ejected(replica.name):
        return Rejection.EJECTED
    return Rejection.STARTING if holdbacks.is_at_bound(replica, now) else None


def _misfit(spec: ReplicaSpec, query: RouteQuery) -> Rejection | None:
    if query.labels and not query.labels <= spec.labels.items():
        return Rejection.NOT_LABELLED
    return None if spec.serves(query.needs) else Rejection.UNFIT


def _missing_seat(replica: Replica, query: RouteQuery) -> Rejection | None:
    if not replica.has_seat(query.lane):
        return Rejection.NO_SEAT
    return Rejection.BARRED if query.barred and replica.name in query.barred else None
