"""The events of a fleet that is given a trace: arrivals, what replicas compute, and what the gateways hear of it.

As in `simulation.py`: a worker goes on by itself, the gateway hears of it one hop later, and what it sends takes
another hop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.block_sequence import BlockSequence
from gateway.simulation.block_steps import Stride
from gateway.simulation.events import Timeline
from gateway.simulation.fronts import Changes, Front, TraceFlight
from gateway.simulation.recording import RecordedRequest

_PROGRESS_EVERY = 256  # arrivals
_Event = tuple[Callable[[float, Any], None], Any]  # (what happens at its time, with what)


def nobody_watches(num_arrived: int) -> None:
    """For who wants no progress."""


@dataclass(slots=True)
class _Heard:
    """What the gateways hear of a replica together."""

    replica: int
    firsts: list[BlockSequence]
    over: list[BlockSequence]
    changes: Changes


class TraceFleet:
    """One run, until everything is answered. `speed`: so many times as fast as recorded.

    `gateway_of`: number of the gateway that a request comes to. Once.
    """

    def __init__(
        self,
        replicas: Sequence[BlockReplica],
        front: Front,
        *,
        hop_s: float = 0.0005,
        gateway_of: Callable[[RecordedRequest], int] = lambda _request: 0,
        on_progress: Callable[[int], None] = nobody_watches,
    ) -> None:
        self._replicas = replicas
        self._front = front
        self._hop_s = hop_s
        self._gateway_of = gateway_of
        self._on_progress = on_progress
        self._timeline: Timeline[_Event] = Timeline()
        self._num_sent = 0
        self.flights: list[TraceFlight] = []

    def __repr__(self) -> str:
        return f"<TraceFleet {len(self._replicas)} replicas, {len(self.flights)} arrived, {self._timeline!r}>"

    def run(self, requests: Iterable[RecordedRequest], speed: float) -> float:
        """Let everything happen; when the last answer was complete."""
        stream, timeline = iter(requests), self._timeline
        self._fetch(stream, speed)
        while len(timeline):
            happen, what = timeline.take()
            happen(timeline.now, what)
            if happen == self._arrive:
                self._fetch(stream, speed)
        self._on_progress(len(self.flights))
        return timeline.now

    def _add(self, at: float, happen: Callable[[float, Any], None], what: object) -> None:
        self._timeline.add(at, (happen, what))

    def _fetch(self, stream: Iterator[RecordedRequest], speed: float) -> None:
        request = next(stream, None)
        if request is not None:
            self._add(request.arrival_s / speed, self._arrive, request)

    def _arrive(self, now: float, request: RecordedRequest) -> None:
        flight = TraceFlight(request, now, self._gateway_of(request))
        self.flights.append(flight)
        if len(self.flights) % _PROGRESS_EVERY == 0:
            self._on_progress(len(self.flights))
        self._send(self._front.arrive(flight, now), now)

    def _send(self, flights: Iterable[TraceFlight], now: float) -> None:
        for flight in flights:
            self._add(now + self._hop_s, self._reach, flight)

    def _reach(self, now: float, flight: TraceFlight) -> None:
        """It reaches its replica."""
        request, replica = flight.request, self._replicas[flight.replica]
        self._num_sent += 1
        sequence = BlockSequence(flight, self._num_sent, request.blocks, request.prompt_tokens, request.output_tokens)
        is_cut = replica.submit(sequence, now)
        if is_cut:
            self._await_end(flight.replica, now)
        elif replica.stride is None:
            self._begin(flight.replica, now)

    def _begin(self, number: int, now: float) -> None:
        if self._replicas[number].begin(now) is not None:
            self._await_end(number, now)

    def _await_end(self, number: int, now: float) -> None:
        stride = self._replicas[number].stride
        assert stride is not None, "nothing is computed"
        ends_at = max(stride.ends_at, now)  # of one that was just cut, rounding may put it a hair before
        self._add(ends_at, self._end, (number, stride, stride.num_steps))

    def _end(self, now: float, what: tuple[int, Stride, int]) -> None:
        number, stride, num_steps = what
        replica = self._replicas[number]
        if replica.stride is not stride or stride.num_steps != num_steps:
            return  # it was cut, and has another end
        firsts, over = replica.end(now)
        changes = replica.cache.take_changes()
        if firsts or over or changes:
            self._add(now + self._hop_s, self._hear, _Heard(number, firsts, over, changes))
        self._begin(number, now)

    def _hear(self, now: float, heard: _Heard) -> None:
        front = self._front
        if heard.changes:
            front.told(heard.replica, heard.changes)
        for sequence in heard.firsts:
            flight = sequence.ticket
            flight.first_at, flight.cached_tokens = now, sequence.cached_tokens or 0
            front.first_token(flight, now)
        over = [sequence.ticket for sequence in heard.over]
        for flight in over:
            flight.over_at = now
        if over:
            self._send(front.finished(over, now), now)
