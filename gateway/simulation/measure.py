"""What is observed of a run: times and tokens by lane and tenant, and what the replicas spent their time on."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gateway.simulation.workload import SimulatedRequest
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class Window:
    """[start_s, end_s): what counts. Before lies the warm-up; requests that arrive late could not finish."""

    start_s: float
    end_s: float

    def holds(self, at: float) -> bool:
        """Whether the moment counts."""
        return self.start_s <= at < self.end_s

    def overlap_s(self, since: float, until: float) -> float:
        """Seconds of [since, until) that count."""
        return max(0.0, min(until, self.end_s) - max(since, self.start_s))


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a distribution in seconds; all zero when it is empty."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, values: "Sequence[float] | array[float] | npt.NDArray[np.float64]") -> "Percentiles":
        """Of any number of values, by linear interpolation."""
        if not len(values):
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        found = np.asarray(values, dtype=np.float64)
        p50, p95, p99 = np.percentile(found, (50, 95, 99))
        return cls(float(p50), float(p95), float(p99), float(found.mean()), len(found))


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Group:
    """Requests of one lane or one tenant that arrived in the window, and tokens made in it.

    TTFT in its parts: `queue_s` in the gateway, `entry_s` until the step that was being computed had ended, `read_s`
    from there to the first token. `output_tokens` and `uncached_tokens` (prompt tokens read) are those of the window,
    whoever arrived when: a rate.
    """

    ttft_s: "array[float]" = field(default_factory=_doubles)
    itl_s: "array[float]" = field(default_factory=_doubles)
    e2e_s: "array[float]" = field(default_factory=_doubles)
    queue_s: "array[float]" = field(default_factory=_doubles)
    entry_s: "array[float]" = field(default_factory=_doubles)
    read_s: "array[float]" = field(default_factory=_doubles)
    num_arrived: int = 0
    num_finished: int = 0
    num_left: int = 0
    num_refused: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    predicted_hit_tokens: int = 0
    output_tokens: int = 0
    uncached_tokens: int = 0

    def summary(self) -> "GroupResult":
        """The group as a value."""
        return GroupResult(
            ttft_s=Percentiles.of(self.ttft_s), itl_s=Percentiles.of(self.itl_s), e2e_s=Percentiles.of(self.e2e_s),
            queue_s=Percentiles.of(self.queue_s), entry_s=Percentiles.of(self.entry_s),
            read_s=Percentiles.of(self.read_s), num_arrived=self.num_arrived, num_finished=self.num_finished,
            num_left=self.num_left, num_refused=self.num_refused, prompt_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens, predicted_hit_tokens=self.predicted_hit_tokens,
            output_tokens=self.output_tokens, uncached_tokens=self.uncached_tokens,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupResult:
    """See `Group`.

    `num_arrived` counts all that arrived in the window; those neither finished, left nor refused were still on their
    way when the run ended.
    """

    ttft_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    queue_s: Percentiles
    entry_s: Percentiles
    read_s: Percentiles
    num_arrived: int
    num_finished: int
    num_left: int
    num_refused: int
    prompt_tokens: int
    hit_tokens: int
    predicted_hit_tokens: int
    output_tokens: int
    uncached_tokens: int


class Groups:
    """Observations by lane and by (tenant, lane). Unbounded in the run's length, as a run is bounded itself."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.lanes: dict[Lane, Group] = {}
        self.tenants: dict[tuple[str, Lane], Group] = {}

    def of(self, request: SimulatedRequest) -> tuple[Group, Group]:
        """The two groups a request belongs to."""
        lane = self.lanes.setdefault(request.lane, Group())
        return lane, self.tenants.setdefault((request.tenant, request.lane), Group())


class Occupancy:
    """How long one replica held interactive work (standard included: workers treat it so), within the window."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._num_held = 0
        self._since = 0.0
        self.held_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether it holds some now."""
        return self._num_held > 0

    def enter(self, lane: Lane, now: float) -> None:
        """A request was dispatched to the replica."""
        if lane is Lane.BULK:
            return
        if self._num_held == 0:
            self._since = now
        self._num_held += 1

    def leave(self, lane: Lane, now: float) -> None:
        """It is over there."""
        if lane is Lane.BULK:
            return
        self._num_held -= 1
        if self._num_held == 0:
            self.held_s += self._window.overlap_s(self._since, now)

    def close(self, now: float) -> None:
        """The run ends."""
        if self._num_held:
            self.held_s += self._window.overlap_s(self._since, now)
            self._since = now


@dataclass(frozen=True, slots=True)
class ReplicaResult:
    """One replica in the window (`busy_s`, `num_steps`, hits and preemptions: in the whole run).

    `held_s`: seconds in which it held interactive work. Bulk tokens: by whether it did.
    """

    name: str
    held_s: float
    busy_s: float
    num_steps: int
    prompt_tokens: int
    hit_tokens: int
    preemptions: int
    evictions: int
    bulk_tokens_held: int
    bulk_tokens_free: int


@dataclass(frozen=True, slots=True)
class Result:
    """A run. `window_s` times the number of replicas are the replica-seconds looked at."""

    window_s: float
    lanes: dict[Lane, GroupResult]
    tenants: dict[tuple[str, Lane], GroupResult]
    replicas: tuple[ReplicaResult, ...]

    @property
    def replica_s(self) -> float:
        """All replica-seconds of the window."""
        return self.window_s * len(self.replicas)

    @property
    def free_replica_s(self) -> float:
        """Those that held no interactive work."""
        return self.replica_s - sum(replica.held_s for replica in self.replicas)
