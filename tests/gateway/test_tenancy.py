"""Who pays, who may, who shares what: tenants as HTTP shows them (cases P10 to P12, P21)."""

import asyncio
import re

import pytest

from tests.gateway.client import COMPLETIONS
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat, completion
from tests.scripted_engine import answer

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


@both_ways
@pytest.mark.parametrize("kind", ["vllm", "warmlane"])
async def test_the_salt_is_the_tenants_whatever_the_caller_writes(launch, kind):
    """P10: two projects have two salts, one project one salt; a caller's own is overwritten in every spelling."""
    gateway = await launch(kind=kind)
    birch = await gateway.new_key(await gateway.new_project())
    alder_again = await gateway.new_key()
    for key, extra in (
        (gateway.key, {}),
        (alder_again, {}),
        (birch, {}),
        (birch, {"cache_salt": "guess"}),
        (birch, {"Cache_Salt": "guess"}),
    ):
        assert (await gateway.post(chat("same prompt", **extra), key=key)).status == 200
    bodies = [request.json for _, request in gateway.engines.requests]
    salts = [body["cache_salt"] for body in bodies]
    assert all(re.fullmatch(r"[0-9a-f]{32}", salt) for salt in salts)
    assert salts[0] == salts[1] != salts[2] == salts[3] == salts[4]
    assert all(b"guess" not in request.body for _, request in gateway.engines.requests)
    tenant = gateway.parts.directory.tenant(gateway.project)
    assert salts[0] == tenant.cache_salt


async def test_two_tenants_share_no_prefix_in_the_routing_index(launch):
    """P10: the same prompt is a hit for who sent it and none for the other."""
    gateway = await launch()
    birch = await gateway.new_key(await gateway.new_project())
    long = "word " * 2000
    for key in (gateway.key, birch, gateway.key):
        await gateway.post(chat(long), key=key)
    hits = [record.predicted_hit_tokens for record in gateway.records]
    assert hits[0] == hits[1] == 0
    assert hits[2] > 1000


@both_ways
async def test_nothing_but_the_key_says_who_pays(launch):
    """P11: headers, duplicates, odd spellings and metadata move no limit and reach no engine."""
    gateway = await launch()
    birch_project = await gateway.new_project('{"rpm": 2}')
    birch = await gateway.new_key(birch_project)
    names = [
        "x-tenant-id",
        "X-Tenant-Id",
        "x_tenant_id",
        "x-user-id",
        "x-organization",
        "x-project",
        "x-warmlane-tenant",
    ]
    headers = [(name, gateway.project) for name in names for _ in range(2)]
    body = chat(user=gateway.project, metadata={"tenant": gateway.project, "project": gateway.project})
    for remaining in ("1", "0"):
        got = await gateway.post(body, key=birch, headers=headers)
        assert (got.status, got.header("x-ratelimit-remaining-requests")) == (200, remaining)
    assert (await gateway.post(body, key=birch, headers=headers)).status == 429
    assert {record.project for record in gateway.records} == {birch_project}
    sent = await gateway.received()
    assert not [name for name, _ in sent.headers if "tenant" in name or "user" in name or "project" in name]


@both_ways
async def test_a_revoked_key_is_refused_at_once_and_its_open_stream_ends_as_it_would(launch):
    """P12: with the nudge the next request is refused; an open stream was admitted and goes on."""
    gateway = await launch()
    [key] = (await gateway.store.keys()).items
    gate = asyncio.Event()
    gateway.script(answer("a", "b", gates={2: gate}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    await gateway.store.revoke_key(key.id)
    await gateway.parts.directory.refresh()
    got = await gateway.post(chat())
    assert (got.status, got.code) == (401, "invalid_api_key")
    gate.set()
    assert (await client.answer()).text == "ab"


async def test_a_revocation_whose_nudge_is_lost_holds_within_the_poll(launch):
    """P12: the directory follows the store by itself."""
    gateway = await launch()
    [key] = (await gateway.store.keys()).items
    await gateway.store.revoke_key(key.id)
    client = await gateway.connect()
    async with asyncio.timeout(5):
        while True:
            client.send(None, path="/v1/models", method="GET", key=gateway.key)
            if (await client.answer()).status == 401:
                break


async def test_a_rotated_key_works_with_its_new_secret_alone(launch):
    """P12: without an overlap the old secret ends with the rotation."""
    gateway = await launch()
    [key] = (await gateway.store.keys()).items
    _, secret = await gateway.store.rotate_key(key.id)
    await gateway.parts.directory.refresh()
    assert (await gateway.post(chat())).status == 401
    assert (await gateway.post(chat(), key=secret.text)).status == 200


@both_ways
async def test_an_alias_is_resolved_before_anything_looks_at_the_name(launch):
    """P21: limits, permission, upstream body and record use the real name; the answer is the engine's."""
    gateway = await launch(models=[{"name": MODEL, "aliases": ["fast", "cheap"]}])
    for limits in ('{"models": ["small-a"]}', '{"models": ["fast"]}'):
        await gateway.limit(gateway.project, limits)
        for path, body in ((None, chat()), (COMPLETIONS, completion())):
            got = await gateway.post(body | {"model": "fast"}, **({"path": path} if path else {}))
            assert got.status == 200
    assert {request.json["model"] for _, request in gateway.engines.requests} == {UPSTREAM_MODEL}
    assert {(record.model, record.requested_model) for record in gateway.records} == {(MODEL, "fast")}
    await gateway.limit(gateway.project, '{"models": ["other"]}')
    got = await gateway.post(chat() | {"model": "fast"})
    assert (got.status, got.code) == (403, "model_not_allowed")
    assert gateway.records[-1].outcome == "forbidden"


async def test_an_alias_and_its_model_share_one_cache(launch):
    """P21: the prefix is keyed by the real name."""
    gateway = await launch(models=[{"name": MODEL, "aliases": ["fast"]}])
    long = "word " * 1000
    for name in (MODEL, "fast"):
        await gateway.post(chat(long) | {"model": name})
    assert gateway.records[1].predicted_hit_tokens > 500
