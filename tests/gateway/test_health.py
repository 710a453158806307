"""Replicas that come, go, flap and are too busy to say how they are (cases P23, P25, P30, P31)."""

import asyncio

import pytest

from gateway import replica_probe
from gateway.announced import AnnouncedReplica, Announcement
from gateway.settings import ConfigError
from policies.meters import Moment
from routing.replica import ReplicaState
from tests.gateway.kit import MODEL, chat
from tests.scripted_engine import Framing, Reply, answer, status

DOWN = status(503)
UP = Reply([b"{}"], framing=Framing.LENGTH)


def state_of(gateway, name="r1"):
    """Where a replica stands."""
    return gateway.parts.router.pool.get(name).state


def announced(engine, name="w1", /, **fields):
    """One worker as the supervisor announces it."""
    values = {"name": name, "model": MODEL, "engine": "warmlane", "url": engine.url, "seats": 4}
    return AnnouncedReplica(**values | fields)


async def ready(gateway):
    """Status of the readiness probe."""
    return (await gateway.get("/health/ready", key=None)).status


async def test_one_failed_probe_changes_nothing_and_three_in_a_row_do(launch):
    """P30: the replica is lost at the third, and comes back after two good ones."""
    gateway = await launch()
    gateway.engine.health = DOWN
    for expected in (ReplicaState.READY, ReplicaState.READY, ReplicaState.LOST):
        await gateway.parts.fleet.probe_all()
        assert state_of(gateway) is expected
    assert await ready(gateway) == 503
    gateway.engine.health = UP
    for expected in (ReplicaState.LOST, ReplicaState.READY):
        await gateway.parts.fleet.probe_all()
        assert state_of(gateway) is expected
    assert await ready(gateway) == 200


async def test_alternating_probes_move_nothing(launch):
    """P31: good, bad, good, bad: a flapping probe is no reason to lose a replica."""
    gateway = await launch()
    for round_number in range(20):
        gateway.engine.health = UP if round_number % 2 else DOWN
        await gateway.parts.fleet.probe_all()
        assert state_of(gateway) is ReplicaState.READY


async def test_a_replica_too_busy_to_answer_its_probe_keeps_its_streams_and_its_place(launch, monkeypatch):
    """P30: probes that time out while requests are served mean busy; nothing is cut and new requests still go there."""
    gateway = await launch()
    monkeypatch.setattr(replica_probe, "PROBE_TIMEOUT_S", 0.02)
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}), answer("next"))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    gateway.engine.health_gate = asyncio.Event()
    for _ in range(5):
        await gateway.parts.fleet.probe_all()
    assert state_of(gateway) is ReplicaState.READY
    assert (await gateway.post(chat())).text == "next"
    gateway.engine.health_gate.set()
    gateway.engine.health_gate = None
    gate.set()
    assert (await client.answer()).text == "ab"


async def test_a_lost_replica_finishes_its_open_streams(launch):
    """P30: a probe's result never cuts what runs."""
    gateway = await launch()
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    gateway.engine.health = DOWN
    for _ in range(3):
        await gateway.parts.fleet.probe_all()
    assert state_of(gateway) is ReplicaState.LOST
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (503, "no_replica_none_ready", "5")
    gate.set()
    assert (await client.answer()).text == "ab"


async def test_probes_do_not_count_as_requests(launch):
    """P25: what is in flight is zero when quiescent, also while a probe is under way."""
    gateway = await launch()
    gateway.engine.health_gate = asyncio.Event()
    probing = asyncio.ensure_future(gateway.parts.fleet.probe_all())
    seen = gateway.engine.probes["/health"]
    await gateway.until(lambda: gateway.engine.probes["/health"] > seen)
    assert not any(gateway.in_flight.values())
    gateway.engine.health_gate.set()
    gateway.engine.health_gate = None
    await probing


async def test_the_gateway_answers_its_own_probes_while_everything_waits(launch):
    """P30: neither seats nor lanes are needed to say that it lives."""
    gateway = await launch(seats=1)
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}))
    clients = [await gateway.start(chat()) for _ in range(20)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 19)
    assert await ready(gateway) == 200
    assert (await gateway.get("/health/live", key=None)).status == 200
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200


