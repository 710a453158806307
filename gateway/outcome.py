"""How a request ended: a closed set, the label on every request metric."""

from enum import Enum


class Outcome(Enum):
    """Exactly one for every request that reached the gateway."""

    FINISHED = "finished"
    CLIENT_ERROR = "client_error"  # malformed, unknown model, the engine's own 4xx
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"  # a limit of the tenant, or its lane's queue is full
    SHED = "shed"  # no ready replica, or it could not start in time
    REPLICA_ERROR = "replica_error"
    TIMED_OUT = "timed_out"
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"  # the gateway was told to stop before it ended
    BUG = "bug"
