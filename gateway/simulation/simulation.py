"""The events of a simulated fleet and what each of them sets off.

A worker goes from step to step by itself; the gateway hears of a step's tokens one hop later and answers with turns,
which reach a worker another hop later. So a freed seat stays empty for about a step, as in life.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engines.fake import FinishReason, SequenceDelta
from gateway.simulation.dispatch import Dispatch
from gateway.simulation.events import Timeline
from gateway.simulation.flight import Flight
from gateway.simulation.measure import Groups, Occupancy, ReplicaResult, Result, Window
from gateway.simulation.replica import SimulatedReplica
from gateway.simulation.workload import SimulatedRequest, Source
from policies.lane import Lane


@dataclass(frozen=True, slots=True)
class _Arrival:
    """`is_scheduled`: it came from its source's own stream, whose next request is to be fetched."""

    request: SimulatedRequest
    source: int
    is_scheduled: bool


@dataclass(frozen=True, slots=True)
class _Sent:
    """A request with its turn reaches its worker."""

    flight: Flight


@dataclass(frozen=True, slots=True)
class _Left:
    """A client's patience is at its end."""

    flight: Flight


@dataclass(frozen=True, slots=True)
class _Aborted:
    """The gateway's abort reaches the worker."""

    flight: Flight


@dataclass(frozen=True, slots=True)
class _StepEnd:
    member: "_Member"


@dataclass(frozen=True, slots=True)
class _Heard:
    """The gateway hears what a step has brought."""

    member: "_Member"
    deltas: list[SequenceDelta]


_Event = _Arrival | _Sent | _Left | _Aborted | _StepEnd | _Heard


@dataclass(slots=True)
class _Member:
    """A worker of the fleet. `step_ends_at`: of the step being computed."""

    worker: SimulatedReplica
    occupancy: Occupancy
    step_ends_at: float = 0.0
    bulk_tokens_held: int = 0
    bulk_tokens_free: int = 0


