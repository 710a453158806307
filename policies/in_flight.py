"""A place in flight that several gateways count together: a leased unit, held with whatever else a request took.

Where one process counts alone its own numbers are exact and nothing here is used. Knows no clock and no network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.lane import Lane
from policies.leases import Holdings, cap
from policies.meters import Moment, Take


@dataclass(frozen=True, slots=True)
class Unit:
    """One place in flight. `resource`: its name among the leases. `limit`: of all gateways together."""

    resource: str
    limit: int


class UnitTake:
    """A unit, and a place in the minute that was taken with it. Ends once, by `correct` or `undo`."""

    __slots__ = ("_beside", "_holdings", "_resource")

    def __init__(self, holdings: Holdings, resource: str, beside: Take | None) -> None:
        self._holdings: Holdings | None = holdings
        self._resource = resource
        self._beside = beside

    def correct(self, actual: int, moment: Moment) -> None:
        """The request has ended: the unit is free, the place in the minute stays counted."""
        if self._ends() and self._beside is not None:
            self._beside.correct(actual, moment)

    def undo(self, moment: Moment) -> None:
        """As if the request had never come."""
        if self._ends() and self._beside is not None:
            self._beside.undo(moment)

    def _ends(self) -> bool:
        """Whether this is the first end."""
        holdings, self._holdings = self._holdings, None
        if holdings is None:
            return False
        holdings.give_back(self._resource)
        return True

    def __repr__(self) -> str:
        return f"<UnitTake {self._resource}{'' if self._holdings else ' ended'}>"


class InFlight:
    """Requests in flight over all gateways, by level and lane."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings

    def take(self, of: str, lane: Lane, limit: int, beside: Take | None, now: float) -> UnitTake | Unit | None:
        """A unit of the level `of`; a `Unit` that may be had in a moment; or None: as many are in flight as may be.

        `beside`: ends with the unit; nothing happens to it where there is none.
        """
        resource = cap(of, lane)
        if self._holdings.try_take(resource, limit, now):
            return UnitTake(self._holdings, resource, beside)
        return Unit(resource, limit) if self._holdings.may_come(resource, now) else None

    def relimit(self, of: str, most: Mapping[Lane, int] | None) -> None:
        """The limits of a level are others now; requests that hold a unit keep it."""
        for lane, limit in (most or {}).items():
            self._holdings.relimit(cap(of, lane), limit)
