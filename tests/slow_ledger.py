"""A ledger that keeps every row in a list and sums over all of them each time: what the others are compared with."""

import math
from datetime import UTC, datetime

from policies.ledger import HOUR_S, Group, LedgerRow, Totals


class SlowLedger:
    """Rows by id; nothing is ever dropped."""

    def __init__(self):
        self.kept = {}

    def add(self, rows):
        """How many were new."""
        before = len(self.kept)
        for row in rows:
            self.kept.setdefault(row.request_id, row)
        return len(self.kept) - before

    def rows(self, wanted):
        """All rows of the period, in order."""
        found = [one for one in self.kept.values() if wanted.starts_at <= one.started_at < wanted.ends_at]
        found = [one for one in found if all(getattr(one, name) == value for name, value in wanted.filters().items())]
        return sorted(found, key=lambda one: (one.started_at, one.request_id))

    def usage(self, wanted, group_by):
        """Totals of whole hours by group."""
        first = math.floor(wanted.starts_at / HOUR_S) * HOUR_S
        last = math.ceil(wanted.ends_at / HOUR_S) * HOUR_S
        groups = {}
        for row in self.kept.values():
            if first <= row.started_at < last and all(
                getattr(row, name) == value for name, value in wanted.filters().items()
            ):
                groups.setdefault(_name(group_by, row), Totals()).add(_counted(row))
        return dict(sorted(groups.items()))


def _name(group_by, row):
    if group_by is not Group.DAY:
        return getattr(row, group_by.value)
    return datetime.fromtimestamp(row.started_at, UTC).strftime("%Y-%m-%d")


def _counted(row: LedgerRow) -> Totals:
    return Totals(
        1,
        1 if row.outcome == "refused" else 0,
        row.prompt_tokens or 0,
        row.cached_tokens or 0,
        row.completion_tokens or 0,
        row.charged_tokens,
        row.cost_nanousd or 0,
    )
