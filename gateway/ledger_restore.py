"""What was used before this process began, from the ledger, so that nobody gets past a limit by a restart.

An organisation counts cached tokens by its own discount, the ledger's rows by the project's. The last minute is known
by the second. Days and months are known by the hour; an hour in which some tenant's day or month begins (where the time
zone is not of whole hours) is read from its rows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from policies.calendar_windows import day_window, month_window
from policies.ledger import HOUR_S, Ledger, Tally, Totals
from policies.ledger_totals import Stretches, in_order
from policies.meters import Counted
from policies.prices import cached_weight
from policies.quota import UsageRow
from policies.tenant import Tenant

MINUTE_S = 61  # what the window of a minute may still count
_PART_S = 900  # every time zone is a whole number of quarters of an hour away from UTC


async def used_so_far(ledger: Ledger, tenants: Iterable[Tenant], unix: float) -> list[UsageRow]:
    """For `Quotas.restore`: what every project used in the windows that run at `unix`. Raises `StoreError`."""
    tenants = tuple(tenants)
    weights = {tenant.project_id: _weights(tenant) for tenant in tenants}
    zones = {zone for tenant in tenants for zone in _zones(tenant)} or {"UTC"}
    days = [day_window(unix, zone).starts_at for zone in zones]
    months = [month_window(unix, zone).starts_at for zone in zones]
    end = int(unix) + 1
    rows: list[UsageRow] = []
    for one in await ledger.tally(unix - MINUTE_S, end, 1):
        rows.append(_row(one, Counted.REQUESTS, one.totals.requests))
        rows += _tokens(one, Counted.TOKENS, weights)
    borders = sorted({*days, *months})
    for one in await _by_windows(ledger, borders, end):
        if one.starts_at >= min(days):
            rows += _tokens(one, Counted.DAY_TOKENS, weights)
        rows.append(_row(one, Counted.MONTH_MONEY, one.totals.cost_nanousd))
    return [row for row in rows if row[-1]]


async def _by_windows(ledger: Ledger, borders: list[int], ends_at: int) -> list[Tally]:
    """What each project used between one border and the next, so that there are few rows, however long the month."""
    cut = {border - border % HOUR_S for border in borders if border % HOUR_S}
    first = borders[0] - borders[0] % HOUR_S
    tallies = [one for one in await ledger.hours(first, ends_at) if one.starts_at not in cut]
    for hour in cut:
        tallies += await _quarters(ledger, hour)
    found: Stretches = {}
    for one in tallies:
        place = bisect_right(borders, one.starts_at)
        if place:
            at = (one.organization, one.project, borders[place - 1])
            found.setdefault(at, Totals()).add(one.totals)
    return in_order(found)


async def _quarters(ledger: Ledger, hour: int) -> list[Tally]:
    """An hour's tallies by quarter; of rows that are no longer kept all count as of its last quarter."""
    quarters = await ledger.tally(hour, hour + HOUR_S, _PART_S)
    known = {(one.organization, one.project) for one in quarters}
    whole = [one for one in await ledger.hours(hour, hour + HOUR_S) if (one.organization, one.project) not in known]
    last = hour + HOUR_S - _PART_S
    return quarters + [Tally(one.organization, one.project, last, one.totals) for one in whole]


def _tokens(tally: Tally, counted: Counted, weights: Mapping[str, tuple[int, int]]) -> list[UsageRow]:
    """What the project was charged, and what that is for its organisation."""
    of_project = _row(tally, counted, tally.totals.charged_tokens)
    own, above = weights.get(tally.project, (0, 0))
    less = tally.totals.cached_tokens * (own - above) // 1_000_000
    if not less:
        return [of_project]
    project_id, organization_id, _, at, charged = of_project
    return [(project_id, "", counted, at, charged), ("", organization_id, counted, at, max(0, charged - less))]


def _weights(tenant: Tenant) -> tuple[int, int]:
    """What of a cached token is charged, in millionths: in the project, in the organisation."""
    limits = (tenant.limits, tenant.organization_limits)
    own, above = (cached_weight(one.cached_token_discount) for one in limits)
    return own, above


def _zones(tenant: Tenant) -> tuple[str, str]:
    return tenant.limits.time_zone, tenant.organization_limits.time_zone


def _row(tally: Tally, counted: Counted, amount: int) -> UsageRow:
    return tally.project, tally.organization, counted, float(tally.starts_at), amount
