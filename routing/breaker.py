"""Whether a replica may be tried, from how its last attempts ended. A busy replica is not a broken one.

Faults in a row open the breaker; after a while one attempt is let through as a probe. Back-pressure sets the replica
aside until the wait it asked for is over and counts as nothing else. A client's error or departure counts as nothing.
"""

from enum import Enum

from engines.contract import Fault
from routing.tally import Tally

MAX_FAULTS = 3  # in a row, until the breaker opens
OPEN_S = 2.0  # the first time; doubled by each failed probe
MAX_OPEN_S = 30.0
PROBE_TIMEOUT_S = 10.0  # a probe without a verdict by then (a long stream) lets the next one in: no state without exit
DEFAULT_ASIDE_S = 1.0  # back-pressure without a Retry-After
MAX_ASIDE_S = 60.0  # a longer Retry-After is tried again after this


class Verdict(Enum):
    """What one attempt says about the replica's health."""

    FINE = "fine"
    BACKPRESSURE = "backpressure"
    FAULT = "fault"
    NEUTRAL = "neutral"  # the client's error or departure, or a stale connection: says nothing


class Circuit(Enum):
    """The breaker's state. Back-pressure is not one of them: it lies across all three."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


VERDICTS: dict[Fault, Verdict] = {
    Fault.CONNECT: Verdict.FAULT,
    Fault.STALE: Verdict.NEUTRAL,
    Fault.RESET: Verdict.FAULT,
    Fault.TIMEOUT: Verdict.FAULT,
    Fault.STATUS: Verdict.FAULT,
    Fault.BACKPRESSURE: Verdict.BACKPRESSURE,
    Fault.CLIENT: Verdict.NEUTRAL,
    Fault.PROTOCOL: Verdict.FAULT,
    Fault.UNSERVED: Verdict.NEUTRAL,
}


class Breaker:
    """The health of one replica as its attempts tell it. All times are monotonic seconds. Closed unless `is_open`.

    While the circuit is not closed, only a probe's verdict moves it: an attempt that began before the trouble says
    nothing about whether it is over.
    """

    __slots__ = (
        "_num_faults",
        "_num_void",
        "_open_s",
        "_open_until",
        "_probe",
        "_probe_until",
        "_probes",
        "aside_until",
        "is_open",
        "tally",
    )

    def __init__(self) -> None:
        self.aside_until = 0.0
        self.is_open = False
        self.tally = Tally()  # of the same attempts, for comparison with other replicas
        self._num_faults = 0
        self._open_s = OPEN_S
        self._open_until = 0.0
        self._probe = 0  # the number of the probe under way, 0 for none
        self._probe_until = 0.0
        self._probes = 0  # begun so far: the highest number given out
        self._num_void = 0  # probes up to this number began before the last opening: too old to count

    def __repr__(self) -> str:
        kind = f"open until {self._open_until:.1f}" if self.is_open else "closed"
        return f"<Breaker {kind}, {self._num_faults} faults, aside until {self.aside_until:.1f}, probe {self._probe}>"

    def circuit(self, now: float) -> Circuit:
        """Closed, open, or half open: its time is over and a probe decides."""
        if not self.is_open:
            return Circuit.CLOSED
        return Circuit.OPEN if now < self._open_until else Circuit.HALF_OPEN

    def can_try(self, now: float) -> bool:
        """Whether a request may be sent there now. Changes nothing."""
        if now < self.aside_until:
            return False
        if not self.is_open:
            return True
        return now >= self._open_until and (not self._probe or now >= self._probe_until)

    def is_aside(self, now: float) -> bool:
        """Whether the replica asked for a wait that is not over: busy, not broken."""
        return now < self.aside_until

    def retry_after_s(self, now: float) -> float:
        """Seconds until it may be tried, 0 if it may be now."""
        at = self.aside_until
        if self.is_open:
            at = max(at, self._open_until)
            if self._probe and at <= now:  # a probe is under way: how long it takes is a guess
                at = min(self._probe_until, now + OPEN_S)
        return max(0.0, at - now)

    def begin(self, now: float) -> int:
        """Note an attempt: the number of the probe it is, to be given to `report`, or 0 for an ordinary one."""
        if not self.is_open:
            return 0
        self._probes += 1
        self._probe, self._probe_until = self._probes, now + PROBE_TIMEOUT_S
        return self._probe

    def report(self, verdict: Verdict, now: float, *, probe: int = 0, retry_after_s: float | None = None) -> None:
        """Take in how an attempt ended; a probe gives its place back whatever the verdict.

        `retry_after_s`: what the replica asked for with back-pressure; of several waits the latest end holds.
        """
        if verdict is Verdict.FINE or verdict is Verdict.FAULT:
            self._count(verdict, now)
        is_probe = self.is_open and probe > self._num_void
        self.release(probe)
        if verdict is Verdict.BACKPRESSURE:
            wait_s = DEFAULT_ASIDE_S if retry_after_s is None else min(max(retry_after_s, 0.0), MAX_ASIDE_S)
            self.aside_until = max(self.aside_until, now + wait_s)
        elif verdict is Verdict.FAULT and (is_probe or not self.is_open):
            self._count_fault(now, is_probe=is_probe)
        elif verdict is Verdict.FINE and (is_probe or not self.is_open):
            self.is_open, self._num_faults, self._open_s = False, 0, OPEN_S

    def release(self, probe: int) -> None:
        """Give back the place of a probe that ended without a verdict; any other number changes nothing."""
        if probe and probe == self._probe:
            self._probe = 0

    def _count(self, verdict: Verdict, now: float) -> None:
        tally = self.tally
        if now >= tally.until:
            tally.move_on(now)
        if verdict is Verdict.FINE:
            tally.fine += 1
        else:
            tally.faults += 1

    def _count_fault(self, now: float, *, is_probe: bool) -> None:
        self._num_faults += 1
        if is_probe:
            self._open_s = min(self._open_s * 2, MAX_OPEN_S)
        if is_probe or self._num_faults >= MAX_FAULTS:
            self.is_open, self._open_until = True, now + self._open_s
            self._num_void, self._probe = self._probes, 0
