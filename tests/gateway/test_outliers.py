"""Ejection, slow start and the retry budget of one replica, in a gateway with engines behind it."""

import httpx
import pytest

from routing import breaker, holdbacks, tally
from routing.outliers import MIN_ATTEMPTS
from tests.gateway.kit import chat
from tests.scripted_engine import answer, status


@pytest.fixture
def deaf_breakers(monkeypatch):
    """Breakers that never open, and comparisons at every failure."""
    monkeypatch.setattr(breaker, "MAX_FAULTS", 10**9)
    monkeypatch.setattr(holdbacks, "JUDGE_EVERY_S", 0.0)


def has_worked(gateway):
    """All replicas have answered enough to be compared with."""
    for replica in gateway.parts.router.pool:
        replica.breaker.tally.move_on(gateway.parts.clock())
        replica.breaker.tally.fine = MIN_ATTEMPTS


async def told(gateway):
    """What the control socket tells: (held back by name, the metrics)."""
    transport = httpx.ASGITransport(gateway.gateway.control)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
        replicas = (await client.get("/replicas")).json()["data"]
        return {one["name"]: one["held_back"] for one in replicas}, (await client.get("/metrics")).text


@pytest.mark.usefixtures("deaf_breakers")
async def test_a_replica_that_fails_often_gets_nothing_for_a_while(launch):
    """Its clients get answers from the others at once, and an operator sees why."""
    gateway = await launch(engines=3, retries={"budget_ratio": 1, "replica_budget_ratio": 1})
    has_worked(gateway)
    bad, num_failed = gateway.engines.all[0], 0

    def failing(_request):
        nonlocal num_failed
        num_failed += 1
        return status(500)

    bad.default = failing
    for number in range(60):
        prompt = gateway.prompt_for("r1") if not gateway.parts.router.pool.holdbacks else f"after {number}"
        assert (await gateway.post(chat(prompt))).status == 200
        if num_failed and gateway.parts.router.pool.holdbacks and number > 20:
            break
    assert num_failed < 20
    held, text = await told(gateway)
    assert held["r1"]["kind"] == "ejected"
    assert (held["r1"]["because"], held["r2"], held["r3"]) == ("failures", None, None)
    assert 'warmlane_replica_share{replica="r1"} 0.0' in text
    assert 'warmlane_replica_share{replica="r2"} 1.0' in text
    assert 'warmlane_ejections_total{because="failures",model="small-a"} 1.0' in text


@pytest.mark.usefixtures("deaf_breakers")
async def test_one_broken_replica_does_not_use_up_what_all_may_retry(launch, monkeypatch):
    """P29: its own failures are retried up to a share of what it gets; the rest of the budget is the others'."""
    monkeypatch.setattr(tally, "FREE_RETRIES", 2)
    gateway = await launch(
        engines=2, retries={"budget_ratio": 1, "replica_budget_ratio": 0}, outliers={"max_ejected_share": 0}
    )
    statuses = []
    for _ in range(3):
        gateway.script(status(500), answer("Hello"))
        statuses.append((await gateway.post(chat(gateway.prompt_for("r1")))).status)
        gateway.engines._scripts.clear()
    assert statuses == [200, 200, 502]
    gateway.script(status(500), answer("Hello"))
    assert (await gateway.post(chat(gateway.prompt_for("r2")))).status == 200


async def test_a_replica_that_comes_back_starts_slowly_and_the_first_start_is_fast(launch):
    """P31: the gateway's own start holds nobody back; who was lost gets little at first."""
    gateway = await launch(engines=2)
    assert (await told(gateway))[0] == {"r1": None, "r2": None}
    for name in ("r1", "r2"):
        assert (await gateway.post(chat(gateway.prompt_for(name)))).status == 200
    pool = gateway.parts.router.pool
    pool.move("r2", pool.get("r2").state.LOST)
    for _ in range(2):
        await gateway.parts.fleet.probe_all()
    held, text = await told(gateway)
    assert (held["r1"], held["r2"]["kind"], held["r2"]["because"]) == (None, "slow_start", "returned")
    assert 0.1 <= held["r2"]["share"] < 1
    assert 'warmlane_replica_share{replica="r1"} 1.0' in text
    settings = gateway.gateway.settings
    off = {"slow_start": settings.slow_start.model_copy(update={"window_s": 0.0})}
    gateway.gateway.apply(settings.model_copy(update=off))
    assert (await told(gateway))[0]["r2"] is None
