"""A past period under other limits: which of its requests would have been refused, and by which limit. Pure.

The same counters and rules as at the gateway run over the ledger's rows in the order the requests came. A request that
was refused then is tried again here, at the cost that was expected of it, as far as that was known. Windows begin
empty at the first row.
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from policies.lane import Lane
from policies.ledger import REFUSED, LedgerRow
from policies.ledger_totals import was_admitted
from policies.meters import Moment
from policies.prices import Work
from policies.quota import Quotas, Rejected
from policies.reservation import Expected, Reservation
from policies.tenant import Tenant

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

    `of`: whose refusals are counted, a project id; the rest only uses up what the organisation shares.
    """

    def __init__(self, tenants: Mapping[str, Tenant], of: str) -> None:
        self.found = Replay()
        self._tenants = {project: _enforced(tenant) for project, tenant in tenants.items()}
        self._of = of
        self._quotas = Quotas()
        self._open: list[tuple[float, int, Reservation, LedgerRow]] = []  # a heap by the end
        self._order = itertools.count()

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
            moment = Moment(row.started_at, row.started_at)
            reservation = self._quotas.reserve(tenant, lane, moment)
            rejected = reservation if isinstance(reservation, Rejected) else reservation.hold(_expected(row), moment)
            if rejected is None:
                assert isinstance(reservation, Reservation), "it was not refused"
                heapq.heappush(self._open, (max(row.ended_at, row.started_at), next(self._order), reservation, row))
            else:
                limit = rejected.name
                if isinstance(reservation, Reservation):
                    reservation.undo(moment)
        if row.project == self._of:
            self._count(row, limit)

    def _forbidden(self, row: LedgerRow, lane: Lane, tenant: Tenant) -> str | None:
        """What is not a matter of how much."""
        if tenant.limits.models is not None and row.model and row.model not in tenant.limits.models:
            return "project.models"
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


def _expected(row: LedgerRow) -> Expected:
    """What was expected of it on arrival; of a refusal that came before, nothing."""
    tokens = row.reserved_tokens if row.reserved_tokens is not None else row.charged_tokens
    nanousd = 0 if row.cost_nanousd is None and row.outcome == REFUSED else row.cost_nanousd
    return Expected(tokens, min(tokens, row.prompt_tokens or tokens), nanousd, nanousd)


def _work(row: LedgerRow) -> Work:
    """What it used; of a request that was refused then, what was expected."""
    if row.prompt_tokens is None or row.completion_tokens is None:
        return Work(row.charged_tokens or (row.reserved_tokens or 0), 0, 0)
    return Work(row.prompt_tokens, min(row.cached_tokens or 0, row.prompt_tokens), row.completion_tokens)
