"""Why a request gets no turn, in words and numbers for its client: status, code and when to come back."""

from gateway.errors import Refused, whole_seconds
from gateway.outcome import Outcome
from policies.lane import Lane
from policies.lane_queue import Overflow
from policies.saturation import Shed, TooLate
from routing.decision import Absence, NoReplica


class NoTurn(Refused):
    """There is no replica to wait for."""

    def __init__(self, absence: NoReplica) -> None:
        retry_after_s = absence.retry_after_s or (1.0 if absence.reason is Absence.UNKNOWN_MODEL else None)
        super().__init__(
            absence.sentence,
            code="no_replica_" + absence.reason.name.lower(),
            status=503,
            retry_after_s=retry_after_s,
            outcome=Outcome.SHED,
        )


def nobody_serves() -> Refused:
    """503 without `retry-after`: no replica or worker of the configuration has the model, so waiting is no use."""
    absence = Absence.UNKNOWN_MODEL
    return Refused(absence.value, code="no_replica_unknown_model", status=503, retry_after_s=None, outcome=Outcome.SHED)


def queue_full(overflow: Overflow, retry_after_s: float) -> Refused:
    """429: as many of its own wait in the lane as its share is; or it has none, and every place is another tenant's.

    Says nothing of the others: how many wait, and whose they are, is not for this client.
    """
    lane, num_others = overflow.entry.lane.value, overflow.num_held - 1
    message = f"the {lane} lane's queue is full: every place is taken by another project"
    if num_others:
        message = f"this project's own share of the {lane} lane's queue is full: {_waiting(num_others)}"
    return Refused(message, code="queue_full", status=429, retry_after_s=retry_after_s)


def gave_way(overflow: Overflow, retry_after_s: float) -> Refused:
    """429 for one that waited already: its tenant holds more places than its share, and it is the newest there.

    The time is in the text too: a stream that has begun has no headers left to say it in.
    """
    message = (
        f"this project's own share of the {overflow.entry.lane.value} lane's queue is full: "
        f"{_waiting(overflow.num_held - 1)}, and this one, the newest, gave up its place; "
        f"try again in {whole_seconds(retry_after_s)} s"
    )
    return Refused(message, code="queue_full", status=429, retry_after_s=retry_after_s)


def no_seats(lane: Lane) -> Refused:
    """429: the tenant may hold no seat in the lane, so waiting is no use."""
    message = f"this project may hold no seats in the {lane.value} lane: its batch_cap is 0"
    return Refused(message, code="batch_cap", status=429, retry_after_s=None)


def queue_timeout(waited_s: float) -> Refused:
    """503: it waited as long as its lane lets it."""
    return Refused(
        f"no seat became free within {waited_s:.3g} s",
        code="queue_timeout",
        status=503,
        retry_after_s=1.0,
        outcome=Outcome.SHED,
    )


def shed(refusal: Shed | TooLate, *, has_deadline: bool) -> Refused:
    """503, or 504 where it is the client's own deadline (`has_deadline`) that cannot be met."""
    if isinstance(refusal, TooLate) and has_deadline:
        message = f"the deadline cannot be met: the wait for a seat is about {refusal.wait_s:.3g} s"
        return Refused(
            message, code="deadline", status=504, retry_after_s=refusal.retry_after_s, outcome=Outcome.TIMED_OUT
        )
    message = f"the {refusal.lane.value} lane is shed to protect the lanes above it"
    return Refused(message, code="shed", status=503, retry_after_s=refusal.retry_after_s, outcome=Outcome.SHED)


def stopping() -> Refused:
    """503: the gateway stops."""
    return Refused("the gateway is stopping", code="stopping", status=503, retry_after_s=1.0, outcome=Outcome.STOPPED)


def _waiting(num: int) -> str:
    return f"{num} of its requests {'is' if num == 1 else 'are'} waiting"


def deadline_passed() -> Refused:
    """504: the client's own deadline is over."""
    message = "the deadline has passed"
    return Refused(message, code="deadline", status=504, retry_after_s=None, outcome=Outcome.TIMED_OUT)
