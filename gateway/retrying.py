"""Whether an attempt that failed may be made again elsewhere, and which of several failures the client is told."""

from engines.contract import Fault, ReplicaError
from gateway.parts import Call, Parts

UNREAD = frozenset({Fault.CONNECT, Fault.STALE, Fault.BACKPRESSURE, Fault.UNSERVED})
_RETRIABLE = UNREAD | {Fault.RESET, Fault.STATUS, Fault.PROTOCOL}


def may_retry(parts: Parts, call: Call, error: ReplicaError) -> bool:
    """Whether another replica may be tried: nothing was said, and neither of the budgets is used up.

    The budget of the replica that failed is paid from here, the one of all when the retry has its turn.
    """
    story = call.story
    return (
        error.fault in _RETRIABLE
        and not call.answer.has_content
        and story.attempts - story.preemptions < parts.settings.retries.max_attempts
        and parts.retries.can_spend()
        and _spend_of_replica(parts, call)
    )


def _spend_of_replica(parts: Parts, call: Call) -> bool:
    """Whether the replica that failed has not used up what its own failures may cost; it is paid for then."""
    decision = call.story.decision
    replica = None if decision is None else parts.router.pool.get(decision.chosen)
    if replica is None:
        return True
    return replica.breaker.tally.spend_retry(parts.settings.retries.replica_budget_ratio, parts.clock())


def sooner(last: ReplicaError | None, error: ReplicaError) -> ReplicaError:
    """Which failure to tell: of several busy replicas the one that asks for the shortest wait, else the latest."""
    if last is None or last.fault is not Fault.BACKPRESSURE or error.fault is not Fault.BACKPRESSURE:
        return error
    return min(last, error, key=lambda one: one.retry_after_s or 0.0)