async def test_without_any_replica_readiness_is_red_and_requests_say_when_to_come_back(launch):
    """P31: start with none: 503 with Retry-After; a late worker joins without a restart."""
    gateway = await launch(engines=2)
    await gateway.engines.all[1].kill()
    await gateway.engine.kill()
    for _ in range(3):
        await gateway.parts.fleet.probe_all()
    assert await ready(gateway) == 503
    got = await gateway.post(chat(stream=True))
    assert (got.status, int(got.header("retry-after"))) == (503, 5)
    assert gateway.records[-1].outcome == "shed"
    await gateway.engines.all[1].restart()
    for _ in range(2):
        await gateway.parts.fleet.probe_all()
    assert await ready(gateway) == 200
    assert (await gateway.post(chat())).status == 200


async def test_a_gateway_without_replicas_starts_and_is_not_ready(launch):
    """P31: nothing configured is no failure; the model is simply not there."""
    gateway = await launch(replicas=[], models=[{"name": MODEL}])
    assert await ready(gateway) == 503
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (503, "no_replica_unknown_model", None)
    gateway.parts.fleet.announce(Announcement([announced(gateway.engine)]))
    assert await ready(gateway) == 200
    assert (await gateway.post(chat())).status == 200


async def test_whoever_waits_is_served_by_a_worker_that_comes(launch):
    """P31: a change of the fleet wakes the queue."""
    gateway = await launch(engines=2, replicas=[])
    first, second = gateway.engines.all
    gateway.parts.fleet.announce(Announcement([announced(first, seats=1)]))
    gate = asyncio.Event()
    gateway.script(answer("held", gates={0: gate}), answer("late"))
    holder, waiter = await gateway.start(chat()), None
    await gateway.received()
    waiter = await gateway.start(chat())
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    gateway.parts.fleet.announce(Announcement([announced(first, seats=1), announced(second, "w2")]))
    assert (await waiter.answer()).text == "late"
    gate.set()
    assert (await holder.answer()).text == "held"


async def test_a_removed_replica_gets_nothing_more_and_is_forgotten(launch):
    """P23: from the moment of removal its prefix has another home; what was open there fails and is retried."""
    gateway = await launch(engines=2, replicas=[])
    both = [announced(engine, f"w{number}") for number, engine in enumerate(gateway.engines.all, start=1)]
    gateway.parts.fleet.announce(Announcement(both))
    text = gateway.prompt_for("w2")
    gateway.script(answer("open", gates={1: asyncio.Event()}))
    client = await gateway.start(chat(text, stream=True))
    await gateway.received()
    gateway.parts.fleet.announce(Announcement(both[:1]))
    connections = gateway.engines.all[1].num_connections
    assert (await client.answer()).text == "Hello world"
    for _ in range(5):
        assert (await gateway.post(chat(text))).status == 200
    assert [index for index, _ in gateway.engines.requests] == [1] + [0] * 6
    assert gateway.engines.all[1].num_connections == connections
    assert len(gateway.parts.router.pool) == 1


async def test_many_short_lived_workers_leave_nothing_behind(launch):
    """P23: 500 come and go; replicas, connections and index are as before."""
    gateway = await launch(replicas=[])
    stays = announced(gateway.engine)
    gateway.parts.fleet.announce(Announcement([stays]))
    await gateway.post(chat())
    before = gateway.gateway.statistics()
    for number in range(500):
        gateway.parts.fleet.announce(Announcement([stays, announced(gateway.engine, f"short-{number}")]))
    gateway.parts.fleet.announce(Announcement([stays]))
    after = gateway.gateway.statistics()
    assert (after["replicas"], after["shadow_nodes"]) == (before["replicas"], before["shadow_nodes"])
    assert len(gateway.parts.fleet._connections) == 1
    assert (await gateway.post(chat())).status == 200


async def test_housekeeping_does_not_touch_the_load(launch):
    """P25: probes, repeated announcements and admin reads leave counters, state and breaker as they are."""
    gateway = await launch(replicas=[])
    document = Announcement([announced(gateway.engine, seats=8)])
    gateway.parts.fleet.announce(document)
    gate = asyncio.Event()
    gateway.engine.fallback = answer("x", gates={0: gate})
    clients = [await gateway.start(chat(f"{number}")) for number in range(5)]
    await gateway.received(5)
    replica = gateway.parts.router.pool.get("w1")
    before = (replica.num_in_flight, replica.work_tokens, len(replica.shadow), replica.breaker)
    for _ in range(3):
        await gateway.parts.fleet.probe_all()
        gateway.parts.fleet.announce(document)
        gateway.gateway.statistics()
        await gateway.parts.directory.refresh()
        gateway.parts.router.pool.expire(0.0)
        gateway.parts.quotas.expire(Moment(0.0, 0.0))
        after = (replica.num_in_flight, replica.work_tokens, len(replica.shadow), replica.breaker)
        assert after == before
        assert gateway.in_flight["leases"] == 5
    gate.set()
    for client in clients:
        await client.answer()


