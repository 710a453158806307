"""Host memory as clients and operators of a worker see it: cached tokens come back, and it is told where from."""

import asyncio

import httpx

from engines.step_cost import StepCost
from engines.worker.app import build_app
from engines.worker.step_log import read_step_log
from tests.engines.worker.scripted import eventually

TINY = {"max_seqs": 2, "kv_tokens": 512, "max_step_tokens": 128, "host_kv_mb": 2, "fake_cost": StepCost()}


def client_of(service):
    return httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://worker")


async def complete(client, prompt, salt="a"):
    body = {"model": "fake", "prompt": prompt, "max_tokens": 4, "temperature": 0, "cache_salt": salt}
    answer = (await client.post("/v1/completions", json=body)).raise_for_status().json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == 0 or cached > usage["prompt_tokens"] - 32, "all whole blocks but the last, or nothing"
    return answer["choices"][0]["text"], cached


def words(number):
    """A prompt of some 100 tokens that shares no block with another number's."""
    return f"{number} " + f"word{number} " * 50


async def test_what_was_evicted_comes_back_from_host_memory(make_service, tmp_path):
    """Cached tokens count it, /load and metrics tell the medium, the step log the copies; another salt gets nothing."""
    service = make_service(**TINY, checks_when_idle=True, step_log=tmp_path / "steps")
    async with client_of(service) as client:
        first, cached = await complete(client, words(1))
        assert cached == 0
        for number in range(2, 6):
            await complete(client, words(number))
        await eventually(lambda: service.loaded.engine.load().running == 0)
        again, cached = await complete(client, words(1))
        assert again == first
        assert cached > 0
        assert (await complete(client, words(1), salt="b"))[1] == 0
        await eventually(lambda: service.loaded.engine.load().running == 0)
        load = (await client.get("/load")).json()
        text = (await client.get("/metrics")).text
    host = load["host_kv"]
    assert host["max_bytes"] == 2 << 20
    assert 0 < host["bytes"] <= host["max_bytes"]
    assert host["saved_tokens"] >= host["restored_tokens"] >= cached
    assert load["faults"] == 0
    assert (
        f'warmlane:prefix_cache_hits_by_medium_total{{engine="0",medium="host",model_name="fake"}} {float(cached)}'
        in text
    )
    assert (
        f'warmlane:host_kv_restored_tokens_total{{engine="0",model_name="fake"}} {float(host["restored_tokens"])}'
        in text
    )
    assert "warmlane:host_kv_bytes" in text
    await asyncio.to_thread(service.loaded.close)
    steps = read_step_log(tmp_path / "steps")
    assert sum(step.memory.get("restore", 0) for step in steps) >= 1
    assert sum(step.restored_tokens for step in steps) == host["restored_tokens"]
    assert sum(step.saved_tokens for step in steps) >= host["saved_tokens"]


async def test_without_host_memory_the_same_prompt_is_computed_again(make_service):
    """The fake engine's default."""
    service = make_service(**TINY | {"host_kv_mb": None})
    async with client_of(service) as client:
        for number in (1, 2, 3, 4, 5, 1):
            _, cached = await complete(client, words(number))
        load = (await client.get("/load")).json()
    assert cached == 0
    assert load["host_kv"] == dict.fromkeys(load["host_kv"], 0)
