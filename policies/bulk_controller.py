"""How many bulk requests one replica may hold now, so that people do not notice them. Pure.

Inner loop, at every event: as many bulk rows as a step has room for, by the step-cost model. Slow outer loop: what
people's gaps between tokens really were (`itl_correction.py`) widens or narrows that room. For engines that leave bulk
out of their steps by themselves all seats are open: a resident bulk sequence costs nobody anything there.
In pauses seats open one after the other: most pauses are short, and whoever comes back meets what was begun in them.
Knows counts and times, no requests, no engine and no clock.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from policies.itl_correction import CorrectionSettings, ItlCorrection, SeenGaps


class StepTime(Protocol):
    """What a step is believed to take (`engines.step_cost.StepCost`, not imported). Whoever learns makes another."""

    def seconds(self, rows: float, prefill_tokens: float) -> float:
        """Modelled duration of a step with so many decoding rows and prefill tokens."""
        ...


@dataclass(frozen=True, slots=True)
class BulkSettings:
    """Every number was chosen unless it says otherwise. Raises `ValueError` where one makes no sense.

    `itl_p95_s`: gap between the tokens of interactive requests that lower lanes may cause; None: `growth` times the
    step without bulk. `hold_off_s`: a seat is open to bulk after so long without interactive or standard work; until
    then one such row is assumed. `all_open_s`: all seats are after so long, in between their part of it (both by
    virtual time, docs/design/007). `bulk_reading_s`: bulk prompts are given to the engine up to so much predicted
    reading at once, for whoever arrives waits it out. `spoilt_share`: part of people's gaps that the reading of bulk
    prompts may make too long; with a p95 as objective 0.05 are free, the rest is left to chance. `chunk_tokens`: of a
    prompt an engine reads in one step, at least (llama-server's and vLLM's smallest default).
    """

    itl_p95_s: float | None = None
    growth: float = 1.15
    hold_off_s: float = 0.5
    all_open_s: float = 8.0
    bulk_reading_s: float = 0.05
    spoilt_share: float = 0.02
    chunk_tokens: int = 512
    correction: CorrectionSettings = field(default_factory=CorrectionSettings)

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.itl_p95_s is not None and not 0 < self.itl_p95_s < inf:
            raise ValueError("itl_p95_s must be more than 0 seconds")
        if self.growth < 1 or not 0 <= self.spoilt_share < 1 or self.chunk_tokens < 1:
            raise ValueError("growth and chunk_tokens are at least 1, spoilt_share is within 0..1")
        if min(self.hold_off_s, self.bulk_reading_s) < 0 or self.all_open_s < self.hold_off_s:
            raise ValueError("hold_off_s and bulk_reading_s are at least 0, all_open_s is at least hold_off_s")


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica holds, as the gateway counts it. `seats`: the most it may hold.

    `urgent_reading`: interactive and standard requests it has not read yet, or that wait for it. `bulk_unread_tokens`:
    of bulk prompts it was given and has not read, `bulk_reading_s`: the predicted time to read them. `leaves_bulk_out`:
    the engine does so by itself. `has_priority`: it reads urgent prompts first.
    """

    seats: int
    interactive: int = 0
    standard: int = 0
    bulk: int = 0
    urgent_reading: int = 0
    bulk_unread_tokens: int = 0
    bulk_reading_s: float = 0.0
    leaves_bulk_out: bool = False
    has_priority: bool = False

    @property
    def urgent(self) -> int:
        """Interactive and standard together: workers too treat them alike."""
        return self.interactive + self.standard


@dataclass(frozen=True, slots=True)
class SeatPlan:
    """Most requests of a lane in flight on the replica; reserved seats are kept besides, by the pool.

    `may_start_bulk`: whether one more bulk prompt may be given to it now, if it holds fewer than `bulk`.
    """

    standard: int
    bulk: int
    may_start_bulk: bool

    def bulk_now(self, in_flight: int) -> int:
        """The limit to set at this moment: at most one more than it holds, none if none may start."""
        return min(self.bulk, in_flight + (1 if self.may_start_bulk else 0))


