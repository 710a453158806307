"""What probes say of a replica, turned into moves: failures in a row remove it, successes in a row bring it back.

One lost probe changes nothing, and alternating results change nothing either. A replica that is working but too busy
to answer its probe is busy, not dead, unless nothing is heard of it for long. Pure: the prober does the asking.
"""

from enum import Enum

from routing.replica import ReplicaState

FAILURES_TO_LOSE = 3  # in a row
BUSY_AT_MOST_S = 30.0  # chosen: busy so long and without sending a byte is as good as dead
SUCCESSES_TO_RETURN = 2  # in a row, once lost; a joining replica needs one


class Probe(Enum):
    """One probe's result."""

    READY = "ready"
    NOT_READY = "not ready"  # it answered, and says it cannot serve (starting, draining)
    FAILED = "failed"  # no answer
    BUSY = "busy"  # no answer in time, while it is serving requests


class ProbeHistory:
    """The probes of one replica."""

    __slots__ = ("_busy_since", "_failures", "_successes")

    def __init__(self) -> None:
        self._failures = 0
        self._successes = 0
        self._busy_since: float | None = None

    def observe(self, probe: Probe, state: ReplicaState, now: float, heard_at: float | None) -> ReplicaState | None:
        """The state the replica should move to, or None to stay.

        `now`, `heard_at`: monotonic seconds; the latter when a request last got a byte from it, None for never.
        """
        if probe is Probe.BUSY:
            since = now if self._busy_since is None else self._busy_since
            self._busy_since = since if heard_at is None else max(since, heard_at)
            if now - self._busy_since < BUSY_AT_MOST_S:
                return None
        else:
            self._busy_since = None
        if probe is Probe.READY:
            self._failures = 0
            self._successes += 1
            needed = SUCCESSES_TO_RETURN if state is ReplicaState.LOST else 1
            is_back = state in {ReplicaState.JOINING, ReplicaState.LOST} and self._successes >= needed
            return ReplicaState.READY if is_back else None
        self._successes = 0
        self._failures += 1
        if state is ReplicaState.READY and self._failures >= FAILURES_TO_LOSE:
            return ReplicaState.LOST
        return None
