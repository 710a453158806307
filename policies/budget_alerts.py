"""Budgets that are nearly used up: which thresholds are reached, and a name for each that all gateways agree on. Pure.

Of the calendar budgets alone, tokens of a day and money of a month: a limit of the last minute heals by itself.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from policies.meters import Meter
from policies.quota_level import Level, organization_meters, project_meters
from policies.quota_refusal import Scope
from policies.tenant import Tenant

THRESHOLDS = (50, 80, 100)  # percent


@dataclass(frozen=True, slots=True)
class BudgetAlert:
    """A threshold (percent) that is reached in one window of one budget. `used`: when it was looked at."""

    meter: Meter
    threshold: int
    used: int

    @property
    def id(self) -> str:
        """The same at every gateway and at every look of the same window, also if the limit was changed in it."""
        return "alert_" + hashlib.sha256(f"{self.meter.key}:{self.threshold}".encode()).hexdigest()[:32]

    @property
    def is_of_project(self) -> bool:
        """Whether it is a project's budget; else its organisation's."""
        return self.meter.of.startswith("project:")

    @property
    def subject_id(self) -> str:
        """The project's or the organisation's id."""
        return self.meter.of.partition(":")[2]


class Budgets:
    """The calendar budgets of tenants, made ready once: no calendar is asked until a day or month is over."""

    def __init__(self) -> None:
        self._levels: dict[str, Level] = {}

    def meters(self, tenants: Iterable[Tenant], unix: float) -> Iterator[Meter]:
        """Every budget of the tenants and their organisations at this Unix second, each once. Forgets all others."""
        known, self._levels = self._levels, {}
        for tenant in tenants:
            for scope, of, limits in (
                (Scope.PROJECT, project_meters(tenant.project_id), tenant.limits),
                (Scope.ORGANIZATION, organization_meters(tenant.organization_id), tenant.organization_limits),
            ):
                if of in self._levels or (limits.tokens_per_day is None and limits.usd_per_month is None):
                    continue
                level = known.get(of)
                if level is None or level.limits != limits:
                    level = Level(scope, of, limits, [], counts_all=False)
                self._levels[of] = level
                yield from (one for one in level.budgets(unix) if not one.is_sliding)


def reached(meter: Meter, used: int) -> tuple[BudgetAlert, ...]:
    """Every threshold that this much reaches, the lowest first; none of a budget of nothing."""
    if meter.limit <= 0:
        return ()
    return tuple(BudgetAlert(meter, one, used) for one in THRESHOLDS if used * 100 >= one * meter.limit)
