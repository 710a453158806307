"""How fast a model's queue really drains, and what follows: who is shed, who is told when to return, who is too late.

Lanes are shed in order, bulk first. A request that cannot be dispatched before its deadline is refused at once: waiting
in vain costs its client more than an answer now. Knows no clock and no queue; it is told what happened and when.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

from policies.lane import Lane

LEAST_WAIT_S = 0.005  # chosen: who waited less found a seat at once, which says nothing about a queue
LEAST_SEEN = 8  # chosen: dispatches seen before an estimate may refuse anybody
LEAST_RETRY_S = 1.0  # a Retry-After is in whole seconds
_SHORTEST_S = 1e-6  # several may be dispatched in one moment
MOST_RETRY_S = 600.0  # chosen: further ahead nothing is known


def _most_waits() -> dict[Lane, float]:
    return {Lane.INTERACTIVE: 60.0, Lane.STANDARD: 300.0, Lane.BULK: 3600.0}


def _shed_at() -> dict[Lane, float]:
    return {Lane.INTERACTIVE: 1.0, Lane.STANDARD: 0.8, Lane.BULK: 0.5}


@dataclass(frozen=True, slots=True)
class SaturationSettings:
    """`max_wait_s`: by lane. `shed_at`: pressure from which a lane is shed; never higher for a lower lane.

    `kv_pressed_from`: KV use (0..1) from which it counts as pressure. `memory_s`: how long drain rates are remembered.
    `cold_per_s`: the drain rate believed before any was seen. Raises `ValueError` if lanes would be shed out of order.
    """

    max_wait_s: Mapping[Lane, float] = field(default_factory=_most_waits)
    shed_at: Mapping[Lane, float] = field(default_factory=_shed_at)
    kv_pressed_from: float = 0.9
    memory_s: float = 30.0
    cold_per_s: float = 1.0

    def __post_init__(self) -> None:
        if not self.shed_at[Lane.BULK] <= self.shed_at[Lane.STANDARD] <= self.shed_at[Lane.INTERACTIVE]:
            raise ValueError(f"lanes are shed from the lowest, but the settings say {self.shed_at}")
        if not 0 <= self.kv_pressed_from < 1 or min(self.memory_s, self.cold_per_s, *self.max_wait_s.values()) <= 0:
            raise ValueError(f"KV pressure starts within 0..1, and times and rates are above 0: {self}")


@dataclass(frozen=True, slots=True)
class Load:
    """How a model stands now. Ratios are 0..1 over its ready replicas; `oldest_wait_s`: by lane, 0 for an empty one."""

    seats_used_ratio: float
    kv_used_ratio: float
    oldest_wait_s: Mapping[Lane, float]


@dataclass(frozen=True, slots=True)
class Shed:
    """Refused to protect those above; `pressure` had reached `shed_at`."""

    lane: Lane
    pressure: float
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class TooLate:
    """Refused because its deadline cannot be met. `wait_s`: what it would have had to wait, as far as known."""

    lane: Lane
    wait_s: float
    retry_after_s: float


class DrainRate:
    """Dispatches a second of one lane while somebody waits in it, by decayed sums of dispatches and of waiting time.

    A lane that stands still drains more slowly the longer it stands: the time since the last dispatch counts.
    """

    __slots__ = ("_memory_s", "_num", "_time_s", "_waited_since", "num_seen")

    def __init__(self, memory_s: float, cold_per_s: float) -> None:
        self._memory_s = memory_s
        self._num = 1.0  # one dispatch at the cold rate, until the first real one
        self._time_s = 1.0 / cold_per_s
        self._waited_since: float | None = None
        self.num_seen = 0

    def arrived(self, now: float) -> None:
        """An entry was queued."""
        if self._waited_since is None:
            self._waited_since = now

    def dispatched(self, queued_s: float, num_waiting: int, now: float) -> None:
        """An entry was given a seat after `queued_s`; `num_waiting`: still in the lane."""
        since, self._waited_since = self._waited_since, now if num_waiting else None
        if since is None or queued_s < LEAST_WAIT_S:
            return
        elapsed_s = max(0.0, now - since)
        kept = exp(-elapsed_s / self._memory_s) if self.num_seen else 0.0
        self._num = self._num * kept + 1.0
        self._time_s = max(_SHORTEST_S, self._time_s * kept + elapsed_s)
        self.num_seen += 1

    def emptied(self) -> None:
        """The last that waited left without a seat."""
        self._waited_since = None

    def per_s(self, now: float) -> float:
        """Above 0."""
        standing_s = 0.0 if self._waited_since is None else max(0.0, now - self._waited_since)
        # Until the next dispatch is due, standing still is what a steady drain looks like, too.
        late_s = max(0.0, standing_s - self._time_s / self._num)
        return self._num / (self._time_s + late_s)


class Saturation:
    """The drain rates of one model's lanes, and the refusals that follow from them."""

    def __init__(self, settings: SaturationSettings | None = None) -> None:
        self.settings = settings or SaturationSettings()
        self._rates = {lane: DrainRate(self.settings.memory_s, self.settings.cold_per_s) for lane in Lane}
        self._next_place_at = dict.fromkeys(Lane, 0.0)  # when the first place that nobody was promised comes free

    def rate(self, lane: Lane) -> DrainRate:
        """The lane's drain rate, to be told of arrivals and dispatches."""
        return self._rates[lane]

    def wait_s(self, lane: Lane, in_lane: int, now: float) -> float:
        """Expected seconds until the entry at this place of its lane (from 1) is dispatched."""
        return in_lane / self._rates[lane].per_s(now)

    def pressure(self, lane: Lane, load: Load) -> float:
        """0 where all is well, 1 where the lane's or a higher lane's oldest entry has waited as long as it may.

        Waiting counts only while every seat is taken: else those who wait do so for a cap, not for a lack of seats.
        """
        pressed_from = self.settings.kv_pressed_from
        pressure = max(0.0, (load.kv_used_ratio - pressed_from) / (1.0 - pressed_from))
        if load.seats_used_ratio >= 1.0:
            for above, waited_s in load.oldest_wait_s.items():
                if above.rank <= lane.rank:
                    pressure = max(pressure, waited_s / self.settings.max_wait_s[above])
        return pressure

    def refusal(self, lane: Lane, load: Load, *, in_lane: int, deadline: float, now: float) -> Shed | TooLate | None:
        """Why a request that would come to this place of its lane should not wait, or None if it may.

        Promises a place to whoever is refused, so that they do not all return at once.
        """
        rate = self._rates[lane]
        wait_s = self.wait_s(lane, in_lane, now)
        must_wait = in_lane > 1 or load.seats_used_ratio >= 1.0
        if deadline <= now or (must_wait and rate.num_seen >= LEAST_SEEN and now + wait_s > deadline):
            return TooLate(lane, wait_s, self.retry_after_s(lane, in_lane, now))
        pressure = self.pressure(lane, load)
        if pressure >= self.settings.shed_at[lane]:
            return Shed(lane, pressure, self.retry_after_s(lane, in_lane, now))
        return None

    def retry_after_s(self, lane: Lane, num_waiting: int, now: float) -> float:
        """When a place of the lane comes free that was not promised to somebody refused earlier.

        At most the time in which all `num_waiting` drain; then any number finds room.
        """
        per_s = self._rates[lane].per_s(now)
        place_at = max(now, self._next_place_at[lane]) + 1.0 / per_s
        drained_at = now + max(1, num_waiting) / per_s
        self._next_place_at[lane] = min(place_at, drained_at)
        return min(MOST_RETRY_S, max(LEAST_RETRY_S, self._next_place_at[lane] - now))

    def statistics(self, now: float) -> dict[str, float]:
        """Dispatches a second by lane."""
        return {lane.value: rate.per_s(now) for lane, rate in self._rates.items()}

    def __repr__(self) -> str:
        seen = " ".join(f"{lane.value}={rate.num_seen}" for lane, rate in self._rates.items())
        return f"<Saturation dispatches seen: {seen}>"
