"""Both levels of a tenant's limits, made ready for one request after another.

Built once for each tenant object and kept: on a request's path nothing is looked up by name and no calendar is asked,
until the day or the month is over.
"""

from collections.abc import Callable

from policies.lane import Lane
from policies.meters import Counted, Meter, Moment
from policies.prices import Work, charged_tokens
from policies.quota_level import NEVER, Level, organization_meters, project_meters
from policies.quota_refusal import Scope
from policies.sole_bundle import SoleBundle
from policies.sole_meters import SoleMeters
from policies.tenant import Tenant


class Plan:
    """Both levels of one tenant, the organisation's first. `touched_at`: monotonic, when it was last asked.

    `requests`: the meters of requests that are enforced, of both levels. Where one process counts alone (`meters` is
    given), all that both levels count is also at hand in one step: None where there is nothing, or only each by itself.
    """

    __slots__ = (
        "_arrivals",
        "_budgets",
        "_caps",
        "_enforced",
        "_meters",
        "_shown_tokens",
        "_since",
        "_tokens",
        "_until",
        "_weight",
        "_weight_above",
        "has_budgets",
        "has_money",
        "levels",
        "project",
        "requests",
        "shown_requests",
        "tenant",
        "touched_at",
    )

    def __init__(
        self, tenant: Tenant, in_flight_of: Callable[[str], list[int]], meters: SoleMeters | None, *, counts_all: bool
    ) -> None:
        organization, project = organization_meters(tenant.organization_id), project_meters(tenant.project_id)
        self.tenant = tenant
        self.project = Level(Scope.PROJECT, project, tenant.limits, in_flight_of(project), counts_all=counts_all)
        above, running = tenant.organization_limits, in_flight_of(organization)
        self.levels = (Level(Scope.ORGANIZATION, organization, above, running, counts_all=counts_all), self.project)
        enforced = [level for level in self.levels if not level.is_shadow]
        self.requests = tuple(level.requests for level in enforced if level.has_rpm and level.requests is not None)
        self.has_budgets = any(level.has_budgets for level in self.levels)
        self.has_money = any(level.limits.usd_per_month is not None for level in self.levels)
        self.touched_at = 0.0
        self._meters = meters
        self._weight_above, self._weight = (level.cached_weight for level in self.levels)
        self._caps = tuple(_caps_of(self.levels, lane) for lane in Lane)
        arrivals = [level.requests for level in self.levels if level.requests is not None]
        self._arrivals = self._bundle([(meter, 0) for meter in arrivals])
        self.shown_requests = self._bundle([(meter, 0) for meter in self.requests])
        self._tokens: tuple[Meter, ...] = ()
        self._budgets: SoleBundle | None = None
        self._enforced: SoleBundle | None = None
        self._shown_tokens: SoleBundle | None = None
        self._since, self._until = NEVER

    def enter(self, rank: int, moment: Moment) -> int | None:
        """Count one request in flight and in the minute at both levels; the second. None: ask each level by itself."""
        if self._arrivals is None:
            return None
        for in_flight, most in self._caps[rank]:
            if in_flight[rank] >= most:
                return None
        second = self._arrivals.try_add(1, moment)
        if second is not None:
            for level in self.levels:
                level.in_flight[rank] += 1
        return second

    def leave_minute(self, second: int) -> None:
        """Undo `enter`, as far as it is about the minute."""
        if self._arrivals is not None:
            self._arrivals.give_back(1, second)

    def budgets(self, unix: float) -> SoleBundle | None:
        """Tokens and money of both levels at this instant. A request's amounts are in the order of `amounts`."""
        if not self._since <= unix < self._until:
            self._open(unix)
        return self._budgets

    def has_room(self, moment: Moment, *, with_requests: bool = False) -> bool:
        """Whether one step tells that something is left of every enforced limit of tokens and money.

        False: ask each by itself. `with_requests`: of requests a minute too.
        """
        if self._meters is None:
            return False
        if with_requests and self.shown_requests is not None and not self.shown_requests.has_room(moment):
            return False
        if not self._since <= moment.unix < self._until:
            self._open(moment.unix)
        return self._enforced is None or self._enforced.has_room(moment)

    def amounts(self, nanousd: int, work: Work) -> tuple[int, int, int]:
        """What work counts for: money, tokens of the organisation, of the project, each by its own discount."""
        tokens = charged_tokens(work, self._weight)
        return (
            nanousd,
            tokens if self._weight == self._weight_above else charged_tokens(work, self._weight_above),
            tokens,
        )

    def tokens(self, unix: float) -> tuple[Meter, ...]:
        """The meters of tokens that are enforced at this instant, of a minute and of a day, of both levels."""
        if not self._since <= unix < self._until:
            self._open(unix)
        return self._tokens

    def shown_tokens(self, unix: float) -> SoleBundle | None:
        """The same in one step."""
        if not self._since <= unix < self._until:
            self._open(unix)
        return self._shown_tokens

    def _open(self, unix: float) -> None:
        """Another day or month has begun."""
        of = [
            (meter, 0 if meter.counted is Counted.MONTH_MONEY else place, level)
            for place, level in enumerate(self.levels, start=1)
            for meter in level.budgets(unix)
        ]
        shown = [(meter, place) for meter, place, level in of if place and not level.is_shadow]
        self._tokens = tuple(meter for meter, _ in shown)
        self._budgets = self._bundle([(meter, place) for meter, place, _ in of])
        self._enforced = self._bundle([(meter, place) for meter, place, level in of if not level.is_shadow])
        self._shown_tokens = self._bundle(shown)
        self._since = max(level.since for level in self.levels)
        self._until = min(level.until for level in self.levels)

    def _bundle(self, of: list[tuple[Meter, int]]) -> SoleBundle | None:
        return self._meters.bundle(of) if of and self._meters is not None else None


def _caps_of(levels: tuple[Level, ...], lane: Lane) -> tuple[tuple[list[int], int], ...]:
    """What is in flight in a lane, and how much may be, at each level that limits it."""
    found = []
    for level in levels:
        most = None if level.most_in_flight is None else level.most_in_flight[lane.rank]
        if most is not None:
            found.append((level.in_flight, most))
    return tuple(found)
