"""One request as the fair queue sees it while it waits, and once it is picked."""

from typing import TYPE_CHECKING, Any

from policies.lane import Lane

if TYPE_CHECKING:
    from policies.flow import Flow
    from policies.offer import Offer

FOREVER = float("inf")


class Entry:
    """A request that may wait. Made by the caller, and in one queue at most once at a time.

    `tenant`: the project id. `weight`: the tenant's, above 0; a larger one gets more service.
    `output_tokens`: expected, an estimate. `deadline`: monotonic seconds; waiting longer is of no use, and `expire`
    evicts it. `home`: the replica that holds most of its prefix, or will by the routing's hash; None if unknown. It is
    no more than a hint whom to ask first, and stays while the entry waits. `request`: opaque to the queue.

    `since`: when it was first pushed; to be given only for a request that comes back, which then has its old place
    in its flow.

    The rest is the queue's to write and the caller's to read: `queued_at`: when it was last pushed. `passed`: how
    often, as the first of its flow, it saw a flow dispatched that was served more. `served_as`: the lane whose seats it
    may use, which is not `lane` for a bulk entry that is lifted.
    """

    __slots__ = (
        "deadline", "flow", "home", "lane", "number", "output_tokens", "passed", "queued_at", "request", "served_as",
        "since", "tenant", "weight",
    )  # fmt: skip

    def __init__(
        self,
        tenant: str,
        lane: Lane,
        request: Any = None,
        *,
        weight: float = 1.0,
        output_tokens: int = 0,
        deadline: float = FOREVER,
        home: str | None = None,
        since: float = FOREVER,
    ) -> None:
        assert weight > 0, f"a weight must be above 0, not {weight}"
        self.tenant = tenant
        self.lane = lane
        self.request = request
        self.weight = weight
        self.output_tokens = output_tokens
        self.deadline = deadline
        self.since = since
        self.queued_at = 0.0
        self.home = home
        self.passed = 0
        self.served_as = lane
        self.number = 0  # its place in the order of its flow's arrivals
        self.flow: Flow | None = None  # while it waits

    @property
    def is_waiting(self) -> bool:
        """Whether it is in a queue now."""
        return self.flow is not None

    def __repr__(self) -> str:
        state = "waiting" if self.is_waiting else "not waiting"
        return f"<Entry {self.tenant} {self.lane.value} {state} passed={self.passed}>"


class Picked:
    """An entry with the seat chosen for it, and the ticket of what its flow was charged.

    Ends exactly once, by `FairQueue.settle` or `FairQueue.put_back`; a second end changes nothing.
    `charged`: weighted tokens, see `FairSettings.cost`. `queued_s`: from the last push to the pick.
    """

    __slots__ = ("charged", "entry", "flow", "has_ended", "is_lifted", "offer", "queued_s", "weight")

    def __init__(self, entry: Entry, offer: "Offer", flow: "Flow", charged: float, queued_s: float) -> None:
        self.entry = entry
        self.offer = offer
        self.flow = flow
        self.charged = charged
        self.weight = flow.weight  # as it was charged by; a weight changed meanwhile must not unbalance the account
        self.queued_s = queued_s
        self.is_lifted = entry.served_as is not entry.lane
        self.has_ended = False

    def __repr__(self) -> str:
        state = "ended" if self.has_ended else "open"
        return f"<Picked {self.entry.tenant} {self.entry.lane.value} {state} charged={self.charged:g}>"
