"""A gateway over real worker processes: receipts say what the engine told, and nothing stale survives a restart."""

import asyncio
import contextlib
import signal

import msgspec
import pytest

from gateway import kv_streams
from gateway.announced import AnnouncedReplica, Announcement
from tests.engines.worker.conftest import demo_model  # noqa: F401  # a fixture
from tests.engines.worker.processes import WorkerProcess

LONG = "the time of people and the world is a thing of many words " * 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Sources are looked for again at once."""
    monkeypatch.setattr(kv_streams, "FIRST_RETRY_S", 0.05)


@pytest.fixture
async def start_worker():
    """A function that starts a worker process on the fake engine, in a thread; all are killed at the end."""
    with contextlib.ExitStack() as stack:

        async def start(*options):
            command = options or ("--engine", "fake", "--fake-base-s", "0.001", "--fake-eos-every", "0")
            worker = WorkerProcess(*command, "--model", "served", "--kv-events")
            await asyncio.to_thread(worker.__enter__)
            stack.callback(worker.__exit__)
            return worker

        yield start


def announced(worker, *, name="w1", generation=1, tokenizer="fake", model="small-a"):
    return AnnouncedReplica(
        name=name, model=model, engine="warmlane", url=worker.url, seats=8, upstream_model="served",
        kv_tokens=16384, generation=generation, tokenizer=tokenizer,
    )  # fmt: skip


async def known(gateway, *names):
    """Wait until the gateway knows what these replicas hold, and the model's vocabulary."""

    def is_known():
        states = [gateway.parts.kv_streams.state_of(name) for name in names]
        return all(state is not None and state.standing == "complete" for state in states)

    await gateway.until(is_known)
    await gateway.until(lambda: gateway.parts.tokens._ready and all(gateway.parts.tokens._ready.values()))


async def receipt(gateway, number=-1):
    """The receipt of a request, by the order of their ends."""
    record = gateway.records[number]
    found = gateway.parts.recorder.find(record.request_id)
    return record, found[1].receipt(record.request_id)


def hit_of(found, name):
    return next(one.hit_tokens for one in found.candidates if one.replica == name)


@pytest.mark.parametrize("surface", ["chat", "completion", "token ids"])
async def test_a_receipt_says_exactly_what_the_engine_then_takes_from_its_cache(launch, start_worker, surface):
    """Exact hits end to end: tokens made here, names from the worker's events, and the worker's own report agree."""
    worker = await start_worker()
    gateway = await launch(engines=0)
    gateway.parts.fleet.announce(Announcement([announced(worker)]))
    await known(gateway, "w1")
    body = {"model": "small-a", "max_tokens": 4}
    path = "/v1/chat/completions" if surface == "chat" else "/v1/completions"
    if surface == "chat":
        body["messages"] = [{"role": "user", "content": LONG}]
    else:
        body["prompt"] = LONG if surface == "completion" else [10 + number % 400 for number in range(150)]
    first = await gateway.post(body, path=path)
    assert first.status == 200, first.body
    await gateway.until(lambda: gateway.parts.kv_streams.state_of("w1").blocks >= 7)
    await gateway.post(body, path=path)
    record, found = await receipt(gateway)
    hit = hit_of(found, "w1")
    assert hit.exact == record.cached_tokens > 64
    assert hit.fused == hit.exact == found.predicted.hit_tokens
    assert record.prompt_tokens > hit.exact


