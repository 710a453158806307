"""A fleet behind a baseline: each request is sent on as it comes."""

from collections.abc import Iterable, Sequence

from gateway.simulation.baseline_view import BaselineView
from gateway.simulation.baselines import Baseline
from gateway.simulation.fronts import Changes, TraceFlight


class DirectFront:
    """One rule and view for each gateway, which know nothing of each other."""

    def __init__(self, gateways: Sequence[tuple[Baseline, BaselineView]]) -> None:
        self._gateways = gateways
        self._unread: dict[TraceFlight, int] = {}

    def arrive(self, flight: TraceFlight, now: float) -> Iterable[TraceFlight]:
        """Sent at once."""
        baseline, view = self._gateways[flight.gateway]
        flight.replica, num_hit = baseline.choose(flight.request)
        flight.sent_at = now
        load = view.loads[flight.replica]
        unread = self._unread[flight] = flight.request.prompt_tokens - num_hit * view.block_tokens
        load.num_requests += 1
        load.unread_tokens += unread
        load.blocks += view.num_blocks(flight.request)
        return (flight,)

    def first_token(self, flight: TraceFlight, now: float) -> None:  # noqa: ARG002 - of no interest
        """Its prompt is read."""
        self._gateways[flight.gateway][1].loads[flight.replica].unread_tokens -= self._unread.pop(flight)

    def finished(self, flights: Sequence[TraceFlight], now: float) -> Iterable[TraceFlight]:  # noqa: ARG002
        """Nobody waits for it."""
        for flight in flights:
            view = self._gateways[flight.gateway][1]
            load = view.loads[flight.replica]
            load.num_requests -= 1
            load.blocks -= view.num_blocks(flight.request)
        return ()

    def told(self, replica: int, changes: Changes) -> None:
        """Baselines that go by events look at the caches themselves."""
