"""From rows to totals, and which totals answer for a period of time. Pure; every ledger sums by these rules."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from policies.ledger import (
    ADMITTED_UNSENT,
    DAY_S,
    HOUR_S,
    REFUSED,
    Group,
    LedgerRow,
    Retention,
    Tally,
    Totals,
    UsagePage,
    UsageRow,
    Wanted,
)


class Share(NamedTuple):
    """Whose totals they are, and of what."""

    organization: str
    project: str
    key: str
    model: str
    lane: str


class Span(NamedTuple):
    """Totals of one length: those that start in `[starts_at, ends_at)`."""

    length_s: int
    starts_at: int
    ends_at: int


SpanTotals = dict[tuple[int, int, Share], Totals]  # (length_s, starts_at, whose)


def share_of(row: LedgerRow) -> Share:
    """Where the row is counted."""
    return Share(row.organization, row.project, row.key, row.model, row.lane)


def totals_of(row: LedgerRow) -> Totals:
    """What one row counts."""
    return Totals(
        requests=1,
        refused=int(row.outcome == REFUSED),
        prompt_tokens=row.prompt_tokens or 0,
        cached_tokens=row.cached_tokens or 0,
        completion_tokens=row.completion_tokens or 0,
        charged_tokens=row.charged_tokens,
        cost_nanousd=row.cost_nanousd or 0,
    )


def rolled_up(rows: Iterable[LedgerRow]) -> SpanTotals:
    """The rows' totals by hour and by day of UTC."""
    found: SpanTotals = {}
    for row in rows:
        totals, share, second = totals_of(row), share_of(row), int(row.started_at)
        for length_s in (HOUR_S, DAY_S):
            found.setdefault((length_s, second - second % length_s, share), Totals()).add(totals)
    return found


def spans_of(starts_at: int, ends_at: int) -> tuple[Span, ...]:
    """The totals that answer for `[starts_at, ends_at)` widened to hours: whole days, and the hours at both ends."""
    first_hour = starts_at - starts_at % HOUR_S
    last_hour = -(-ends_at // HOUR_S) * HOUR_S
    first_day = -(-first_hour // DAY_S) * DAY_S
    last_day = last_hour - last_hour % DAY_S
    if first_day >= last_day:
        first_day = last_day = last_hour
    spans = (
        Span(HOUR_S, first_hour, first_day),
        Span(DAY_S, first_day, last_day),
        Span(HOUR_S, last_day, last_hour),
    )
    return tuple(span for span in spans if span.starts_at < span.ends_at)


def widened(wanted: Wanted, now: float, keep: Retention) -> Wanted:
    """The period widened to what totals are kept for: hours of late, whole days before."""
    hours_since = now - keep.hours_days * DAY_S
    start_s = HOUR_S if wanted.starts_at >= hours_since else DAY_S
    end_s = HOUR_S if wanted.ends_at >= hours_since else DAY_S
    return replace(
        wanted, starts_at=wanted.starts_at - wanted.starts_at % start_s, ends_at=-(-wanted.ends_at // end_s) * end_s
    )


def day_of(starts_at: int) -> str:
    """The day of UTC, such as 2026-11-30."""
    return datetime.fromtimestamp(starts_at, UTC).strftime("%Y-%m-%d")


def day_start(day: str) -> int:
    """When a day of UTC begins, Unix seconds. Raises `ValueError` for what is no day."""
    return int(datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp())


def group_of(group_by: Group, share: Share, starts_at: int) -> str:
    """The name of the group that these totals belong to."""
    return day_of(starts_at) if group_by is Group.DAY else str(getattr(share, group_by.value))


def matches(share: Share, wanted: Wanted) -> bool:
    """Whether every filter is met."""
    return all(getattr(share, name) == value for name, value in wanted.filters().items())


def page_of(groups: dict[str, Totals], limit: int, after: str | None) -> UsagePage:
    """One page of all groups."""
    names = sorted(name for name in groups if after is None or name > after)
    rows = tuple(UsageRow(name, groups[name]) for name in names[:limit])
    return UsagePage(rows, names[limit - 1] if len(names) > limit else None)


Stretches = dict[tuple[str, str, int], Totals]  # (organisation, project, `starts_at`)


def was_admitted(row: LedgerRow) -> bool:
    """Whether the request keeps its place in the minute: one that was refused before its turn leaves no trace."""
    return row.attempts > 0 or row.outcome in ADMITTED_UNSENT


def tallied(rows: Iterable[LedgerRow], every_s: int) -> list[Tally]:
    """The admitted rows' totals for each project and stretch of time, in that order."""
    found: Stretches = {}
    for row in filter(was_admitted, rows):
        second = int(row.started_at)
        at = (row.organization, row.project, second - second % every_s)
        found.setdefault(at, Totals()).add(totals_of(row))
    return in_order(found)


def in_order(stretches: Stretches) -> list[Tally]:
    """By organisation, project and time."""
    return [Tally(*at, totals) for at, totals in sorted(stretches.items(), key=lambda one: one[0])]


def cursor_of(row: LedgerRow) -> str:
    """Where a page of rows ended: `after` for the next."""
    return f"{row.started_at!r}~{row.request_id}"


def read_cursor(after: str) -> tuple[float, str]:
    """(started_at, request_id) of a cursor. Raises `ValueError`."""
    moment, separator, request_id = after.partition("~")
    if not separator or not 0 <= float(moment) < 1e11:
        raise ValueError("this is not where a page ended")
    return float(moment), request_id