class Simulation:
    """One run. `hop_s`: seconds from the gateway to a worker and back, each."""

    def __init__(
        self, workers: Sequence[SimulatedReplica], dispatch: Dispatch, sources: Sequence[Source], window: Window, *,
        hop_s: float,
    ) -> None:  # fmt: skip
        self._members = {worker.name: _Member(worker, Occupancy(window)) for worker in workers}
        self.dispatch = dispatch
        self._sources = tuple(sources)
        self._streams: list[Iterator[SimulatedRequest]] = [source.arrivals() for source in sources]
        self._window = window
        self._hop_s = hop_s
        self._timeline: Timeline[_Event] = Timeline()
        self._groups = Groups(window)
        self._flights: dict[str, Flight] = {}

    def __repr__(self) -> str:
        return f"<Simulation {self._timeline!r} flights={len(self._flights)} waiting={len(self.dispatch.queue)}>"

    @property
    def num_in_flight(self) -> int:
        """Requests that wait or are being answered."""
        return len(self._flights)

    def run_until(self, end_s: float) -> None:
        """Let everything happen that happens before `end_s`. Once."""
        for source in range(len(self._sources)):
            self._fetch(source)
        timeline = self._timeline
        while len(timeline):
            event = timeline.take()
            if timeline.now >= end_s:
                break
            self._happen(event, timeline.now)
        for member in self._members.values():
            member.occupancy.close(end_s)

    def result(self) -> Result:
        """What was measured."""
        window = self._window
        return Result(
            window_s=window.end_s - window.start_s,
            lanes={lane: group.summary() for lane, group in self._groups.lanes.items()},
            tenants={name: group.summary() for name, group in self._groups.tenants.items()},
            replicas=tuple(map(_result_of, self._members.values())),
        )

    def _happen(self, event: _Event, now: float) -> None:
        match event:
            case _StepEnd(member):
                self._timeline.add(now + self._hop_s, _Heard(member, member.worker.end_step(now)))
                self._begin_step(member, now)
            case _Heard(member, deltas):
                self._hear(member, deltas, now)
            case _Arrival(request, source, is_scheduled):
                if is_scheduled:
                    self._fetch(source)
                self._arrive(request, source, now)
            case _Sent(flight):
                self._reach_worker(flight, now)
            case _Left(flight):
                self._leave(flight, now)
            case _Aborted(flight):
                self._member_of(flight).worker.abort(flight.request.id)

    def _fetch(self, source: int) -> None:
        request = next(self._streams[source], None)
        if request is not None:
            self._timeline.add(request.arrival_s, _Arrival(request, source, is_scheduled=True))

    def _arrive(self, request: SimulatedRequest, source: int, now: float) -> None:
        counts = self._window.holds(request.arrival_s)
        flight = Flight(request, source, self._groups.of(request), counts)
        entry = flight.entry = self.dispatch.enter(request, flight, now)
        for group in flight.groups:
            group.num_arrived += counts
        self._flights[request.id] = flight
        if request.patience_s is not None:
            self._timeline.add(now + request.patience_s, _Left(flight))
        self._give_turns(now)
        turned_away = self.dispatch.turned_away(entry, now)
        if turned_away is not None:
            self._refuse(turned_away.request.ticket)

    def _refuse(self, flight: Flight) -> None:
        """It has no place in the queue (any more), and does not come back."""
        flight.is_over = True
        for group in flight.groups:
            group.num_refused += flight.counts
        del self._flights[flight.request.id]

    def _give_turns(self, now: float) -> None:
        for turn in self.dispatch.turns(now):
            flight: Flight = turn.entry.request.ticket
            flight.turn, flight.sent_at = turn, now
            member = self._members[turn.decision.chosen]
            member.occupancy.enter(flight.request.lane, now)
            self._timeline.add(now + self._hop_s, _Sent(flight))

    def _reach_worker(self, flight: Flight, now: float) -> None:
        if flight.is_over:
            return
        member = self._member_of(flight)
        member.worker.submit(flight.request, flight.request.tenant, now)
        if member.worker.is_stepping:
            flight.entered_at = member.step_ends_at
        else:
            flight.entered_at = now
            self._begin_step(member, now)

    def _begin_step(self, member: _Member, now: float) -> None:
        seconds = member.worker.begin_step(now)
        if seconds is not None:
            member.step_ends_at = now + seconds
            self._timeline.add(member.step_ends_at, _StepEnd(member))

    def _hear(self, member: _Member, deltas: list[SequenceDelta], now: float) -> None:
        has_freed = False
        is_in_window = self._window.holds(now)
        for delta in deltas:
            flight = self._flights.get(delta.request_id)
            if flight is None:  # its client has left
                continue
            if delta.token_ids:
                self._count_tokens(member, flight, delta, now, is_in_window=is_in_window)
            if delta.finish_reason is not None:
                assert delta.finish_reason is FinishReason.LENGTH, f"{delta.request_id} ended with {delta.error}"
                self._finish(flight, now)
                has_freed = True
        if has_freed:
            self._give_turns(now)

    def _count_tokens(
        self, member: _Member, flight: Flight, delta: SequenceDelta, now: float, *, is_in_window: bool
    ) -> None:
        turn = flight.turn
        assert turn is not None, "tokens without a turn"
        if flight.first_at is None:
            flight.cached_tokens = delta.cached_tokens
            self.dispatch.first_token(turn)
        flight.got_tokens(len(delta.token_ids), now, self._window)
        if flight.request.lane is Lane.BULK and is_in_window:
            if member.occupancy.is_held:
                member.bulk_tokens_held += len(delta.token_ids)
            else:
                member.bulk_tokens_free += len(delta.token_ids)

    def _finish(self, flight: Flight, now: float) -> None:
        turn = flight.turn
        assert turn is not None, "an end without a turn"
        self.dispatch.finished(turn, flight.finished(now), now)
        self._let_go(flight, now)

    def _leave(self, flight: Flight, now: float) -> None:
        """The client leaves: its seat is free for the gateway at once, in the worker when the abort has reached it."""
        if flight.is_over:
            return
        flight.is_over = True
        for group in flight.groups:
            group.num_left += flight.counts
        if flight.turn is None:
            assert flight.entry is not None, "who was refused cannot leave"
            self.dispatch.leave(flight.entry, now)
        else:
            self.dispatch.abandoned(flight.turn, flight.served_so_far(), now)
            self._timeline.add(now + self._hop_s, _Aborted(flight))
        self._let_go(flight, now)
        self._give_turns(now)

    def _let_go(self, flight: Flight, now: float) -> None:
        del self._flights[flight.request.id]
        if flight.turn is not None:
            self._member_of(flight).occupancy.leave(flight.request.lane, now)
        follow_up = self._sources[flight.source].follow_up(flight.request, now)
        if follow_up is not None:
            self._timeline.add(follow_up.arrival_s, _Arrival(follow_up, flight.source, is_scheduled=False))

    def _member_of(self, flight: Flight) -> _Member:
        assert flight.turn is not None, "no turn, no worker"
        return self._members[flight.turn.decision.chosen]


def _result_of(member: _Member) -> ReplicaResult:
    worker = member.worker
    statistics = worker.scheduler.statistics()
    return ReplicaResult(
        name=worker.name, held_s=member.occupancy.held_s, busy_s=worker.busy_s, num_steps=worker.num_steps,
        prompt_tokens=statistics.prompt_tokens, hit_tokens=statistics.cached_tokens,
        preemptions=statistics.preemptions, evictions=statistics.evictions,
        bulk_tokens_held=member.bulk_tokens_held, bulk_tokens_free=member.bulk_tokens_free,
    )  # fmt: skip
