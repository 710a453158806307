"""Bulk requests on engines that cannot leave them out of a step: who gives way when people come.

A request that gives way is cancelled at the engine and waits for a seat again; its client notices nothing, for nothing
was sent to it yet. `policies/preemption.py` decides who, within a bound on the work thrown away.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from gateway.answer import ClientAnswer
from gateway.relay import Relay
from gateway.story import Story
from gateway.turn import Turn
from policies.lane import Lane
from policies.preemption import BulkRun
from routing.seat_control import SeatControl

_UNWATCHED = nullcontext()  # may be entered any number of times


@dataclass(frozen=True, slots=True)
class _Run:
    turn: Turn
    relay: Relay
    answer: ClientAnswer
    story: Story


class BulkRuns:
    """The attempts that may have to give way, by replica. Bounded by the seats of those replicas."""

    def __init__(self, seats: SeatControl, clock: Callable[[], float]) -> None:
        self._seats = seats
        self._clock = clock
        self._runs: dict[str, dict[str, _Run]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._runs.values()))

    def watched(
        self, turn: Turn, relay: Relay, answer: ClientAnswer, story: Story
    ) -> AbstractContextManager[None, bool | None]:
        """While inside, a bulk attempt may be made to give way: its relay fails with `Preempted`. Others make it so.

        To be entered at once.
        """
        decision = turn.decision
        if decision.lane is Lane.BULK:
            return self._listed(decision.chosen, turn, relay, answer, story)
        if decision.lane is Lane.INTERACTIVE:
            self.give_way(decision.chosen)
        return _UNWATCHED

    @contextmanager
    def _listed(self, replica: str, turn: Turn, relay: Relay, answer: ClientAnswer, story: Story) -> Iterator[None]:
        self._runs.setdefault(replica, {})[story.request_id] = _Run(turn, relay, answer, story)
        try:
            yield
        finally:
            runs = self._runs[replica]
            del runs[story.request_id]
            if not runs:
                del self._runs[replica]

    def refresh(self) -> None:
        """Time has passed: look at every replica that has bulk."""
        for replica in list(self._runs):
            self.give_way(replica)

    def give_way(self, replica: str) -> None:
        """Cancel as many of the replica's bulk attempts as people need, as far as the bound allows."""
        runs = self._runs.get(replica)
        if not runs or not self._seats.excess(replica):
            return
        now = self._clock()
        for chosen in self._seats.preempt(replica, [self._described(run, now) for run in runs.values()]):
            runs[chosen.request_id].relay.preempt()

    def _described(self, run: _Run, now: float) -> BulkRun:
        lease, asked = run.turn.lease, run.story.request
        computed = self._seats.computed_tokens(lease, run.relay.relayed.num_chunks or None, now)
        if asked is not None and asked.max_output_tokens is not None:
            computed = min(computed, lease.uncached_tokens + asked.max_output_tokens)  # a guess knows no end
        return BulkRun(
            run.story.request_id,
            lease.begun_at,
            computed,
            has_sent_content=run.answer.has_content,
            times_preempted=run.story.preemptions,
        )
