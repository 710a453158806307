"""Which replicas are followed: those that serve, each in its present life, and what is shown of it."""

import asyncio
import contextlib
import time

import msgspec
import pytest

from cache_affinity.exact import ExactIndex
from engines.upstream import Upstream
from gateway import kv_streams as module
from gateway.kv_streams import KvReplica, KvState, KvStreams
from tests.engines.worker.kv_reader import Cache
from tests.gateway.test_kv_subscriber import agree, held, publishing, until


class Watched:
    """Streams over replicas that a test lists by hand. Their source comes from the configuration."""

    def __init__(self):
        self.replicas = []
        self.index = ExactIndex()
        self.streams = KvStreams(self.index, lambda: self.replicas, time.monotonic)

    def serve(self, *replicas):
        self.replicas = list(replicas)
        self.streams.changed()


@pytest.fixture
async def watched():
    made = Watched()
    task = asyncio.create_task(made.streams.run())
    yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(made.index) == 0
    assert made.streams.state_of("r") is None


class Asked:
    """A replica's HTTP side: answers of `/kv_event_sources`, one after the other, the last for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def fetch(self, method, path, headers, timeout_s):
        self.asked.append((method, path, headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def replica(kv_events, name="r", life=("http://127.0.0.1:1", 1), probing=None, engine="vllm"):
    probing = probing or Upstream.from_url("http://127.0.0.1:1")
    return KvReplica(name, engine, life[0], life, kv_events, probing, [(b"authorization", b"Bearer k")])


def at(publisher):
    return f"{publisher.endpoint},{publisher.replay_endpoint}"


async def test_a_replica_that_serves_is_followed_and_shown(watched):
    """Standing, blocks and counts, as the admin plane shows them."""
    cache = Cache()
    with publishing(cache) as publisher:
        watched.serve(replica(at(publisher)))
        cache.store(1, 2, 3)
        await agree(watched.index, cache)
        await until(lambda: watched.streams.state_of("r").standing == "complete")
        state = watched.streams.state_of("r")
        assert (state.blocks, state.problem, state.endpoint) == (3, None, publisher.endpoint)
        gauges = {(name, labels.get("standing")): value for name, labels, value in watched.streams.gauges("r")}
        assert gauges["warmlane_replica_kv_blocks", None] == 3
        assert gauges["warmlane_replica_kv_events", "complete"] == 1
        assert "r" in repr(watched.streams)


async def test_a_replica_without_events_is_not_followed(watched):
    """Nothing is expected of it, so nothing is shown."""
    watched.serve(replica("off"), replica("", name="plain"))
    assert watched.streams.state_of("r") is None
    assert watched.streams.state_of("plain") is None
    assert list(watched.streams.gauges("r")) == []


@pytest.mark.parametrize("gone", ["lost", "restarted"])
async def test_what_is_known_of_a_lost_or_restarted_replica_is_forgotten_at_once(watched, gone):
    """In the same call that learns of it: no decision in between sees a stale block."""
    cache = Cache()
    with publishing(cache) as publisher:
        watched.serve(replica(at(publisher)))
        cache.store(1, 2, 3)
        await agree(watched.index, cache)
        watched.serve(*([] if gone == "lost" else [replica(at(publisher), life=("http://127.0.0.1:1", 2))]))
        assert not held(watched.index)
        watched.serve(replica(at(publisher), life=("http://127.0.0.1:1", 2)))
        await agree(watched.index, cache)


async def test_the_same_life_is_not_disturbed(watched):
    """A change of another replica is none of this one's business."""
    cache = Cache()
    with publishing(cache) as publisher:
        watched.serve(replica(at(publisher)))
        cache.store(1)
        await agree(watched.index, cache)
        watched.serve(replica(at(publisher)), replica("off", name="other"))
        assert len(held(watched.index)) == 1


class Answer(msgspec.Struct):
    """As `Upstream.fetch` gives it."""

    status: int
    body: bytes


async def test_our_own_worker_is_asked_until_it_says(watched, monkeypatch):
    """It may be of another version, or restarting; what stood in the way is shown meanwhile."""
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.01)
    cache = Cache()
    with publishing(cache) as publisher:
        sources = [{"endpoint": publisher.endpoint, "replay_endpoint": publisher.replay_endpoint, "topic": "kv-events"}]
        asked = Asked(Answer(404, b""), Answer(200, b"[]"), Answer(200, msgspec.json.encode(sources)))
        watched.serve(replica("", probing=asked, engine="warmlane"))
        await until(lambda: (state := watched.streams.state_of("r")) is not None and state.problem is not None)
        assert watched.streams.state_of("r").standing == "unknown"
        cache.store(5)
        await agree(watched.index, cache)
    assert asked.asked == [("GET", "/kv_event_sources", [(b"authorization", b"Bearer k")])] * 3


async def test_a_source_that_cannot_be_used_is_a_problem_that_is_shown(watched, monkeypatch):
    """And tried again."""
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.01)
    watched.serve(replica("ipc:///nowhere/" + "x" * 150))
    await until(lambda: (state := watched.streams.state_of("r")) is not None and state.problem is not None)
    assert watched.streams.state_of("r").blocks == 0


async def test_before_it_runs_nothing_is_followed():
    """The fleet is announced before the process serves."""
    made = Watched()
    made.serve(replica("tcp://127.0.0.1:1"))
    assert made.streams.state_of("r") is None


def test_a_state_is_one_json_object():
    """For `/admin/v1/replicas`."""
    assert msgspec.json.decode(msgspec.json.encode(KvState("unknown", 0)))["standing"] == "unknown"
