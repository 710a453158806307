"""What was used before this process began, from the ledger, so that nobody gets past a limit by a restart.

The last minute is known by the second. Days and months are known by the hour; an hour in which some tenant's day or
month begins (where the time zone is not of whole hours) is read from its rows.
"""

from bisect import bisect_right
from collections.abc import Iterable

from policies.calendar_windows import day_window, month_window
from policies.ledger import HOUR_S, Ledger, Tally, Totals
from policies.ledger_totals import Stretches, in_order
from policies.meters import Counted
from policies.quota import UsageRow
from policies.tenant import Tenant

MINUTE_S = 61  # what the window of a minute may still count
_PART_S = 900  # every time zone is a whole number of quarters of an hour away from UTC


async def used_so_far(ledger: Ledger, tenants: Iterable[Tenant], unix: float) -> list[UsageRow]:
    """For `Quotas.restore`: what every project used in the windows that run at `unix`. Raises `StoreError`."""
    zones = {zone for tenant in tenants for zone in _zones(tenant)} or {"UTC"}
    days = [day_window(unix, zone).starts_at for zone in zones]
    months = [month_window(unix, zone).starts_at for zone in zones]
    end = int(unix) + 1
    rows: list[UsageRow] = []
    for one in await ledger.tally(unix - MINUTE_S, end, 1):
        rows.append(_row(one, Counted.REQUESTS, one.totals.requests))
        rows.append(_row(one, Counted.TOKENS, one.totals.charged_tokens))
    borders = sorted({*days, *months})
    for one in await _by_windows(ledger, borders, end):
        if one.starts_at >= min(days):
            rows.append(_row(one, Counted.DAY_TOKENS, one.totals.charged_tokens))
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


def _zones(tenant: Tenant) -> tuple[str, str]:
    return tenant.limits.time_zone, tenant.organization_limits.time_zone


def _row(tally: Tally, counted: Counted, amount: int) -> UsageRow:
    return tally.project, tally.organization, counted, float(tally.starts_at), amount
