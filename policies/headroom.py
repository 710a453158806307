"""Seats that a flooding tenant leaves free for those who come now and then. Pure.

A seat is held as long as an answer takes. Where one tenant holds them all, whoever comes waits until one comes free and
is picked after that: no order of requests helps. So a flow with a backlog leaves some seats of each replica free while
another tenant of the lane is about that has none: not below what that one holds, so nobody is kept from a fair share.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from policies.entry import Entry, Picked
from policies.flow import Flow
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class HeadroomSettings:
    """`share`: of a replica's seats, rounded down, so at 1/4 a replica of three seats leaves none; 0 for no headroom.

    `backlog`: who has more entries waiting floods. `about_s`: how long a tenant is about after a dispatch.
    Measured: docs/design/005-simulation.md.
    """

    share: float = 0.25
    backlog: int = 4
    about_s: float = 10.0

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that make no sense."""
        if not 0 <= self.share < 1 or self.backlog < 0 or self.about_s < 0:
            raise ValueError(f"a share below 1, and no number below 0: {self}")

    def seats(self, limit: int) -> int:
        """How many of a lane's `limit` seats on one replica are left free."""
        return int(limit * self.share)


class Headroom:
    """Who must leave seats free. Remembers two flows a lane. `now` is monotonic seconds.

    Only for lanes where people wait: bulk has no time to lose.
    """

    def __init__(self, settings: HeadroomSettings | None = None) -> None:
        self.settings = settings or HeadroomSettings()
        self._about: Mapping[Lane, list[tuple[Flow, float]]] = {Lane.INTERACTIVE: [], Lane.STANDARD: []}

    def dispatched(self, picked: Picked, now: float) -> None:
        """Note who got a turn: the two latest that do not flood, of different tenants, so that one is not the asker."""
        about, flow = self._about.get(picked.entry.lane), picked.flow
        if about is None:
            return
        others = [one for one in about if one[0].tenant != flow.tenant]
        about[:] = others[-2:] if self._floods(flow) else [*others[-1:], (flow, now)]

    def must_leave(self, entry: Entry, now: float) -> bool:
        """Whether a waiting entry may not take the last seats of a replica now. Does not mutate."""
        flow, about = entry.flow, self._about.get(entry.served_as)
        if flow is None or not about or not self._floods(flow):
            return False
        held = flow.in_flight / flow.weight
        return any(
            other.tenant != flow.tenant and now - at < self.settings.about_s and other.in_flight / other.weight < held
            for other, at in about
        )

    def _floods(self, flow: Flow) -> bool:
        return len(flow) > self.settings.backlog

    def __repr__(self) -> str:
        return f"<Headroom about={[flow.tenant for flows in self._about.values() for flow, _ in flows]}>"
