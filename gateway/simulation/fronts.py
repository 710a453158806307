"""Who gives a simulated fleet its requests: our gateways with their queues and routers, or a baseline's rule.

A front is told of arrivals and of what replicas answer, and says who is sent where.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_affinity.exact import ExactIndex
from cache_affinity.kv_events import BlocksRemoved, BlocksStored, KvEvent, TokenChain
from gateway.simulation.block_cache import FRONT, GONE
from gateway.simulation.dispatch import Dispatch, Usage
from gateway.simulation.gossip_net import GossipNet
from gateway.simulation.recording import RecordedRequest
from gateway.turn import Turn
from policies.entry import Entry
from policies.lane import Lane
from routing.query import RouteQuery

Changes = Sequence[tuple[int, int]]  # see `BlockCache.changes`


@dataclass(slots=True, eq=False)
class TraceFlight:
    """One request from its arrival to its end. Times in virtual seconds, as the gateway sees them.

    `gateway`: number of the one it came to. `replica`: where it was sent, -1 before. `cached_tokens`: as reported.
    """

    request: RecordedRequest
    arrived_at: float
    gateway: int
    replica: int = -1
    sent_at: float = 0.0
    first_at: float = 0.0
    over_at: float = 0.0
    cached_tokens: int = 0
    entry: Entry | None = None
    turn: Turn | None = None


class Front(Protocol):
    """Everything is in virtual time. Each method answers with the flights that are sent now, `replica` set."""

    def arrive(self, flight: TraceFlight, now: float) -> Iterable[TraceFlight]:
        """A request comes to its gateway."""
        ...

    def first_token(self, flight: TraceFlight, now: float) -> None:
        """Its prompt is read."""
        ...

    def finished(self, flights: Sequence[TraceFlight], now: float) -> Iterable[TraceFlight]:
        """Their answers are complete."""
        ...

    def told(self, replica: int, changes: Changes) -> None:
        """What a replica's KV events have told."""
        ...


@dataclass(frozen=True, slots=True)
class OurGateway:
    """`names`: of the replicas, by number. `exact`: None where engines tell nothing."""

    dispatch: Dispatch
    exact: ExactIndex | None = None


class QueueFront:
    """Our gateways: every one with its own queue, shadow and learned costs, and seats leased without delay.

    `gossip`: what they tell each other; None for nothing.
    """

    def __init__(
        self, gateways: Sequence[OurGateway], names: Sequence[str], block_tokens: int, gossip: GossipNet | None = None
    ) -> None:
        self._gateways = gateways
        self._gossip = gossip
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names)}
        self._block_tokens = block_tokens
        self._uses_tokens = any(gateway.exact is not None for gateway in gateways)

    def arrive(self, flight: TraceFlight, now: float) -> Iterable[TraceFlight]:
        """Let it wait, and give the turns there are."""
        self._hear(now)
        request, dispatch = flight.request, self._gateways[flight.gateway].dispatch
        tokens = self._tokens(request) if self._uses_tokens else None
        query = RouteQuery(
            dispatch.queue.model, request.key, Lane.INTERACTIVE, request.tenant, request.output_tokens, tokens=tokens
        )
        flight.entry = dispatch.wait(query, flight, now)
        return self._turns(flight.gateway, now)

    def first_token(self, flight: TraceFlight, now: float) -> None:
        """What its prompt weighed is taken back."""
        assert flight.turn is not None, "tokens without a turn"
        self._hear(now)
        self._gateways[flight.gateway].dispatch.first_token(flight.turn)
        self._note(flight.gateway, now)

    def finished(self, flights: Sequence[TraceFlight], now: float) -> Iterable[TraceFlight]:
        """Learn, give the seats back, give the turns there are."""
        self._hear(now)
        for flight in flights:
            assert flight.turn is not None, "an end without a turn"
            request = flight.request
            ttft_s = flight.first_at - flight.sent_at
            usage = Usage(request.prompt_tokens, flight.cached_tokens, request.output_tokens, ttft_s)
            self._gateways[flight.gateway].dispatch.finished(flight.turn, usage, now)
            self._note(flight.gateway, now)
        sent: list[TraceFlight] = []
        for number, gateway in enumerate(self._gateways):
            if len(gateway.dispatch.queue):
                if len(self._gateways) > 1:
                    gateway.dispatch.queue.wake()
                sent += self._turns(number, now)
        return sent

    def told(self, replica: int, changes: Changes) -> None:
        """Every gateway has read the events."""
        events = kv_events(changes, self._block_tokens)
        for gateway in self._gateways:
            if gateway.exact is not None:
                gateway.exact.apply(self._names[replica], events)

    def _hear(self, now: float) -> None:
        if self._gossip is not None:
            self._gossip.advance(now)

    def _note(self, number: int, now: float) -> None:
        if self._gossip is not None:
            self._gossip.noted(number, now)

    def _turns(self, number: int, now: float) -> list[TraceFlight]:
        """Of one gateway."""
        sent: list[TraceFlight] = []
        for turn in self._gateways[number].dispatch.turns(now):
            flight: TraceFlight = turn.entry.request.ticket
            flight.turn, flight.sent_at = turn, now
            flight.replica = self._numbers[turn.decision.chosen]
            sent.append(flight)
        if sent:
            self._note(number, now)
        return sent

    def _tokens(self, request: RecordedRequest) -> TokenChain:
        size = self._block_tokens
        tail = bytes(4 * (request.prompt_tokens - size * len(request.blocks)))
        return TokenChain(b"".join(packed(name, size) for name in request.blocks) + tail)


def packed(name: int, block_tokens: int) -> bytes:
    """Tokens for a block, as many and as different as blocks are."""
    return (name.to_bytes(8, "little") * (-(-block_tokens // 2)))[: 4 * block_tokens]


def kv_events(changes: Changes, block_tokens: int) -> list[KvEvent]:
    """What an engine publishes of these changes."""
    events: list[KvEvent] = []
    for name, before in changes:
        if before == GONE:
            events.append(BlocksRemoved((name,)))
        else:
            parent = None if before == FRONT else before
            events.append(BlocksStored((name,), parent, packed(name, block_tokens), block_tokens))
    return events
