"""The replicas as the gateway reaches them: announced or configured, probed, drained, and gone."""

import asyncio
import contextlib

import pytest

from engines.contract import Fault, LoadReport, ReplicaError
from gateway import replica_probe as module
from gateway.announced import AnnouncedReplica, Announcement
from gateway.fleet import Fleet
from gateway.settings import Settings
from routing.pool import ReplicaPool
from routing.replica import ReplicaState
from tests.scripted_engine import Framing, Reply, ScriptedEngine, status

LOADED = b"warmlane:num_requests_running 3\nwarmlane:num_requests_waiting 2\nwarmlane:kv_cache_usage_perc 0.5\n"


class Watched:
    """A fleet over a pool. `changes`: how often those who wait were told to look again."""

    def __init__(self, *replicas):
        self.pool = ReplicaPool()
        self.changes = 0
        settings = Settings(replicas=[{"engine": "warmlane", "model": "m", **replica} for replica in replicas])
        self.fleet = Fleet(settings, self.pool, lambda: 100.0, self._on_change)

    def _on_change(self):
        self.changes += 1

    def announce(self, *workers):
        """Make these the live workers."""
        self.fleet.announce(Announcement(list(workers)))

    def states(self):
        """Every replica's state, by name."""
        return {replica.name: replica.state.value for replica in self.pool}

    async def probe(self, times=1):
        """Probe everybody so many times."""
        for _ in range(times):
            await self.fleet.probe_all()


@contextlib.asynccontextmanager
async def engine_and(*names):
    """An engine, and a fleet with these configured replicas on it."""
    async with ScriptedEngine() as engine:
        watched = Watched(*({"name": name, "url": engine.url} for name in names))
        try:
            yield engine, watched
        finally:
            watched.fleet.close()


def worker(name="w1", url="http://127.0.0.1:9", **changes):
    """An announced worker."""
    return AnnouncedReplica(**{"name": name, "model": "m", "engine": "warmlane", "url": url, "seats": 4, **changes})


async def test_a_configured_replica_is_ready_once_it_has_answered():
    """Not before: it may be absent at start-up (P31)."""
    async with engine_and("r1") as (_, watched):
        assert watched.states() == {"r1": "joining"}
        assert watched.fleet.models() == {"m"}
        await watched.probe()
        assert watched.states() == {"r1": "ready"}
        assert watched.changes == 1


@pytest.mark.parametrize("changes", [{"generation": 2}, {"model": "n"}, {"engine": "vllm"}])
async def test_what_a_worker_said_of_its_model_ends_with_its_process(changes):
    """The next one, at the same address, may have another model: it would not be asked for what it can do."""
    watched = Watched()
    watched.announce(worker())
    abilities = watched.fleet.connection("w1").abilities
    abilities.note_list(b'{"data": [{"id": "m", "tasks": ["generate"]}]}', "m", 100.0)
    abilities.has_embedded = True
    watched.announce(worker(seats=5))
    assert watched.fleet.connection("w1").tasks == {"generate"}
    watched.announce(worker(**changes))
    assert watched.fleet.connection("w1").tasks is None
    assert not watched.fleet.has_embedded("w1")
    assert watched.pool.get("w1").spec.surfaces == watched.fleet.connection("w1").surfaces
    watched.fleet.close()


async def test_three_failures_in_a_row_lose_a_replica_and_two_answers_bring_it_back():
    """P31: it joins again without a restart."""
    async with engine_and("r1") as (engine, watched):
        await watched.probe()
        await engine.kill()
        await watched.probe(2)
        assert watched.states() == {"r1": "ready"}
        await watched.probe()
        assert watched.states() == {"r1": "lost"}
        await engine.restart()
        await watched.probe()
        assert watched.states() == {"r1": "lost"}
        await watched.probe()
        assert watched.states() == {"r1": "ready"}


async def test_an_engine_that_says_it_cannot_serve_is_not_ready():
    """503 while it loads its model."""
    async with engine_and("r1") as (engine, watched):
        engine.health = status(503)
        await watched.probe(5)
        assert watched.states() == {"r1": "joining"}
        engine.health = Reply([b"{}"], framing=Framing.LENGTH)
        await watched.probe()
        assert watched.states() == {"r1": "ready"}