async def test_an_announcement_does_not_undo_a_drain(launch):
    """P25: an operator's wish outlives the supervisor's next round; new work waits elsewhere."""
    gateway = await launch(replicas=[])
    document = Announcement([announced(gateway.engine)])
    gateway.parts.fleet.announce(document)
    gateway.parts.fleet.drain("w1")
    gateway.parts.fleet.announce(document)
    await gateway.parts.fleet.probe_all()
    assert state_of(gateway, "w1") is ReplicaState.DRAINING
    assert (await gateway.post(chat())).status == 503
    gateway.parts.fleet.resume("w1")
    assert (await gateway.post(chat())).status == 200


async def test_a_restarted_worker_is_reached_at_its_new_address(launch):
    """P23: same name, new process: nothing is sent to the old one."""
    gateway = await launch(engines=2, replicas=[])
    first, second = gateway.engines.all
    gateway.parts.fleet.announce(Announcement([announced(first)]))
    await gateway.post(chat())
    gateway.parts.fleet.announce(Announcement([announced(second, generation=1)]))
    await gateway.post(chat())
    assert [index for index, _ in gateway.engines.requests] == [0, 1]


@pytest.mark.parametrize("fields", [{"engine": "nothing"}, {"url": "ftp://x"}])
async def test_an_announcement_that_cannot_be_changes_nothing(launch, fields):
    """All or nothing: the fleet stays as it was."""
    gateway = await launch(replicas=[])
    gateway.parts.fleet.announce(Announcement([announced(gateway.engine)]))
    with pytest.raises(ValueError):
        gateway.parts.fleet.announce(Announcement([announced(gateway.engine, "w2", **fields)]))
    assert [replica.name for replica in gateway.parts.router.pool] == ["w1"]
    assert (await gateway.post(chat())).status == 200


async def test_an_engines_key_from_a_file_with_a_final_newline_works(launch, monkeypatch):
    """It goes to probes and requests alike, and never to the client's record."""
    monkeypatch.setenv("ENGINE_KEY", "sk-engine\n")
    gateway = await launch(kind="openai", replica={"api_key_env": "ENGINE_KEY"})
    assert (await gateway.post(chat())).status == 200
    assert (await gateway.received()).header("authorization") == "Bearer sk-engine"


async def test_an_engines_key_that_no_header_can_carry_is_a_configuration_error(launch, monkeypatch):
    """Said at the start, rather than by probes that fail for ever."""
    monkeypatch.setenv("ENGINE_KEY", "two words")
    with pytest.raises(ConfigError, match="r1: ENGINE_KEY"):
        await launch(replica={"api_key_env": "ENGINE_KEY"})


async def test_an_unstreamed_request_on_a_lost_replica_is_answered_by_another(launch):
    """D17: it is not left waiting for `total_s`."""
    gateway = await launch(engines=2)
    gateway.script(answer("never", gates={0: asyncio.Event()}), answer("second"))
    client = await gateway.start(chat(gateway.prompt_for("r1")))
    await gateway.received()
    gateway.engine.health = DOWN
    for _ in range(3):
        await gateway.parts.fleet.probe_all()
    got = await client.answer()
    assert (got.status, got.text) == (200, "second")
    assert not any(connection.relays for connection in gateway.parts.fleet._connections.values())


async def test_a_lost_store_is_told_and_known_keys_are_served(launch):
    """D27: the file is gone, the directory is in memory; restored, all is as before without a restart."""
    gateway = await launch()
    path = gateway.store._path
    away = path.with_name("away")
    path.rename(away)
    lost = {"status": "degraded", "reason": "store lost: the log says which file, restore it or restart"}
    await gateway.until(lambda: gateway.parts.directory.store_lost)
    assert gateway.parts.directory.store_lost == f"store lost: {path} was deleted, restore it or restart"  # for the log
    answer = await gateway.get("/health/ready", key=None)
    assert (answer.status, answer.json) == (200, lost)
    assert (await gateway.post(chat())).status == 200
    assert (await gateway.post(chat(), key="wl-nobody-knows")).status == 401
    away.rename(path)
    await gateway.until(lambda: not gateway.parts.directory.store_lost)
    assert (await gateway.get("/health/ready", key=None)).json == {"status": "ready"}
    assert (await gateway.post(chat(), key=await gateway.new_key())).status == 200