async def test_two_tenants_do_not_see_each_others_blocks(launch, start_worker):
    """P10: the salt is part of every name, on both sides."""
    worker = await start_worker()
    gateway = await launch(engines=0)
    gateway.parts.fleet.announce(Announcement([announced(worker)]))
    await known(gateway, "w1")
    body = {"model": "small-a", "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    await gateway.post(body)
    await gateway.until(lambda: gateway.parts.kv_streams.state_of("w1").blocks >= 7)
    other = await gateway.new_key(await gateway.new_project())
    await gateway.post(body, key=other)
    record, found = await receipt(gateway)
    assert (hit_of(found, "w1").exact, record.cached_tokens) == (0, 0)


async def test_a_worker_killed_and_restarted_leaves_no_stale_hit(launch, start_worker):
    """Its blocks are gone with it, whatever was known; the new process is known by its own events."""
    first = await start_worker()
    gateway = await launch(engines=0)
    gateway.parts.fleet.announce(Announcement([announced(first)]))
    await known(gateway, "w1")
    body = {"model": "small-a", "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    await gateway.post(body)
    await gateway.until(lambda: gateway.parts.kv_streams.state_of("w1").blocks >= 7)
    first.signal(signal.SIGKILL)
    gateway.parts.fleet.announce(Announcement([]))  # as the supervisor does when a child ends
    assert len(gateway.parts.kv_streams.index) == 0
    second = await start_worker()
    gateway.parts.fleet.announce(Announcement([announced(second, generation=2)]))
    assert gateway.parts.kv_streams.index.num_held("w1") == 0
    await known(gateway, "w1")
    await gateway.post(body)
    record, found = await receipt(gateway)
    hit = hit_of(found, "w1")
    assert (hit.exact, hit.shadow, record.cached_tokens) == (0, 0, 0)


async def test_the_replica_that_holds_the_prompt_is_chosen_without_ever_having_been_routed_to(launch, start_worker):
    """What the shadow cannot know: another gateway's traffic, a restart of this one."""
    workers = [await start_worker() for _ in range(2)]
    gateway = await launch(engines=0)
    names = ["w1", "w2"]
    gateway.parts.fleet.announce(
        Announcement([announced(worker, name=name) for worker, name in zip(workers, names, strict=True)])
    )
    await known(gateway, *names)
    body = {"model": "small-a", "max_tokens": 4, "messages": [{"role": "user", "content": LONG}]}
    await gateway.post(body)
    _, found = await receipt(gateway)
    warm = found.chosen
    await gateway.until(lambda: gateway.parts.kv_streams.state_of(warm).blocks >= 7)
    for replica in gateway.parts.router.pool:
        replica.shadow.forget()
    await gateway.post(body)
    record, found = await receipt(gateway)
    hit = hit_of(found, warm)
    assert (found.chosen, hit.shadow, hit.exact) == (warm, 0, record.cached_tokens)
    assert "holds about" in found.reason


async def test_the_admin_plane_shows_the_streams_health(launch, start_worker):
    """`kv_events` of a replica, and the gauges."""
    worker = await start_worker()
    gateway = await launch(engines=0)
    gateway.parts.fleet.announce(Announcement([announced(worker)]))
    await known(gateway, "w1")
    text = gateway.gateway.metrics.text().decode()
    assert 'warmlane_replica_kv_events{replica="w1",standing="complete"} 1.0' in text
    assert 'warmlane_replica_kv_blocks{replica="w1"}' in text
    state = msgspec.json.decode(msgspec.json.encode(gateway.parts.kv_streams.state_of("w1")))
    assert state["standing"] == "complete"
    assert state["endpoint"].startswith("tcp://127.0.0.1:")


@pytest.mark.model
async def test_exact_hits_of_the_demo_model(launch, start_worker, demo_model):  # noqa: F811
    """The vocabulary read here from the model's file gives llama.cpp's tokens, through the chat template."""
    worker = await start_worker("--engine", "gguf", "--path", str(demo_model), "--threads", "1")
    gateway = await launch(engines=0)
    gateway.parts.fleet.announce(Announcement([announced(worker, tokenizer=str(demo_model))]))
    await known(gateway, "w1")
    messages = [{"role": "user", "content": "Wie geht es dir? <|im_end|> 日本語 😀 " * 5}]
    await gateway.post({"model": "small-a", "max_tokens": 4, "messages": messages})
    await gateway.until(lambda: gateway.parts.kv_streams.state_of("w1").blocks >= 5)
    messages += [{"role": "assistant", "content": "Gut."}, {"role": "user", "content": "And now?"}]
    await gateway.post({"model": "small-a", "max_tokens": 4, "messages": messages})
    record, found = await receipt(gateway)
    assert hit_of(found, "w1").exact == record.cached_tokens > 64
    assert found.predicted.hit_tokens == record.cached_tokens
