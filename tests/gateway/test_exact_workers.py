"""Real engines, their real events over ZeroMQ, and the exact index: it equals what the cache holds at random moments."""

import asyncio
import random
import threading
import time

import pytest

from cache_affinity.event_stream import Standing
from cache_affinity.exact import ExactIndex
from cache_affinity.kv_events import TokenChain, pack, salt_digest
from engines.core.sequence import GenerateRequest, SamplingParams
from engines.kv_event_wire import read_batch
from engines.step_cost import StepCost
from engines.worker.kv_event_maps import write_batch
from engines.worker.kv_events import KvEventSettings
from engines.worker.loaded import EngineOptions, load_engine
from policies.lane import Lane
from tests.engines.worker.conftest import demo_model  # noqa: F401  # a fixture
from tests.gateway.test_kv_subscriber import following, until

SALTS = ("", "alder", "birch")
LANES = (Lane.INTERACTIVE, Lane.BULK)


def options(engine, path=None, **changes):
    """A small cache, so that a short run evicts a lot."""
    values = {
        "engine": engine, "path": path, "name": "m", "max_seqs": 4, "kv_tokens": 768, "max_step_tokens": 128,
        "threads": 1, "threads_batch": 1, "fake_cost": StepCost(0.0002), "kv_events": KvEventSettings(max_batches=64),
    }  # fmt: skip
    return EngineOptions(**(values | changes))


class Load:
    """Random requests with shared beginnings at one engine; some are aborted."""

    def __init__(self, loaded, seed):
        self.engine = loaded.engine
        self.chance = random.Random(seed)
        self.vocab_size = min(500, loaded.vocab_size)
        self.heads = [self._tokens(80) for _ in range(4)]
        self.prompts = []
        self.num_ended = 0
        self._lock = threading.Lock()

    def _tokens(self, num):
        return [self.chance.randrange(10, self.vocab_size) for _ in range(num)]

    def submit(self, number):
        prompt = (
            *self.chance.choice(self.heads)[: self.chance.randrange(16, 81)],
            *self._tokens(self.chance.randrange(60)),
        )
        salt, lane = self.chance.choice(SALTS), self.chance.choice(LANES)
        sampling = SamplingParams(temperature=0, max_tokens=self.chance.randrange(1, 20), ignore_eos=True)
        request = GenerateRequest(f"q{number}", prompt, sampling, lane=lane, salt=salt, arrival=time.monotonic())
        refusal = self.engine.submit(request, self._deliver)
        assert refusal is None
        self.prompts.append((prompt, salt))
        if self.chance.random() < 0.15:
            self.engine.abort(request.id)

    def _deliver(self, delta):
        if delta.finish_reason is not None:
            with self._lock:
                self.num_ended += 1


def contents(engine):
    """(names on the device, names in the host's memory) of what the engine says it holds now."""
    index = ExactIndex()
    index.apply("r", read_batch(0, write_batch(0.0, engine.kv_snapshot(), "g")).events)
    return index.names_held("r"), index.names_held("r", is_host=True)


async def agree(index, engine):
    """While the engine pauses, the index comes to hold what it holds."""
    wanted = await asyncio.to_thread(contents, engine)
    try:
        await until(lambda: (index.names_held("r"), index.names_held("r", is_host=True)) == wanted)
    except TimeoutError:
        held = index.names_held("r")
        raise AssertionError(f"stale: {len(held - wanted[0])}, missing: {len(wanted[0] - held)}") from None
    index.check_integrity()
    return wanted


async def follow_a_run(loaded, *, moments, burst, seed):
    """Bursts of requests, with a look at a random moment of each."""
    loaded.start()
    load, number, seen = Load(loaded, seed), 0, frozenset()
    publisher = loaded.kv_events
    try:
        everything_counts = {"host_credit": 1.0}  # or a hit that comes back from the host's memory counts for less
        async with following(publisher.endpoint, publisher.replay_endpoint, **everything_counts) as (subscriber, index):
            for _ in range(moments):
                for _ in range(load.chance.randrange(1, burst)):
                    load.submit(number)
                    number += 1
                await asyncio.sleep(load.chance.random() * 0.05)  # any moment will do: the seed need not find it again
                await asyncio.to_thread(loaded.engine.pause)
                seen |= (await agree(index, loaded.engine))[0]
                loaded.engine.resume()
            for num_before in range(number):  # each in time: how long all of them take is up to the machine
                await until(lambda num_before=num_before: load.num_ended > num_before)
            device, _ = await agree(index, loaded.engine)
            assert device
            assert len(seen - device) > 10, "little was evicted: the run shows little"
            assert subscriber.stream.standing is Standing.COMPLETE
            assert subscriber.stream.counts.num_broken == 0
            for prompt, salt in load.prompts[-5:]:  # what a look-up says is what the engine would hit
                chain = TokenChain(pack(prompt), salt=salt_digest(salt) if salt else "")
                before = loaded.engine.load().prefix_hit_tokens
                said = index.hits(chain).tokens["r"]
                assert said == await _hit(loaded.engine, prompt, salt, before)
                await agree(index, loaded.engine)
    finally:
        await asyncio.to_thread(loaded.close)
    assert loaded.kv_events.counts().num_overflows == 0


async def _hit(engine, prompt, salt, before):
    """Tokens that the engine really takes from its cache for this prompt."""
    ended = threading.Event()
    hit = []

    def deliver(delta):
        if delta.finish_reason is not None:
            hit.append(delta.cached_tokens)
            ended.set()

    request = GenerateRequest("again", prompt, SamplingParams(max_tokens=1, ignore_eos=True), salt=salt)
    assert engine.submit(request, deliver) is None
    assert await asyncio.to_thread(ended.wait, 30)
    return hit[0]


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_index_equals_the_fake_engines_cache_at_random_moments(seed):
    """Evictions, aborts, lanes and salts; the stream keeps few batches, so a slow moment ends in a snapshot."""
    await follow_a_run(load_engine(options("fake")), moments=25, burst=12, seed=seed)


@pytest.mark.model
@pytest.mark.timeout(180)
async def test_the_index_equals_the_gguf_workers_cache_at_random_moments(demo_model):  # noqa: F811
    """The same on llama.cpp's kernels, whose cells are shared by sequence."""
    await follow_a_run(load_engine(options("gguf", demo_model)), moments=6, burst=6, seed=3)
