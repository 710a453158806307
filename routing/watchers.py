"""Who wants to be told of what a pool and a router do: of every lease, and of what other gateways should know."""

from typing import Protocol

from cache_affinity.prefix import PrefixKey
from routing.decision import RouteDecision
from routing.lease import Lease


class LeaseWatcher(Protocol):
    """Whoever sets lane seats by what is leased (`SeatControl`). Called after the counters changed."""

    def began(self, lease: Lease) -> None:
        """A seat was given."""
        ...

    def decoding(self, lease: Lease) -> None:
        """The lease's prompt is read, or will not be; once a lease, before `ended`."""
        ...

    def ended(self, lease: Lease) -> None:
        """The seat came back; once a lease."""
        ...


class Teller(Protocol):
    """Whoever tells other gateways (`Telling`). On the path of every request, so it only takes a note."""

    def placed(self, lease: Lease, key: PrefixKey) -> None:
        """A prompt was given to a replica."""
        ...

    def settled(
        self, decision: RouteDecision, lease: Lease, *, now: float, prompt_tokens: int | None,
        cached_tokens: int | None, ttft_s: float | None,
    ) -> None:  # fmt: skip
        """A request was answered; as `Router.settled`."""
        ...