async def test_a_probe_without_an_answer_is_a_failure_unless_the_replica_is_at_work(monkeypatch):
    """P30: too busy to answer is busy, not dead."""
    monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.01)
    async with engine_and("r1") as (engine, watched):
        monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 5.0)
        await watched.probe()
        monkeypatch.setattr(module, "PROBE_TIMEOUT_S", 0.01)
        engine.health_gate = asyncio.Event()
        watched.pool.get("r1").num_in_flight += 1
        await watched.probe(5)
        assert watched.states() == {"r1": "ready"}
        watched.pool.get("r1").num_in_flight -= 1
        await watched.probe(3)
        assert watched.states() == {"r1": "lost"}


async def test_load_is_read_and_its_absence_makes_nobody_unready():
    """Metrics that fail are no reason to send a healthy engine nothing."""
    async with engine_and("r1") as (engine, watched):
        engine.metrics = LOADED
        await watched.probe()
        assert dict(watched.fleet.loads()) == {"r1": LoadReport(3, 2, 0.5)}
        engine.metrics = b"x" * (5 * 1024 * 1024)
        await watched.probe(4)
        assert watched.states() == {"r1": "ready"}
        assert dict(watched.fleet.loads()) == {"r1": LoadReport()}


async def test_probes_are_not_counted_as_requests():
    """`in_flight` is zero when nothing is served, whatever the prober does."""
    async with engine_and("r1") as (engine, watched):
        engine.health_gate = asyncio.Event()
        probing = asyncio.ensure_future(watched.probe())
        async with asyncio.timeout(5):
            while not engine.probes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert watched.fleet.num_upstream() == 0
        engine.health_gate.set()
        await probing


async def test_watching_ends_when_cancelled():
    """And leaves nothing open."""
    async with engine_and("r1") as (_, watched):
        task = asyncio.ensure_future(watched.fleet.watch())
        async with asyncio.timeout(5):
            while not watched.changes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert watched.states() == {"r1": "ready"}


# Announcements.


async def test_announced_workers_are_ready_at_once_and_gone_when_no_longer_announced():
    """The supervisor announces what answered."""
    watched = Watched()
    watched.announce(worker("w1"), worker("w2", model="m2"))
    assert watched.states() == {"w1": "ready", "w2": "ready"}
    assert watched.fleet.models() == {"m", "m2"}
    watched.announce(worker("w1"))
    assert watched.states() == {"w1": "ready"}
    assert watched.fleet.models() == {"m"}
    assert watched.changes == 2
    with pytest.raises(ReplicaError) as caught:
        watched.fleet.connection("w2")
    assert caught.value.fault is Fault.CONNECT


async def test_configured_replicas_stay_whatever_is_announced():
    """They are the operator's."""
    watched = Watched({"name": "r1", "url": "http://127.0.0.1:9"})
    watched.announce(worker())
    watched.announce()
    assert watched.states() == {"r1": "joining"}


async def test_the_same_announcement_changes_no_connection():
    """Connections stay warm."""
    watched = Watched()
    watched.announce(worker())
    before = watched.fleet.connection("w1")
    watched.announce(worker(), worker("w2"))
    assert watched.fleet.connection("w1") is before


async def test_a_restarted_worker_starts_afresh():
    """Another generation, another URL: it has lost its cache and its connections."""
    watched = Watched()
    watched.announce(worker())
    before = watched.fleet.connection("w1")
    breaker = watched.pool.get("w1").breaker
    watched.announce(worker(url="http://127.0.0.1:10", generation=1, upstream_model="other"))
    after = watched.fleet.connection("w1")
    assert after is not before
    assert after.upstream_model == "other"
    assert after.upstream.port == 10
    assert watched.pool.get("w1").breaker is not breaker
    assert watched.states() == {"w1": "ready"}


async def test_a_worker_that_comes_back_on_its_old_port_is_another_engine_if_it_says_so():
    """What is announced of it is what holds."""
    watched = Watched()
    watched.announce(worker())
    watched.announce(worker(engine="vllm", upstream_model="other", generation=1))
    connection = watched.fleet.connection("w1")
    assert (connection.adapter.kind, connection.upstream_model) == ("vllm", "other")


