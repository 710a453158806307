"""A past period under other limits: which of its requests would have been refused, and by which limit. Pure.

The same counters and rules as at the gateway run over the ledger's rows in the order the requests came. A request that
was refused then is tried again here, at the cost that was expected of it, as far as that was known. What came before
the period is counted first, as it was served, so that the minute, day and month in which it begins are not empty.
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from policies.calendar_windows import day_window, month_window
from policies.lane import Lane
from policies.ledger import REFUSED, LedgerRow
from policies.ledger_totals import was_admitted
from policies.meters import Moment
from policies.minute_window import WINDOW_S
from policies.prices import Work
from policies.quota import Quotas, Rejected
from policies.reservation import Expected, Reservation
from policies.tenant import Limits, Tenant

LONGEST_S = 3600  # chosen: what began earlier than that is not looked for among those in flight
_BEYOND = 10**15  # a limit that refuses nothing; of money, in dollars, a millionth of it
_LANES = {lane.value: lane for lane in Lane}


@dataclass(slots=True)
class Refusals:
    """What one limit would have refused. `charged_tokens`: of those that were served then. `first_at`: Unix seconds."""

    requests: int = 0
    charged_tokens: int = 0
    first_at: float = 0.0


@dataclass(slots=True)
class Replay:
    """What became of the requests of one project.

    `refused_then`: by the limits of that time. `newly_refused`: served then. `by_limit`: named as in a record, such as
    `project.rpm`.
    """

    requests: int = 0
    refused_then: int = 0
    refused_now: int = 0
    newly_refused: int = 0
    by_limit: dict[str, Refusals] = field(default_factory=dict)


class LimitsReplay:
    """`tenants`: by project id, with the limits to try; rows of other projects are passed over.

    `of`: whose refusals are counted, a project id; the rest only uses up what the organisation shares. `aliases`: other
    names of models, by the real one that the ledger has: a document may allow a model by any of them.
    """

    def __init__(
        self, tenants: Mapping[str, Tenant], of: str, aliases: Mapping[str, frozenset[str]] = MappingProxyType({})
    ) -> None:
        self.found = Replay()
        self._aliases = aliases
        self._tenants = {project: _enforced(tenant) for project, tenant in tenants.items()}
        self._unrefused = {project: _unrefused(tenant) for project, tenant in tenants.items()}
        self._of = of
        self._quotas = Quotas()
        self._open: list[tuple[float, int, Reservation, LedgerRow]] = []  # a heap by the end
        self._order = itertools.count()

    def prime(self, rows: Iterable[LedgerRow]) -> None:
        """Count these, which came before the period, whatever the limits. In order, as `take`."""
        for row in rows:
            tenant = self._unrefused.get(row.project)
            if tenant is not None and was_admitted(row):
                self._end_until(row.started_at)
                rejected = self._enter(row, _LANES.get(row.lane, tenant.limits.default_lane), tenant, is_served=True)
                assert rejected is None, "nothing is refused"

    def take(self, rows: Iterable[LedgerRow]) -> None:
        """Go on with these: all in the order of `started_at`, also from one call to the next."""
        for row in rows:
            tenant = self._tenants.get(row.project)
            if tenant is not None and (was_admitted(row) or row.outcome == REFUSED):
                self._end_until(row.started_at)
                self._try(row, tenant)

    def _try(self, row: LedgerRow, tenant: Tenant) -> None:
        lane = _LANES.get(row.lane, tenant.limits.default_lane)
        limit = self._forbidden(row, lane, tenant)
        if limit is None:
            rejected = self._enter(row, lane, tenant)
            limit = None if rejected is None else rejected.name
        if row.project == self._of:
            self._count(row, limit)

    def _enter(self, row: LedgerRow, lane: Lane, tenant: Tenant, *, is_served: bool = False) -> Rejected | None:
        """Count the request until it ends, or say which limit refuses it."""
        moment = Moment(row.started_at, row.started_at)
        reservation = self._quotas.reserve(tenant, lane, moment)
        if isinstance(reservation, Rejected):
            return reservation
        rejected = reservation.hold(_expected(row, is_served=is_served), moment)
        if rejected is not None:
            reservation.undo(moment)
            return rejected
        heapq.heappush(self._open, (max(row.ended_at, row.started_at), next(self._order), reservation, row))
        return None

    def _forbidden(self, row: LedgerRow, lane: Lane, tenant: Tenant) -> str | None:
        """What is not a matter of how much."""
        names = {row.model, *self._aliases.get(row.model, ())}
        if tenant.limits.models is not None and row.model and names.isdisjoint(tenant.limits.models):
            return "project.models"
        if tenant.limits.surfaces is not None and row.surface not in tenant.limits.surfaces:
            return "project.surfaces"
        return None if lane.is_within(tenant.limits.max_lane) else "project.max_lane"

    def _count(self, row: LedgerRow, limit: str | None) -> None:
        found = self.found
        found.requests += 1
        was_refused = row.outcome == REFUSED
        found.refused_then += was_refused
        if limit is None:
            return
        found.refused_now += 1
        found.newly_refused += not was_refused
        refusals = found.by_limit.setdefault(limit, Refusals(first_at=row.started_at))
        refusals.requests += 1
        refusals.charged_tokens += row.charged_tokens

    def _end_until(self, now: float) -> None:
        """Settle what ended by then, each at its own time."""
        while self._open and self._open[0][0] <= now:
            ended_at, _, reservation, row = heapq.heappop(self._open)
            moment = Moment(ended_at, ended_at)
            reservation.charge(_work(row), row.cost_nanousd, moment)
            reservation.settle(moment)


def _enforced(tenant: Tenant) -> Tenant:
    """What is only watched is tried as if it were enforced: that is the question."""
    return replace(
        tenant,
        limits=replace(tenant.limits, shadow=False),
        organization_limits=replace(tenant.organization_limits, shadow=False),
    )


def primed_from(tenants: Iterable[Tenant], starts_at: int) -> int:
    """From when on what was used still counts at `starts_at` (Unix seconds) by these limits."""
    begins = [starts_at - WINDOW_S - 1]
    for tenant in tenants:
        for limits in (tenant.organization_limits, tenant.limits):
            if limits.concurrency is not None:
                begins.append(starts_at - LONGEST_S)
            if limits.tokens_per_day is not None:
                begins.append(day_window(starts_at, limits.time_zone).starts_at)
            if limits.usd_per_month is not None:
                begins.append(month_window(starts_at, limits.time_zone).starts_at)
    return max(0, min(begins))


def _unrefused(tenant: Tenant) -> Tenant:
    """As large as they come, so that all is counted and nothing refused."""
    return replace(tenant, limits=_beyond(tenant.limits), organization_limits=_beyond(tenant.organization_limits))


def _beyond(limits: Limits) -> Limits:
    return replace(
        limits,
        shadow=False,
        rpm=None if limits.rpm is None else _BEYOND,
        tpm=None if limits.tpm is None else _BEYOND,
        tokens_per_day=None if limits.tokens_per_day is None else _BEYOND,
        usd_per_month=None if limits.usd_per_month is None else _BEYOND / 1e6,
        concurrency=None,
    )


def _expected(row: LedgerRow, *, is_served: bool) -> Expected:
    """What was expected of it on arrival; of a refusal that came before, nothing."""
    tokens = row.reserved_tokens if row.reserved_tokens is not None else row.charged_tokens
    nanousd = 0 if row.cost_nanousd is None and (row.outcome == REFUSED or is_served) else row.cost_nanousd
    return Expected(tokens, min(tokens, row.prompt_tokens or tokens), nanousd, nanousd)


def _work(row: LedgerRow) -> Work:
    """What it used; of a request that was refused then, what was expected."""
    if row.prompt_tokens is None or row.completion_tokens is None:
        return Work(row.charged_tokens or (row.reserved_tokens or 0), 0, 0)
    return Work(row.prompt_tokens, min(row.cached_tokens or 0, row.prompt_tokens), row.completion_tokens)
