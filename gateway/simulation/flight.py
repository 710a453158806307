"""One request in a simulated gateway, from its arrival to its end, and what it teaches on the way."""

from dataclasses import dataclass

from gateway.simulation.dispatch import Served, Usage
from gateway.simulation.measure import Group, Window
from gateway.simulation.workload import SimulatedRequest
from gateway.turn import Turn
from policies.entry import Entry


@dataclass(slots=True, eq=False)
class Flight:
    """`source`: number of the source it came from. Times in virtual seconds, as the gateway sees them.

    `groups`: where it is counted. `counts`: whether its arrival lies in the window. `sent_at`: when it got its turn.
    `entered_at`: when the step ended that was being computed as it reached its replica.
    """

    request: SimulatedRequest
    source: int
    groups: tuple[Group, ...]
    counts: bool
    entry: Entry | None = None
    turn: Turn | None = None
    sent_at: float = 0.0
    entered_at: float = 0.0
    first_at: float | None = None
    last_at: float = 0.0
    cached_tokens: int = 0
    num_output: int = 0
    is_over: bool = False

    def got_tokens(self, num_new: int, now: float, window: Window) -> None:
        """Count output that has just reached the gateway; tokens that come together have no gap between them."""
        is_in_window = window.holds(now)
        is_first = self.first_at is None
        if is_first:
            self.first_at = now
        for group in self.groups:
            if is_in_window:
                group.output_tokens += num_new
                if is_first:
                    group.uncached_tokens += self.request.prompt_tokens - self.cached_tokens
                else:
                    group.itl_s.append(now - self.last_at)
            if is_first and self.counts:
                self._count_first(group, now)
        self.num_output += num_new
        self.last_at = now

    def finished(self, now: float) -> Usage:
        """The answer is complete; what the engine reported."""
        assert self.turn is not None, "only who has a turn finishes"
        self.is_over = True
        if self.counts:
            for group in self.groups:
                group.num_finished += 1
                group.e2e_s.append(now - self.request.arrival_s)
        ttft_s = self.first_at - self.sent_at if self.first_at is not None else None
        return Usage(self.request.prompt_tokens, self.cached_tokens, self.num_output, ttft_s)

    def served_so_far(self) -> Served:
        """What a request whose client leaves is charged; a prompt that is being read counts whole, as in life."""
        assert self.turn is not None, "only who has a turn was served"
        uncached = self.turn.decision.uncached_tokens
        if self.first_at is not None:
            uncached = self.request.prompt_tokens - self.cached_tokens
        return Served(uncached, self.num_output)

    def _count_first(self, group: Group, now: float) -> None:
        assert self.turn is not None, "only who has a turn gets tokens"
        group.ttft_s.append(now - self.request.arrival_s)
        group.queue_s.append(self.sent_at - self.request.arrival_s)
        group.entry_s.append(self.entered_at - self.sent_at)
        group.read_s.append(now - self.entered_at)
        group.prompt_tokens += self.request.prompt_tokens
        group.hit_tokens += self.cached_tokens
        group.predicted_hit_tokens += self.turn.decision.hit_tokens