async def test_an_announcement_does_not_undo_an_operators_drain():
    """Another worker's restart must not send this one work again."""
    watched = Watched()
    watched.announce(worker("w1"))
    assert watched.fleet.drain("w1").state is ReplicaState.DRAINING
    watched.announce(worker("w1"), worker("w2"))
    watched.announce(worker("w1", generation=1), worker("w2"))
    assert watched.states() == {"w1": "draining", "w2": "ready"}


async def test_an_announcement_that_tells_of_drains_is_right_about_them():
    """After a restart of this gateway or of the worker, for configured replicas and until the operator resumes."""
    watched = Watched({"name": "r1", "url": "http://127.0.0.1:9"}, {"name": "r2", "url": "http://127.0.0.1:9"})
    both = [worker("w1"), worker("w2")]
    watched.fleet.announce(Announcement(both, draining=["gone", "r1", "w1"]))
    assert watched.states() == {"r1": "draining", "r2": "joining", "w1": "draining", "w2": "ready"}
    watched.fleet.announce(Announcement([both[1]], draining=["r1", "w1"]))
    watched.fleet.announce(Announcement([worker("w1", generation=1), both[1]], draining=["r1", "w1"]))
    assert watched.states() == {"r1": "draining", "r2": "joining", "w1": "draining", "w2": "ready"}
    watched.fleet.announce(Announcement([worker("w1", generation=1), both[1]], draining=[]))
    assert watched.states() == {"r1": "ready", "r2": "joining", "w1": "ready", "w2": "ready"}


async def test_an_announcement_does_not_bring_back_what_stopped_answering():
    """A worker that hangs is alive for the supervisor; it must answer here first."""
    watched = Watched()
    watched.announce(worker("w1"))
    watched.pool.move("w1", ReplicaState.LOST)
    watched.announce(worker("w1"), worker("w2"))
    assert watched.states() == {"w1": "lost", "w2": "ready"}
    watched.announce(worker("w1", generation=1), worker("w2"))
    assert watched.states() == {"w1": "ready", "w2": "ready"}


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (worker("r1"), "r1"),
        (worker("w2", engine="hal"), "hal"),
        (worker("w2", url="ftp://a"), "ftp"),
        (worker("w2", url="http://a:99999"), "Port"),
    ],
)
async def test_a_bad_announcement_changes_nothing(bad, word):
    """All or nothing."""
    watched = Watched({"name": "r1", "url": "http://127.0.0.1:9"})
    watched.announce(worker("w1"))
    with pytest.raises(ValueError, match=word):
        watched.announce(bad)
    assert watched.states() == {"r1": "joining", "w1": "ready"}
    assert watched.changes == 1


# Operators.


async def test_draining_and_resuming():
    """Unknown names are None; probes do not undo a drain."""
    async with engine_and("r1") as (_, watched):
        await watched.probe()
        assert watched.fleet.drain("none") is None
        assert watched.fleet.resume("none") is None
        assert watched.fleet.drain("r1").state is ReplicaState.DRAINING
        await watched.probe(3)
        assert watched.states() == {"r1": "draining"}
        changes = watched.changes
        assert watched.fleet.resume("r1").state is ReplicaState.READY
        assert watched.changes == changes + 1
        assert watched.fleet.resume("r1").state is ReplicaState.READY
        assert watched.changes == changes + 1


async def test_resuming_a_lost_replica_does_not_make_it_ready():
    """An operator's word does not replace an answer."""
    watched = Watched()
    watched.announce(worker())
    watched.pool.move("w1", ReplicaState.LOST)
    assert watched.fleet.resume("w1").state is ReplicaState.LOST


async def test_a_replica_removed_while_it_is_probed_stays_removed():
    """The answer comes too late."""
    async with ScriptedEngine() as engine:
        watched = Watched()
        watched.announce(worker(url=engine.url))
        engine.health_gate = asyncio.Event()
        probing = asyncio.ensure_future(watched.probe())
        async with asyncio.timeout(5):
            while not engine.probes:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        watched.announce()
        engine.health_gate.set()
        await probing
        assert watched.states() == {}
        watched.fleet.close()


def test_an_engines_key_comes_from_the_environment(monkeypatch):
    """The file holds the variable's name, never the key."""
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    watched = Watched({"name": "r1", "url": "http://127.0.0.1:9", "api_key_env": "ENGINE_KEY"})
    assert watched.fleet.connection("r1").api_key == "sk-secret"
