"""What the chooser answers about one waiting entry: the best seat for it now, or why there is none.

The queue knows nothing of replicas, hits or caps; whoever knows them answers. Live traffic, the simulator and the
property tests pass different choosers to the same queue.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from policies.entry import Entry


class Offer(NamedTuple):
    """A seat an entry could take at once (a named tuple: made up to `heads` times for each request dispatched).

    `gain`: higher is better; compared between entries, so in one unit for all: predicted hit tokens, and a fraction
    of a token to tell equal hits apart by predicted TTFT.
    `uncached_tokens`: prompt tokens the replica is expected to compute; what is charged.
    `payload`: opaque to the queue, such as a `RouteDecision`.
    """

    gain: float
    uncached_tokens: int
    payload: Any = None


class NoRoom(Enum):
    """Why an entry can take no seat now, as wide as it is known: the queue asks nobody again who is told by it.

    The answer stands until `FairQueue.wake` (a seat or a replica changed); `CAPPED` stands until `wake_flow` alone.
    A chooser that answers `ENTRY` where `LANE` is true makes the queue ask everybody.
    """

    LANE = "no replica has a seat for the lane it is served as"
    FLOW = "no replica with a seat may take another of the tenant's"
    CAPPED = "the tenant is at its cap in flight in the lane"
    ENTRY = "no replica with a seat may take this request"


Chooser = Callable[[Entry], Offer | NoRoom]  # must not change the queue; reads `entry.served_as`, not `entry.lane`
