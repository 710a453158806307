"""The events of a fleet that is given a trace: their order, and what an arrival does to a stride."""

from math import nextafter

from gateway.simulation.block_replica import BlockReplica
from gateway.simulation.direct_front import DirectFront
from gateway.simulation.recording import BlockKeys, RecordedRequest
from gateway.simulation.trace_fleet import TraceFleet
from gateway.simulation.trace_policies import POLICIES, FrontPlan
from tests.gateway.simulation.traces_kit import SIZE, fleet

KEYS = BlockKeys(SIZE)


def request(number, arrival_s, output_tokens):
    """A prompt of one block and 40 tokens that nobody shares."""
    names, prompt_tokens = (2 * number, 2 * number + 1), SIZE + 40
    return RecordedRequest(
        number, "trace", arrival_s, prompt_tokens, output_tokens, names[:1], KEYS.key(names, prompt_tokens)
    )


class Watched(DirectFront):
    """Remembers when it was told of anything."""

    def __init__(self, gateways):
        super().__init__(gateways)
        self.told_at = []

    def arrive(self, flight, now):
        """As it is."""
        self.told_at.append(now)
        return super().arrive(flight, now)

    def first_token(self, flight, now):
        """As it is."""
        self.told_at.append(now)
        super().first_token(flight, now)

    def finished(self, flights, now):
        """As it is."""
        self.told_at.append(now)
        return super().finished(flights, now)


def ran(*requests):
    """(flights, front) of one replica without hops."""
    settings = fleet(1)
    engine = settings.engine.settings(settings.kv_tokens, SIZE)
    replica = BlockReplica("r1", engine)
    built = POLICIES["round_robin"].build(FrontPlan([replica], engine, 1, 1), POLICIES["round_robin"].settings())
    front = Watched(built._gateways)
    simulated = TraceFleet([replica], front, hop_s=0.0)
    simulated.run(requests, 1.0)
    return simulated.flights, front


def test_an_arrival_at_the_border_of_a_step_does_not_turn_time_back():
    """However little behind it: the stride is cut at a border that rounding puts before the arrival."""
    (alone,), _ = ran(request(0, 0.0, 50))
    step_s = (alone.over_at - alone.first_at) / 49
    for num_steps in range(1, 40):
        at = alone.first_at + num_steps * step_s
        for arrival_s in (at, nextafter(at, 1.0), at + 1e-10 * step_s, nextafter(at, 0.0)):
            flights, front = ran(request(0, 0.0, 50), request(1, arrival_s, 5))
            assert front.told_at == sorted(front.told_at)
            assert all(flight.over_at > flight.first_at > flight.arrived_at for flight in flights)
