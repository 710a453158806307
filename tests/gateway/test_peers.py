"""A gateway among others: what it takes is leased, its limits are parts, and it says how it stands."""

import json
from types import SimpleNamespace

import httpx
import pytest

from gateway.api.discovery import Discovery
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.stores import opened
from policies.lane import Lane
from policies.leases import SoleHoldings, cap
from policies.meters import Moment
from policies.quota import Reason, Rejected
from policies.quota_level import project_meters
from policies.sole_meters import SoleMeters
from policies.tenant import Limits, Tenant


class Peers(SoleHoldings):
    """One of two gateways."""

    num_gateways = 2
    is_degraded = False
    is_limits_degraded = False

    def __init__(self):
        super().__init__()
        self.meters = SoleMeters()


@pytest.fixture
async def store(tmp_path):
    async with opened(Settings().store, tmp_path) as one:
        yield one


async def test_leased_units_are_in_flight_until_they_are_given_back(store):
    """Quiescent means that no unit is in use either; without peers nothing of it is shown."""
    peers = Peers()
    gateway = Gateway(Settings(), store, peers)
    peers.try_take("seat:a:interactive", 1, 0.0)
    assert gateway.statistics()["in_flight"]["leased_units"] == 1
    peers.give_back("seat:a:interactive")
    assert gateway.statistics()["in_flight"]["leased_units"] == 0
    assert "leased_units" not in Gateway(Settings(), store).statistics()["in_flight"]


async def test_the_metrics_say_how_many_gateways_live_and_are_degraded(store):
    """An alert needs both; a gateway of its own has neither."""
    peers = Peers()
    gateway = Gateway(Settings(), store, peers)
    assert b"warmlane_gateways 2.0\n" in gateway.metrics.text()
    assert b"warmlane_gateways_degraded 0.0\n" in gateway.metrics.text()
    peers.is_degraded = True
    assert b"warmlane_gateways_degraded 1.0\n" in gateway.metrics.text()
    assert gateway.is_degraded()
    alone = Gateway(Settings(), store)
    assert b"warmlane_gateways" not in alone.metrics.text()
    assert not alone.is_degraded()


async def test_places_in_flight_are_taken_of_the_leases(store):
    """P16: what another gateway holds is not admitted here; a refusal leaves the place in the minute uncounted."""
    peers = Peers()
    quotas = Gateway(Settings(), store, peers).parts.quotas
    assert quotas.meters is peers.meters
    tenant = Tenant("p", "o", "0" * 32, Limits(rpm=4, concurrency={Lane.BULK: 4}))
    resource = cap(project_meters("p"), Lane.BULK)
    for _ in range(2):  # by the other gateway
        assert peers.try_take(resource, 4, 0.0)
    outcomes = [quotas.reserve(tenant, Lane.BULK, Moment(0.0, 0.0)) for _ in range(3)]
    assert [isinstance(outcome, Rejected) for outcome in outcomes] == [False, False, True]
    assert outcomes[2].pending is None
    outcomes[0].settle(Moment(0.0, 0.0))
    outcomes[1].undo(Moment(0.0, 0.0))
    assert peers.statistics()["units_in_use"] == 2
    again = [quotas.reserve(tenant, Lane.BULK, Moment(0.0, 0.0)) for _ in range(3)]
    assert [isinstance(outcome, Rejected) for outcome in again] == [False, False, True]
    assert [one.reason for one in again[2:]] == [Reason.CONCURRENCY], "of the 4 in the minute 3 are used"


async def test_a_gateway_that_stops_says_so(store):
    """Still 503 for the load balancer; a person sees that it is no fault."""
    gateway = Gateway(Settings(), store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app()), base_url="http://gateway") as client:
        for status in ("not ready", "draining"):
            answer = await client.get("/health/ready")
            assert (answer.status_code, answer.json()) == (503, {"status": status})
            gateway.drain()


async def test_a_ledger_without_room_is_told_with_its_reason():
    """Every request is refused then, so an operator must hear of it; where it is, whoever has no key must not."""
    faults = ["requests cannot be written down in /home/warmlane/.warmlane/ledger: its disk is full"]
    directory = SimpleNamespace(store_lost=None)
    discovery = Discovery(directory, None, lambda: True, lambda: 0.0, fault=lambda: faults[0])
    told = json.loads((await discovery.ready(None)).body)
    assert told == {"status": "degraded", "reason": "requests cannot be written down: the log says why"}
    faults[0] = None
    assert json.loads((await discovery.ready(None)).body) == {"status": "ready"}


@pytest.mark.parametrize(
    ("is_ready", "is_degraded", "told"),
    [
        (True, False, (200, "ready")),
        (True, True, (200, "degraded")),
        (False, True, (503, "not ready")),
        (False, False, (503, "not ready")),
    ],
)
async def test_degraded_is_told_and_takes_no_traffic_away(is_ready, is_degraded, told):
    """All gateways lose the store at once: red readiness would take all of them out."""
    directory = SimpleNamespace(store_lost=None)
    discovery = Discovery(directory, None, lambda: is_ready, lambda: 0.0, lambda: is_degraded)
    response = await discovery.ready(None)
    assert (response.status_code, json.loads(response.body)["status"]) == told