class BulkController:
    """One replica's. Tell it of every start of a bulk prompt and of people's gaps; ask `plan` after every event."""

    def __init__(self, settings: BulkSettings) -> None:
        self.settings = settings
        self.correction = ItlCorrection(settings.correction)
        self._urgent_until = -inf  # when interactive or standard work was last there
        self._urgent = 0  # rows at the last look
        self._looked_at = -inf
        self._credit = 1.0  # gaps that may still be spoilt; below 1 no bulk prompt starts beside urgent rows
        self._learned: tuple[StepTime | None, float] = (None, 0.0)  # cost and room that `_beside` was found with
        self._beside: dict[tuple[int, int], int] = {}  # by urgent rows and seats; at most as many as there are seats

    def __repr__(self) -> str:
        return f"<BulkController {self.correction!r} spoilable={self._credit:.2f}>"

    def plan(self, load: ReplicaLoad, cost: StepTime, now: float) -> SeatPlan:
        """The seats each lane may hold. Remembers the load; call it after every change and some times a second."""
        self._look(load, cost, now)
        if load.leaves_bulk_out:
            return SeatPlan(load.seats, load.seats, may_start_bulk=True)
        bulk = max(self._bulk_beside(load, cost), self._bulk_in_pause(load, now))
        return SeatPlan(self._standard(load, cost), bulk, self._may_start(load))

    def objective_s(self, urgent_rows: float, cost: StepTime) -> float:
        """The longest step that so many urgent rows should see."""
        if self.settings.itl_p95_s is not None:
            return self.settings.itl_p95_s
        return self.settings.growth * cost.seconds(max(1.0, urgent_rows), 0)

    def started(self, load: ReplicaLoad, uncached_tokens: int, cost: StepTime) -> None:
        """A bulk prompt was given to the replica; `load` counts it already.

        Beside urgent rows its reading spoils a gap for each chunk, unless it is so short that the step keeps to the
        objective.
        """
        if load.leaves_bulk_out or not load.urgent:
            return
        if cost.seconds(load.urgent + load.bulk, uncached_tokens) > self.objective_s(load.urgent, cost):
            self._credit -= self._num_spoilt(uncached_tokens)

    def observe(self, gaps: SeenGaps, cost: StepTime) -> None:
        """What an interactive request saw, at its end."""
        if gaps.urgent_rows > 0:
            is_fixed = self.settings.itl_p95_s is not None
            growth = 1.0 if is_fixed else self.settings.growth
            self.correction.observe(gaps, self.objective_s(gaps.urgent_rows, cost), growth, is_fixed=is_fixed)

    def _look(self, load: ReplicaLoad, cost: StepTime, now: float) -> None:
        """Earn spoilable gaps for those that passed since the last look, and note when urgent work was last there."""
        self.correction.expire(now)
        if self._urgent and now > self._looked_at:
            step_s = max(cost.seconds(self._urgent, 0), 1e-6)
            num_gaps = (now - self._looked_at) / step_s
            earned = self.settings.spoilt_share * min(1.0, self.correction.room) * num_gaps
            self._credit = min(1.0, self._credit + earned)
        if load.urgent and not self._urgent and load.bulk_unread_tokens:
            self._credit -= self._num_spoilt(load.bulk_unread_tokens)  # what is being read will spoil their gaps, too
        if load.urgent or self._urgent or load.urgent_reading:
            self._urgent_until = now
        self._urgent, self._looked_at = load.urgent, now

    def _num_spoilt(self, prompt_tokens: int) -> int:
        return max(1, -(-prompt_tokens // self.settings.chunk_tokens))

    def _bulk_in_pause(self, load: ReplicaLoad, now: float) -> int:
        """Seats that a pause of people has opened so far; slower where the correction says that they were hurt."""
        if load.urgent or load.urgent_reading:
            return 0
        correction = self.correction
        away_s = (now - self._urgent_until) / max(1.0, correction.settings.first / correction.room)
        if away_s < self.settings.hold_off_s:
            return 0
        if away_s >= self.settings.all_open_s:
            return load.seats
        return min(load.seats, max(1, int(load.seats * away_s / self.settings.all_open_s)))

    def _bulk_beside(self, load: ReplicaLoad, cost: StepTime) -> int:
        """The most bulk rows that keep the step of these urgent ones within the objective, corrected.

        Looked for once for each number of rows until another cost or room is learned: this runs at every event.
        """
        learned = (cost, self.correction.room)
        if learned[0] is not self._learned[0] or learned[1] != self._learned[1] or len(self._beside) > load.seats:
            self._learned, self._beside = learned, {}
        found = self._beside.get((load.urgent, load.seats))
        if found is None:
            found = self._beside[load.urgent, load.seats] = self._find_beside(load, cost)
        return found

    def _find_beside(self, load: ReplicaLoad, cost: StepTime) -> int:
        rows = max(1, load.urgent)
        alone_s = cost.seconds(rows, 0)
        limit_s = alone_s + self.correction.room * max(0.0, self.objective_s(rows, cost) - alone_s)
        return most_rows(cost, rows, limit_s, most=max(0, load.seats - load.urgent))

    def _standard(self, load: ReplicaLoad, cost: StepTime) -> int:
        """All seats, unless gaps have an objective of their own; then at least one, so that the lane goes on."""
        if self.settings.itl_p95_s is None:
            return load.seats
        rows = most_rows(cost, load.interactive, self.settings.itl_p95_s, most=load.seats)
        return min(load.seats, max(1, rows))

    def _may_start(self, load: ReplicaLoad) -> bool:
        if load.urgent_reading and not load.has_priority:
            return False
        if load.urgent and self._credit < 1.0:
            return False
        return load.bulk_reading_s < self.settings.bulk_reading_s or load.bulk_reading_s <= 0.0


def most_rows(cost: StepTime, beside: float, limit_s: float, *, most: int) -> int:
    """How many more rows, 0 to `most`, keep a step with `beside` rows within `limit_s`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if cost.seconds(beside + middle, 0) <= limit_s:
            low = middle
        else:
            high = middle - 1
    return low
