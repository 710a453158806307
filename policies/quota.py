"""What a tenant may use right now: requests a minute and requests in flight, for a project and its organisation.

All limits of one request are taken in one step or not at all. The counters live here; the limits come with the tenant
at every call, so that a changed limit acts at once. Knows no clock and no network; not for use from several threads.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from policies.lane import Lane
from policies.request_window import WINDOW_S, RequestWindow
from policies.tenant import Limits, Tenant

CONCURRENCY_RETRY_S = 1.0  # chosen: nobody knows when a request in flight will end, nor who else has room


class Reason(Enum):
    """The limit that refused. The value is the `code` a client sees."""

    RPM = "rpm"
    CONCURRENCY = "concurrency"


class Scope(Enum):
    """Whose limit it is."""

    PROJECT = "project"
    ORGANIZATION = "organization"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refused, and nothing was counted. `retry_after_s`: None when waiting is no use (a limit of 0).

    `remaining`: what the refusing limit still allows, which is 0 in this version.
    """

    reason: Reason
    scope: Scope
    limit: int
    remaining: int
    retry_after_s: float | None
    message: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What the `x-ratelimit-*-requests` headers say, for the strictest limit (the one with the least remaining).

    `reset_s`: as OpenAI defines it, seconds until the limit is back in its initial state if nothing more is sent: until
    the last request counted leaves the window. 0.0 when none is counted.
    """

    limit: int
    remaining: int
    reset_s: float


class _Usage:
    """The counters of one project or organisation."""

    __slots__ = ("in_flight", "window")

    def __init__(self) -> None:
        self.window = RequestWindow()
        self.in_flight = [0] * len(Lane)

    @property
    def is_in_flight(self) -> bool:
        return any(self.in_flight)


_UNUSED = _Usage()  # read where nothing has been counted yet; never written


class Reservation:
    """One admitted request's share of the limits. Ends exactly once; a second end changes nothing.

    `settle` (or leaving the `with` block) when the request was worked on: it stays counted in its minute.
    `undo` when a later step refused it: every counter is as if it had never come.
    """

    __slots__ = ("_lane", "_quotas", "_second", "_usages")

    def __init__(self, quotas: "Quotas", usages: tuple[_Usage, ...], lane: Lane, second: int) -> None:
        self._quotas = quotas
        self._usages = usages
        self._lane = lane
        self._second = second

    @property
    def has_ended(self) -> bool:
        """Whether the share was given back."""
        return not self._usages

    def settle(self) -> None:
        """Give back the seat in flight; the request keeps its place in the minute."""
        self._end(is_undone=False)

    def undo(self) -> None:
        """Give back everything, the place in the minute too."""
        self._end(is_undone=True)

    def _end(self, *, is_undone: bool) -> None:
        usages, self._usages = self._usages, ()
        for usage in usages:
            usage.in_flight[self._lane.rank] -= 1
            if is_undone:
                usage.window.take_back(self._second)
        if usages:
            self._quotas.num_reservations -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.settle()

    def __repr__(self) -> str:
        return f"<Reservation {self._lane.value} {'ended' if self.has_ended else 'held'}>"


class Quotas:
    """The counters of every tenant seen in the last minute or in flight now; the others are dropped.

    `reserve`, `standing` and `expire` take `now` in monotonic seconds. `reserve` looks at no more than four old tenants
    to drop, so its cost does not depend on how many there are. `share`: the part of a limit that is enforced here,
    where several gateways each enforce one.
    """

    def __init__(self, share: Callable[[int], int] = lambda limit: limit) -> None:
        self._share = share
        # Least recently admitted first: what has expired is found at the front.
        self._projects: OrderedDict[str, _Usage] = OrderedDict()
        self._organizations: OrderedDict[str, _Usage] = OrderedDict()
        self.num_reservations = 0

    def reserve(self, tenant: Tenant, lane: Lane, now: float) -> Reservation | Rejected:
        """Count one request against the project's and the organisation's limits, or say which one refuses it.

        Mutates the counters only when it succeeds. Of two limits that refuse, the organisation's is named.
        """
        organization = self._organizations.get(tenant.organization_id, _UNUSED)
        project = self._projects.get(tenant.project_id, _UNUSED)
        rejected = self._refusal(organization, tenant.organization_limits, Scope.ORGANIZATION, lane, now) or (
            self._refusal(project, tenant.limits, Scope.PROJECT, lane, now)
        )
        if rejected is not None:
            return rejected
        usages = (
            _tracked(self._organizations, tenant.organization_id),
            _tracked(self._projects, tenant.project_id),
        )
        second = 0
        for usage in usages:
            second = usage.window.admit(now)
            usage.in_flight[lane.rank] += 1
        self.num_reservations += 1
        _drop_idle(self._organizations, now, most=2)
        _drop_idle(self._projects, now, most=2)
        return Reservation(self, usages, lane, second)

    def standing(self, tenant: Tenant, now: float) -> Standing | None:
        """The strictest request rate limit as it is enforced, or None if there is none. Does not mutate."""
        strictest: Standing | None = None
        for usage, limits in (
            (self._organizations.get(tenant.organization_id, _UNUSED), tenant.organization_limits),
            (self._projects.get(tenant.project_id, _UNUSED), tenant.limits),
        ):
            if limits.rpm is None:
                continue
            remaining = max(0, self._share(limits.rpm) - usage.window.num_admitted(now))
            reset_s = usage.window.empty_in_s(now)
            if strictest is None or (remaining, -reset_s) < (strictest.remaining, -strictest.reset_s):
                strictest = Standing(limits.rpm, remaining, reset_s)
        return strictest

    def expire(self, now: float) -> int:
        """Drop every tenant with nothing in flight and nothing in its minute; the number dropped."""
        dropped = 0
        for usages in (self._organizations, self._projects):
            idle = [of for of, usage in usages.items() if not (usage.is_in_flight or usage.window.num_admitted(now))]
            for of in idle:
                del usages[of]
            dropped += len(idle)
        return dropped

    def statistics(self) -> dict[str, int]:
        """`reservations` is 0 when quiescent; `projects` and `organizations` are those with counters held."""
        return {
            "reservations": self.num_reservations,
            "projects": len(self._projects),
            "organizations": len(self._organizations),
        }

    def __repr__(self) -> str:
        counts = " ".join(f"{name}={count}" for name, count in self.statistics().items())
        return f"<Quotas {counts}>"

    def _refusal(self, usage: _Usage, limits: Limits, scope: Scope, lane: Lane, now: float) -> Rejected | None:
        rpm = limits.rpm
        if rpm is not None and usage.window.num_admitted(now) >= (most := self._share(rpm)):
            retry_after_s = usage.window.below_in_s(most, now)
            if rpm and not most:
                retry_after_s = CONCURRENCY_RETRY_S  # another gateway may have room
            message = f"the {scope.value} may send {rpm} requests in {WINDOW_S} seconds{_part(most, rpm)}"
            return Rejected(Reason.RPM, scope, rpm, 0, retry_after_s, message)
        concurrency = None if limits.concurrency is None else limits.concurrency.get(lane)
        if concurrency is not None and usage.in_flight[lane.rank] >= (most := self._share(concurrency)):
            retry_after_s = CONCURRENCY_RETRY_S if concurrency else None
            message = (
                f"the {scope.value} may have {concurrency} requests in flight in the {lane.value} lane, "
                f"queued ones included{_part(most, concurrency)}"
            )
            return Rejected(Reason.CONCURRENCY, scope, concurrency, 0, retry_after_s, message)
        return None


def _part(most: int, limit: int) -> str:
    return "" if most == limit else f"; {most} of them through this gateway process"


def _tracked(usages: OrderedDict[str, _Usage], of: str) -> _Usage:
    """The counters of one tenant, now the most recently used."""
    usage = usages.get(of)
    if usage is None:
        usage = usages[of] = _Usage()
    else:
        usages.move_to_end(of)
    return usage


def _drop_idle(usages: OrderedDict[str, _Usage], now: float, *, most: int) -> int:
    """Drop what is idle among the `most` oldest; those still in flight go to the back, to be looked at later."""
    dropped = 0
    for _ in range(min(most, len(usages))):
        of, usage = next(iter(usages.items()))
        if usage.is_in_flight:
            usages.move_to_end(of)
        elif usage.window.num_admitted(now):
            break
        else:
            del usages[of]
            dropped += 1
    return dropped
