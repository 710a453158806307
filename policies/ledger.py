"""What is kept of every request for accounting, and the contract of every ledger that keeps it.

One row a request, told apart by its id: adding a row again changes nothing, so a replay may be repeated. From the rows
come totals by hour and by day that are kept longer. Times are Unix seconds; money is whole nanodollars.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from msgspec import Struct

MAX_PAGE = 1000
HOUR_S = 3600
DAY_S = 86400
HOURS_KEPT_DAYS = 62  # chosen: the running calendar month in any time zone, and the one before it
REFUSED = "refused"  # the outcome that counts as a refusal
ADMITTED_UNSENT = ("client_gone", "bug")  # outcomes that a request without a turn keeps its place in the minute with
RECOVERED = "recovered"  # the outcome of a request whose gateway died before it was settled


class LedgerRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Token counts are None where nobody reported them; `cost_nanousd` is None without a price.

    `reason`: the code of what went wrong; `limit`: which limit refused it, or in shadow mode would have. `recovered`:
    its gateway died, so it is charged what it had reserved.
    """

    request_id: str
    started_at: float
    ended_at: float
    organization: str
    project: str
    key: str
    model: str
    lane: str
    surface: str
    outcome: str
    status: int
    reason: str | None = None
    limit: str | None = None
    attempts: int = 0
    replica: str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    predicted_hit_tokens: int | None = None
    reserved_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    charged_tokens: int = 0
    cost_nanousd: int | None = None
    is_estimated: bool = False
    recovered: bool = False


class Group(Enum):
    """What usage is summed by. A day is one of UTC, written as 2026-11-30."""

    ORGANIZATION = "organization"
    PROJECT = "project"
    KEY = "key"
    MODEL = "model"
    LANE = "lane"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Requests that began in `[starts_at, ends_at)`, whole Unix seconds, and match every filter that is not None."""

    starts_at: int
    ends_at: int
    organization: str | None = None
    project: str | None = None
    key: str | None = None
    model: str | None = None
    lane: str | None = None

    def filters(self) -> dict[str, str]:
        """The filters that are set, by the name of the row's field."""
        named = {
            "organization": self.organization,
            "project": self.project,
            "key": self.key,
            "model": self.model,
            "lane": self.lane,
        }
        return {name: value for name, value in named.items() if value is not None}


class Totals(Struct, array_like=True):
    """Sums over requests. What nobody reported counts as 0."""

    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    charged_tokens: int = 0
    cost_nanousd: int = 0

    def add(self, other: "Totals") -> None:
        """Count these too."""
        self.requests += other.requests
        self.refused += other.refused
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.charged_tokens += other.charged_tokens
        self.cost_nanousd += other.cost_nanousd


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one group used."""

    group: str
    totals: Totals


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Groups in the order of their names. `next_after`: pass it as `after` to go on, None at the end."""

    rows: tuple[UsageRow, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows in order of (`started_at`, `request_id`). `next_after`: as of a `UsagePage`."""

    rows: tuple[LedgerRow, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """What a project's requests of one stretch of time come to. `starts_at`: of the stretch."""

    organization: str
    project: str
    starts_at: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept: rows, and totals by day; totals by hour for `HOURS_KEPT_DAYS` at most."""

    rows_days: int
    rollups_days: int

    @property
    def hours_days(self) -> int:
        """Days for which totals by hour are kept."""
        return min(self.rollups_days, HOURS_KEPT_DAYS)


class Ledger(Protocol):
    """Rows and totals. Any method may raise `policies.store.StoreError`."""

    @property
    def num_restored(self) -> int:
        """How often what it is kept in was taken away while it was open, and made again with all that was in it."""
        ...

    async def add(self, rows: Sequence[LedgerRow]) -> int:
        """Keep these and count them in the totals, all or none; how many were new. Known ids are passed over."""
        ...

    async def row(self, request_id: str) -> LedgerRow | None:
        """The row of one request, None if it is not kept."""
        ...

    async def rows(self, wanted: Wanted, *, limit: int = MAX_PAGE, after: str | None = None) -> RowPage:
        """Rows, the oldest first. Raises `ValueError` for an `after` that no page gave."""
        ...

    async def usage(
        self, wanted: Wanted, group_by: Group, *, limit: int = MAX_PAGE, after: str | None = None
    ) -> UsagePage:
        """Totals of whole hours: `wanted` is widened to them. Widen what is long ago to days (`ledger_totals.widened`).

        Raises `ValueError` for an `after` that no page gave.
        """
        ...

    async def hours(self, starts_at: int, ends_at: int) -> list[Tally]:
        """What each project's requests come to in each whole hour that starts in `[starts_at, ends_at)`."""
        ...

    async def tally(self, starts_at: float, ends_at: float, every_s: int) -> list[Tally]:
        """What the kept rows of each project's admitted requests come to, for each stretch of `every_s` seconds.

        The rows are read one by one: for short periods.
        """
        ...

    async def purge(self, now: float, keep: Retention) -> int:
        """Drop a bounded batch of what is older than it is kept; how much was dropped, 0 when nothing is left."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go. Harmless the second time."""
        ...
