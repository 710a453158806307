"""Where gateways count together a first request waits for its allowance, shortly, and holds nothing meanwhile."""

import asyncio

import pytest

from policies.meters import Short
from policies.quota import Quotas
from policies.sole_meters import SoleMeters
from tests.gateway.kit import chat
from tests.scripted_engine import answer


class LeasedBySomebody:
    """Meters that have nothing here until `granted` names them."""

    def __init__(self):
        counts = SoleMeters()
        self._take = counts.take
        self.remaining, self.used, self.expire, self.statistics = (
            counts.remaining,
            counts.used,
            counts.expire,
            counts.statistics,
        )
        self.granted = set()
        self.asked = []

    def take(self, meter, amount, moment):
        """Count, if there is an allowance."""
        if meter.key not in self.granted:
            return Short(meter, 0, 0.05, is_pending=True)
        return self._take(meter, amount, moment)


class Peers:
    """Grants every allowance when `opens` is set; `answer`: what is known then."""

    def __init__(self, meters, *, answer=True):
        self.meters = meters
        self.answer = answer
        self.opens = asyncio.Event()

    async def until_granted(self, meter, amount, timeout_s):
        """Wait for the allowance."""
        assert 0 < timeout_s <= 0.5
        self.meters.asked.append((meter.counted.value, amount))
        await self.opens.wait()
        if self.answer:
            self.meters.granted.add(meter.key)
        return self.answer

    def statistics(self):
        """As of leases."""
        return {"units_in_use": 0}


async def launched(launch, limits, **options):
    """A gateway that shares its meters."""
    gateway = await launch()
    meters = LeasedBySomebody()
    gateway.parts.peers = Peers(meters, **options)
    gateway.parts.quotas = Quotas(meters)
    await gateway.limit(gateway.project, limits)
    return gateway


async def test_a_request_waits_for_each_allowance_it_needs(launch):
    """Of requests on arrival, of tokens when it is read; then it is served."""
    gateway = await launched(launch, '{"rpm": 5, "tpm": 1000, "tokens_per_day": 1000}')
    gateway.parts.peers.opens.set()
    gateway.script(answer("a", "b"))
    assert (await gateway.post(chat(max_tokens=10))).status == 200
    asked = gateway.parts.quotas.meters.asked
    assert [name for name, _ in asked] == ["rpm", "tpm", "tokens_per_day"]
    assert asked[0][1] == 1 < asked[1][1]
    assert gateway.records[0].charged_tokens == 12


@pytest.mark.parametrize("limits", ['{"rpm": 5}', '{"rpm": 5, "tpm": 1000}'])
async def test_leaving_while_an_allowance_is_waited_for_holds_nothing(launch, limits):
    """Whoever leaves takes nothing along; the engine hears of nothing."""
    gateway = await launched(launch, limits)
    meters = gateway.parts.quotas.meters
    if "tpm" in limits:
        meters.granted.add(f"project:{gateway.project}:rpm:0")
    client = await gateway.start(chat())
    await gateway.until(lambda: meters.asked)
    client.close()
    await gateway.until_quiet()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts, record.charged_tokens or 0) == ("client_gone", 0, 0)
    assert not gateway.engines.requests


async def test_what_is_not_granted_is_refused(launch):
    """The refusal is that of the limit."""
    gateway = await launched(launch, '{"rpm": 5}', answer=False)
    gateway.parts.peers.opens.set()
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (429, "rpm", "1")


async def test_what_is_pending_is_no_refusal_of_a_shadow(launch):
    """It is not known yet, so it is not told."""
    gateway = await launched(launch, '{"rpm": 5, "shadow": true}')
    assert (await gateway.post(chat())).status == 200
    assert gateway.records[0].limit is None
