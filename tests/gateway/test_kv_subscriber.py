"""The subscriber against a real publisher over real sockets: what the index holds is what the cache holds."""

import asyncio
import contextlib
import random
import time

import pytest
import zmq
import zmq.asyncio

from cache_affinity import event_stream
from cache_affinity.event_stream import Standing
from cache_affinity.exact import ExactIndex
from cache_affinity.kv_events import fold
from engines.kv_event_wire import END_SEQUENCE, write_sequence
from engines.worker.kv_events import KvEventPublisher, KvEventSettings
from gateway import kv_subscriber
from gateway.kv_sources import KvSource
from gateway.kv_subscriber import KvSubscriber
from tests.engines.worker.kv_reader import Cache, block, name
from tests.scripted_engine import PATIENCE_S

FLOOD = 800  # batches that come while the loop is blocked


@pytest.fixture(autouse=True)
def looked_into_at_once(monkeypatch):
    """A silence is looked into at once; an answer that is slow, on a busy machine, is never taken for none."""
    monkeypatch.setattr(event_stream, "AUDIT_S", 0.05)
    monkeypatch.setattr(event_stream, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(kv_subscriber, "TICK_S", 0.02)


@pytest.fixture
def impatient(monkeypatch):
    """An answer that does not come is soon missed."""
    monkeypatch.setattr(event_stream, "ANSWER_S", 0.3)


@contextlib.contextmanager
def publishing(cache, generation="life-1", **settings):
    """A publisher of this cache."""
    publisher = cache.publisher = KvEventPublisher(KvEventSettings(**settings), cache.snapshot, generation)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.stop()


@contextlib.asynccontextmanager
async def following(endpoint, replay, topic="kv-events", **settings):
    """A subscriber of replica `r`, running, and its index with these settings."""
    index = ExactIndex(**settings)
    subscriber = KvSubscriber("r", KvSource(endpoint, replay, topic), index, time.monotonic)
    context = zmq.asyncio.Context()
    task = asyncio.create_task(subscriber.run(context))
    try:
        yield subscriber, index
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        context.destroy(linger=0)
        assert len(index) == 0, "what is known of a replica nobody follows is forgotten"


async def until(claim):
    """Wait until `claim()` is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def held(index):
    """Engine hashes that the index has of the replica."""
    holding = index._holdings.get("r")
    return set() if holding is None else set(holding.device)


def folded(cache):
    return {fold(name(number)) for number in cache.held}


async def agree(index, cache):
    wanted = folded(cache)
    await until(lambda: held(index) == wanted)
    index.check_integrity()


async def test_the_index_equals_the_cache_whenever_it_is_quiet():
    """Stores and evictions in bursts, looked at in between."""
    cache, chance = Cache(), random.Random(7)
    with publishing(cache) as publisher:
        cache.store(1, 2, 3)
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            for _ in range(20):
                for _ in range(chance.randrange(1, 40)):
                    if cache.held and chance.random() < 0.5:
                        cache.remove(chance.choice(list(cache.held)))
                    else:
                        cache.store(chance.randrange(200))
                await agree(index, cache)
            assert subscriber.stream.standing is Standing.COMPLETE
            assert subscriber.stream.counts.num_clears == 0


async def test_joining_late_an_engine_that_keeps_little_gets_a_snapshot():
    """A gateway that starts beside a worker that has run for days."""
    cache = Cache()
    with publishing(cache, max_batches=3) as publisher:
        for number in range(500):
            cache.store(number)
        await until(lambda: publisher.counts().num_blocks == 500)
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            await agree(index, cache)
            assert subscriber.stream.standing is Standing.COMPLETE


class Lossy:
    """A publisher's stream socket that loses messages on the way while `is_losing`."""

    def __init__(self, real):
        self.real = real
        self.is_losing = False
        self.num_lost = 0

    def send_multipart(self, frames):
        if self.is_losing:
            self.num_lost += 1
        else:
            self.real.send_multipart(frames)

    def __getattr__(self, name):
        return getattr(self.real, name)


@pytest.mark.parametrize(("max_batches", "num_lost"), [(10_000, 5), (2, 50)])
async def test_an_injected_gap_is_closed(max_batches, num_lost):
    """By the batches again, or where those are gone by a snapshot."""
    cache = Cache()
    with publishing(cache, max_batches=max_batches) as publisher:
        lossy = publisher._stream = Lossy(publisher._stream)
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            cache.store(1, 2, 3)
            await agree(index, cache)
            lossy.is_losing = True
            cache.remove(2)
            while lossy.num_lost < num_lost:
                cache.store(100 + lossy.num_lost)
                await asyncio.sleep(0)
            lossy.is_losing = False
            cache.store(10)
            await agree(index, cache)
            assert subscriber.stream.standing is Standing.COMPLETE
            assert subscriber.stream.counts.num_clears == 0


async def test_a_lost_last_batch_is_found_in_silence():
    """Nothing follows that would show a gap."""
    cache = Cache()
    with publishing(cache) as publisher:
        lossy = publisher._stream = Lossy(publisher._stream)
        async with following(publisher.endpoint, publisher.replay_endpoint) as (_, index):
            cache.store(1, 2, 3)
            await agree(index, cache)
            lossy.is_losing = True
            cache.remove(1, 2)
            await agree(index, cache)
            assert lossy.num_lost == 1


async def test_an_engine_restarted_at_the_same_address_leaves_no_stale_block():
    """The sockets reconnect by themselves; the generation tells."""
    first, second = Cache(), Cache()
    with publishing(first) as publisher:
        endpoint, replay = publisher.endpoint, publisher.replay_endpoint
        async with following(endpoint, replay) as (subscriber, index):
            first.store(1, 2, 3)
            await agree(index, first)
            publisher.stop()
            with publishing(second, "life-2", endpoint=endpoint, replay_endpoint=replay):
                second.store(9)
                await agree(index, second)
                assert (subscriber.stream.standing, subscriber.stream.generation) == (Standing.COMPLETE, "life-2")


async def test_a_killed_engine_is_forgotten(impatient):
    """It answers nobody, so nothing of it may be believed."""
    cache = Cache()
    with publishing(cache) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            cache.store(1, 2, 3)
            await agree(index, cache)
            publisher.stop()
            await until(lambda: not held(index))
            assert subscriber.stream.standing is Standing.UNKNOWN


def flood(cache, publisher, num_batches, *others):
    """Batches without a pause, `others` in each: the loop is blocked meanwhile."""
    for number in range(num_batches):
        cache.store(number, *others)
        while publisher._queue:
            time.sleep(0)


async def test_a_subscriber_that_was_busy_catches_up(monkeypatch):
    """Its loop was blocked while more came than any buffer holds."""
    monkeypatch.setattr(kv_subscriber, "MAX_UNREAD", 10)
    cache = Cache()
    with publishing(cache, max_unsent=10, max_batches=50) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            cache.store(0)
            await agree(index, cache)
            sent = publisher.counts().num_blocks
            flood(cache, publisher, 2000, *range(10_000, 10_050))  # more than any buffer holds
            assert publisher.counts().num_blocks > sent
            await agree(index, cache)
            assert subscriber.stream.counts.num_batches < publisher.counts().next_sequence, "some were lost"


async def test_a_flood_leaves_the_loop_to_others():
    """Messages that have come are taken in small turns."""
    cache = Cache()
    with publishing(cache) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as (_, index):
            await until(lambda: index._zeros)
            flood(cache, publisher, FLOOD)
            num_turns, wanted = 0, folded(cache)
            while held(index) != wanted:
                await asyncio.sleep(0)
                num_turns += 1
            assert num_turns > FLOOD // kv_subscriber._TURN // 2


class RawEngine:
    """Sockets on which a test says what it likes. It answers every asking with nothing but the end."""

    def __init__(self):
        self.context = zmq.asyncio.Context()
        self.stream = self.context.socket(zmq.PUB)
        self.replay = self.context.socket(zmq.ROUTER)
        self.ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (self.stream, self.replay)]
        self.asked = []
        self.ends = (b"", write_sequence(END_SEQUENCE), b"")
        self.task = asyncio.create_task(self._answer())

    async def _answer(self):
        while True:
            reader, *frames = await self.replay.recv_multipart()
            self.asked.append(int.from_bytes(frames[-1], "big"))
            await self.replay.send_multipart((reader, *self.ends))

    @property
    def endpoint(self):
        return f"tcp://127.0.0.1:{self.ports[0]}"

    @property
    def replay_endpoint(self):
        return f"tcp://127.0.0.1:{self.ports[1]}"

    async def send(self, *frames):
        await self.stream.send_multipart(frames)

    async def close(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.stream.close(linger=0)
        self.replay.close(linger=0)
        self.context.destroy(linger=0)


@pytest.fixture
async def raw():
    engine = RawEngine()
    yield engine
    await engine.close()


def stored(number):
    from engines.worker.kv_event_maps import write_batch

    return write_batch(0.0, [block(number)], "life-1")


async def subscribed(raw, subscriber):
    """Wait until the stream's messages come through."""
    before = subscriber.num_refused
    while subscriber.num_refused == before:
        await raw.send(b"t", b"not a number", b"")
        await asyncio.sleep(0.01)


async def test_nonsense_on_the_stream_does_no_harm(raw):
    """Frames missing, numbers too short, payloads that are none: refused, counted, and the stream goes on."""
    async with following(raw.endpoint, raw.replay_endpoint, topic="") as (subscriber, index):
        await subscribed(raw, subscriber)
        await until(lambda: subscriber.stream.standing is Standing.COMPLETE)
        await raw.send(b"t", write_sequence(0), stored(1))
        await until(lambda: held(index) == {1})
        await raw.send(b"only one frame")
        await raw.send(b"t", b"short", stored(2))
        await raw.send(b"a", b"t", write_sequence(1), stored(3))
        await raw.send(b"t", write_sequence(1), b"\xc1 no msgpack")
        await until(lambda: subscriber.stream.counts.num_broken == 1)
        assert (held(index), subscriber.stream.standing) == (set(), Standing.PARTIAL)
        await raw.send(b"t", write_sequence(2), stored(4))
        await until(lambda: held(index) == {4})


async def test_nonsense_in_an_answer_does_no_harm(raw, impatient):
    """A broken batch clears; frames that are no batch are passed over."""
    raw.ends = (b"", b"x", b"short", b"")
    async with following(raw.endpoint, raw.replay_endpoint, topic="") as (subscriber, index):
        await until(lambda: len(raw.asked) > 2)
        assert subscriber.stream.standing is Standing.UNKNOWN
        raw.ends = (b"", write_sequence(0), b"\xc1")
        await until(lambda: subscriber.stream.counts.num_broken)
        assert len(index) == 0


async def test_vllms_answer_without_topics_and_generation_is_understood(raw):
    """Its end is empty, and older ones leave the topic out."""
    async with following(raw.endpoint, raw.replay_endpoint, topic="") as (subscriber, _):
        await until(lambda: subscriber.stream.standing is Standing.COMPLETE)
        assert raw.asked[0] == 0


async def test_without_a_replay_address_it_follows_what_comes(raw):
    """Partly known: what is held is true."""
    async with following(raw.endpoint, None, topic="t") as (subscriber, index):
        sequence = 5
        while not held(index):
            await raw.send(b"t", write_sequence(sequence), stored(sequence))
            sequence += 1
            await asyncio.sleep(0.01)
        assert subscriber.stream.standing is Standing.PARTIAL
        assert raw.asked == []
        assert "partial" in repr(subscriber)


async def test_an_address_that_cannot_be_connected_to_is_an_error():
    """Told to whoever runs it, once, as what it is."""
    subscriber = KvSubscriber("r", KvSource("tcp://127.0.0.1:1", "nonsense://x"), ExactIndex(), time.monotonic)
    context = zmq.asyncio.Context()
    try:
        with pytest.raises(zmq.ZMQError):
            await subscriber.run(context)
    finally:
        context.destroy(linger=0)


async def test_a_full_index_is_told_once(monkeypatch):
    """The operator may give it more room; what was dropped only makes replicas look colder."""
    told = []
    cache = Cache()
    with publishing(cache) as publisher:
        async with following(publisher.endpoint, publisher.replay_endpoint) as (subscriber, index):
            monkeypatch.setattr(kv_subscriber.logs, "get", lambda: Log(told))
            index.max_blocks = 8
            for number in range(30):
                cache.store(number)
            await until(lambda: index.num_dropped >= 22)
            assert len(index) == 8
            assert subscriber.stream.standing is Standing.COMPLETE
            assert index._partial == {"r"}
    assert told.count("kv_index.full") == 1


class Log:
    """Keeps the names of what is logged."""

    def __init__(self, told):
        self.told = told

    def info(self, event, **_):
        self.told.append(event)

    warning = debug = info


async def test_one_that_was_left_touches_nothing_of_its_successors(raw):
    """Its task ends some turns later; what it still hears belongs to nobody."""
    async with following(raw.endpoint, raw.replay_endpoint, topic="") as (old, index):
        await subscribed(raw, old)
        await until(lambda: old.stream.standing is Standing.COMPLETE)
        old.leave()
        index.mark("r", is_known=True)
        heard = old.stream.counts.num_batches
        await raw.send(b"t", write_sequence(0), stored(1))
        await until(lambda: old.stream.counts.num_batches > heard)
        assert held(index) == set()
        assert index.is_known_of_any
        index.forget("r")
