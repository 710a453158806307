"""The sections of the configuration about lanes: how long each may queue, what it has to itself, where it may run."""

import inspect
from typing import Annotated

from pydantic import BaseModel, Field

from gateway.config_values import Seconds
from policies.lane import Lane


class LaneSection(BaseModel, extra="forbid", frozen=True):
    """One lane. Interactive is served before standard, standard before bulk.

    `queue`: most requests waiting. `reserved_seats`: seats of every replica that lower lanes may not take. `labels`:
    the lane's requests go only to replicas that have these labels.
    """

    queue: Annotated[int, Field(ge=0, le=1_000_000)] = 1000
    max_wait_s: Seconds = 60
    reserved_seats: Annotated[int, Field(ge=0, le=10_000)] = 0
    labels: dict[str, str] = {}


_OF_EVERY_LANE = inspect.getdoc(LaneSection)


class InteractiveLane(LaneSection, frozen=True):
    """A lane of its own class keeps its other defaults when a file sets only one key."""

    __doc__ = f"{_OF_EVERY_LANE}\n`itl_p95_s`: the gap between tokens that bulk may not spoil; none: 1.15 times alone."

    reserved_seats: Annotated[int, Field(ge=0, le=10_000)] = 1
    itl_p95_s: Annotated[float, Field(ge=0.001, le=86400, allow_inf_nan=False)] | None = None  # a worker takes no less


class StandardLane(LaneSection, frozen=True):
    """As above."""

    __doc__ = f"{_OF_EVERY_LANE}\n`weight`: its share of the seats when bulk waits too."

    max_wait_s: Seconds = 300
    weight: Annotated[float, Field(ge=0.01, le=100)] = 3


class BulkLane(LaneSection, frozen=True):
    """As above."""

    __doc__ = (
        f"{_OF_EVERY_LANE}\n`weight`: its share of the seats when standard waits too. `lift_after_s`: a request "
        "that waited so long is served as standard."
    )

    queue: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    max_wait_s: Seconds = 3600
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1
    lift_after_s: Seconds | None = 120


class LanesSection(BaseModel, extra="forbid", frozen=True):
    """One section a lane."""

    interactive: InteractiveLane = InteractiveLane()
    standard: StandardLane = StandardLane()
    bulk: BulkLane = BulkLane()

    def of(self, lane: Lane) -> LaneSection:
        """The section of one lane."""
        return {Lane.INTERACTIVE: self.interactive, Lane.STANDARD: self.standard, Lane.BULK: self.bulk}[lane]

    def labels_of(self, lane: Lane) -> frozenset[tuple[str, str]]:
        """The labels a replica needs to take the lane's requests, for a `RouteQuery`."""
        return frozenset(self.of(lane).labels.items())
