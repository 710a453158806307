"""One level of a tenant's limits (its organisation's, its own), made ready for counting.

Built once for each tenant and kept: on a request's path nothing is looked up by name and no calendar is asked, until
the day or the month is over.
"""

from policies.calendar_windows import Window, day_window, month_window
from policies.lane import Lane
from policies.meters import UNLIMITED, Counted, Meter
from policies.prices import cached_weight, nanodollars
from policies.quota_refusal import Scope
from policies.tenant import Limits

NEVER = (float("inf"), float("-inf"))  # `since`, `until` of what is not ready


class Level:
    """What is counted for one project or organisation. `in_flight`: by lane rank, the same list as long as it lives.

    `requests`: the meter of requests a minute, None if they are not counted; `has_rpm`: whether they are limited.
    `is_shadow`: nothing here refuses. `since`, `until`: for which instants the budgets at hand are the right ones.
    `cached_weight`: what of a cached token is charged, in millionths.
    """

    __slots__ = (
        "_budgets",
        "cached_weight",
        "has_budgets",
        "has_rpm",
        "in_flight",
        "is_shadow",
        "limits",
        "most_in_flight",
        "of",
        "requests",
        "scope",
        "since",
        "until",
    )

    def __init__(self, scope: Scope, of: str, limits: Limits, in_flight: list[int], *, counts_all: bool) -> None:
        """`counts_all`: count requests also where they are not limited, so that a limit set later finds them."""
        self.scope = scope
        self.of = of
        self.limits = limits
        self.in_flight = in_flight
        self.is_shadow = limits.shadow
        self.cached_weight = cached_weight(limits.cached_token_discount)
        self.has_rpm = limits.rpm is not None
        self.requests: Meter | None = None
        if limits.rpm is not None or counts_all:
            self.requests = Meter(of, Counted.REQUESTS, UNLIMITED if limits.rpm is None else limits.rpm)
        concurrency = limits.concurrency
        self.most_in_flight = None if concurrency is None else tuple(concurrency.get(lane) for lane in Lane)
        self.has_budgets = any(limit is not None for limit in (limits.tpm, limits.tokens_per_day, limits.usd_per_month))
        self._budgets: tuple[Meter, ...] = ()
        self.since, self.until = NEVER

    def budgets(self, unix: float) -> tuple[Meter, ...]:
        """The meters of tokens and money in force at this instant. Tokens a minute, a day, money a month."""
        if not self.since <= unix < self.until:
            self._open(unix)
        return self._budgets

    def _open(self, unix: float) -> None:
        limits, zone = self.limits, self.limits.time_zone
        self.since, self.until = float("-inf"), float("inf")
        meters = []
        if limits.tpm is not None:
            meters.append(Meter(self.of, Counted.TOKENS, limits.tpm))
        if limits.tokens_per_day is not None:
            meters.append(self._calendar(Counted.DAY_TOKENS, limits.tokens_per_day, day_window(unix, zone)))
        if limits.usd_per_month is not None:
            most = nanodollars(limits.usd_per_month)
            meters.append(self._calendar(Counted.MONTH_MONEY, most, month_window(unix, zone)))
        self._budgets = tuple(meters)

    def _calendar(self, counted: Counted, limit: int, window: Window) -> Meter:
        self.since = max(self.since, window.starts_at)
        self.until = min(self.until, window.ends_at)
        return Meter(self.of, counted, limit, window.starts_at, window.ends_at)


def project_meters(project_id: str) -> str:
    """`Meter.of` of a project."""
    return f"project:{project_id}"


def organization_meters(organization_id: str) -> str:
    """`Meter.of` of an organisation."""
    return f"organization:{organization_id}"
