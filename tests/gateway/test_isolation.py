"""Engines without a cache salt: one tenant each, or a cache that the operator agrees to share (case P10)."""

import asyncio
import json

import httpx
import pytest

from engines.hardware import detect
from gateway.doctor import Health, Patient, check_config
from gateway.home import Home
from gateway.isolation import NotReleasable, separation_notes
from gateway.settings import ConfigError, ReplicaSection, load
from policies.cache_claims import MemoryCacheClaims
from policies.store import StoreError
from tests.gateway.kit import chat
from tests.scripted_engine import answer

UNSALTED = pytest.mark.parametrize("kind", ["llama-server", "openai"])


class FailingClaims(MemoryCacheClaims):
    """Claims that cannot be reached while `is_away`."""

    is_away = True

    async def claim(self, url, domain):
        if self.is_away:
            raise StoreError("away")
        return await super().claim(url, domain)

    async def owners(self):
        if self.is_away:
            raise StoreError("away")
        return await super().owners()


@pytest.fixture
def claims(monkeypatch):
    """What all gateways of a test share; set `claims.one` before the launch for another kind."""

    class Shared:
        one = MemoryCacheClaims()

    monkeypatch.setattr("gateway.app.MemoryCacheClaims", lambda: Shared.one)
    return Shared


async def shown(gateway):
    """(separation, owner) of each replica as the admin plane shows it."""
    state_of = gateway.parts.isolation.state_of
    return {one.name: tuple(state_of(one.spec).values()) for one in gateway.parts.router.pool}


@UNSALTED
async def test_the_first_tenant_has_the_engine_alone(launch, kind):
    """P10: without a salt a second tenant would be told by the response time what the first one asked."""
    gateway = await launch(kind=kind)
    birch = await gateway.new_key(await gateway.new_project())
    assert await shown(gateway) == {"r1": ("owner", None)}
    assert (await gateway.post(chat())).status == 200
    got = await gateway.post(chat(), key=birch)
    assert (got.status, got.code) == (503, "no_replica_not_allowed")
    assert got.header("retry-after") is None
    assert (await gateway.post(chat())).status == 200
    assert len(gateway.engines.requests) == 2
    assert await shown(gateway) == {"r1": ("owner", gateway.project)}


def owned(gateway, owner):
    """How many engines belong to the owner."""
    owners = gateway.parts.isolation.owners
    return [owners.owner(one.spec.url) for one in gateway.parts.router.pool].count(owner)


async def test_a_tenant_takes_one_engine_more_when_all_it_has_are_busy(launch):
    """One after the other needs one; what runs at the same time is spread, as it is where there is a salt."""
    gateway = await launch(kind="llama-server", engines=3, seats=8)
    for number in range(4):
        assert (await gateway.post(chat(f"prompt {number}"))).status == 200
    assert owned(gateway, gateway.project) == 1
    gate = asyncio.Event()
    gateway.script(*[answer("a", gates={0: gate})] * 2)
    clients = [await gateway.start(chat(f"prompt {number}")) for number in range(2)]
    await gateway.received(6)
    assert owned(gateway, gateway.project) == 2
    gate.set()
    assert {(await client.answer()).status for client in clients} == {200}


async def test_a_burst_takes_no_more_engines_than_it_has_requests(launch):
    """Many requests that arrive before the first claim is answered must not claim an engine each and more."""
    gateway = await launch(kind="llama-server", engines=4, seats=8)
    answers = await asyncio.gather(*(gateway.post(chat(f"prompt {number}")) for number in range(2)))
    assert {one.status for one in answers} == {200}
    assert 1 <= owned(gateway, gateway.project) <= 2


async def test_no_tenant_grows_into_what_another_waits_for(launch):
    """Who was refused for want of an engine gets the next one that comes free, whoever is busier."""
    gateway = await launch(kind="llama-server", engines=2, seats=8)
    birch_project = await gateway.new_project()
    birch = await gateway.new_key(birch_project)
    gate = asyncio.Event()
    gateway.script(*[answer("a", gates={0: gate})] * 2)
    clients = [await gateway.start(chat(f"prompt {number}")) for number in range(2)]
    await gateway.received(2)
    assert owned(gateway, gateway.project) == 2
    assert (await gateway.post(chat(), key=birch)).code == "no_replica_not_allowed"
    gate.set()
    for client in clients:
        await client.answer()
    await gateway.until_quiet()
    gateway.parts.fleet.drain("r2")
    await gateway.parts.isolation.release(gateway.parts.router.pool.get("r2"))
    gateway.parts.fleet.resume("r2")
    gate = asyncio.Event()
    gateway.script(*[answer("a", gates={0: gate})] * 3)
    clients = [await gateway.start(chat(f"prompt {number}")) for number in range(3)]
    await gateway.received(5)
    assert owned(gateway, gateway.project) == 1
    gate.set()
    for client in clients:
        await client.answer()
    assert (await gateway.post(chat(), key=birch)).status == 200
    assert owned(gateway, birch_project) == 1


async def test_tenants_of_two_engines_never_meet(launch):
    """Each has its own, also at the same time, and whatever they send."""
    gateway = await launch(kind="llama-server", engines=2, seats=1)
    birch = await gateway.new_key(await gateway.new_project())
    for key in (gateway.key, birch):
        assert (await gateway.post(chat("same"), key=key)).status == 200
    bodies = [(key, chat(f"{key[-4:]} {number}")) for number in range(6) for key in (gateway.key, birch)]
    answers = await asyncio.gather(*(gateway.post(body, key=key) for key, body in bodies))
    assert {one.status for one in answers} == {200}
    seen = {}
    for index, request in gateway.engines.requests[2:]:
        seen.setdefault(request.json["messages"][0]["content"][:4], set()).add(index)
    assert sorted(map(len, seen.values())) == [1, 1]
    assert not set.intersection(*seen.values())


async def test_those_who_wait_for_an_engine_are_bounded(launch, monkeypatch):
    """The oldest is forgotten: it is noted again when it asks again."""
    monkeypatch.setattr("gateway.isolation.MAX_HOMELESS", 2)
    gateway = await launch(kind="llama-server")
    assert (await gateway.post(chat())).status == 200
    for _ in range(4):
        key = await gateway.new_key(await gateway.new_project())
        assert (await gateway.post(chat(), key=key)).status == 503
    assert len(gateway.parts.isolation._homeless) == 2


@UNSALTED
async def test_an_accepted_cache_is_open_to_all(launch, kind):
    """The operator's word: then nothing is claimed either."""
    gateway = await launch(kind=kind, replica={"shared_cache": "accept"})
    birch = await gateway.new_key(await gateway.new_project())
    assert {(await gateway.post(chat(), key=key)).status for key in (gateway.key, birch)} == {200}
    assert await shown(gateway) == {"r1": ("none", None)}


@pytest.mark.parametrize("kind", ["vllm", "warmlane"])
async def test_an_engine_with_a_salt_has_no_owner(launch, kind, claims):
    """It separates tenants by itself; the claims are not even asked."""
    claims.one = FailingClaims()
    gateway = await launch(kind=kind)
    birch = await gateway.new_key(await gateway.new_project())
    assert {(await gateway.post(chat(), key=key)).status for key in (gateway.key, birch)} == {200}
    assert await shown(gateway) == {"r1": ("salt", None)}


async def test_a_tenant_finds_its_engine_again_after_a_restart_and_at_another_gateway(launch, claims):
    """The cache outlives the gateway: one that knows nothing must not give it to whoever comes first."""
    first = await launch(kind="llama-server")
    assert (await first.post(chat())).status == 200
    [(url, owner)] = (await claims.one.owners()).items()
    assert owner == first.project
    other = await launch(kind="llama-server", replica={"url": url})
    got = await other.post(chat())  # its own project is another
    assert (got.status, got.code) == (503, "no_replica_not_allowed")
    assert len(first.engines.requests) == 1


async def test_without_the_claims_nobody_new_is_let_in_and_who_is_in_goes_on(launch, claims):
    """Fail closed, but only for what is not known yet."""
    claims.one = FailingClaims()
    gateway = await launch(kind="llama-server")
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (503, "isolation_unavailable", "1")
    claims.one.is_away = False
    assert (await gateway.post(chat())).status == 200
    claims.one.is_away = True
    with pytest.raises(StoreError):
        await gateway.parts.isolation.refresh()
    assert (await gateway.post(chat())).status == 200


async def test_a_full_engine_makes_its_tenant_wait_when_the_claims_are_away(launch, claims):
    """Growing is a wish; it must not become an error."""
    claims.one = FailingClaims()
    claims.one.is_away = False
    gateway = await launch(kind="llama-server", engines=2, seats=1)
    assert (await gateway.post(chat())).status == 200
    claims.one.is_away = True
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}))
    holding = await gateway.start(chat("one"))
    await gateway.received(2)
    waiting = await gateway.start(chat("two"))
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    gate.set()
    assert {(await client.answer()).status for client in (holding, waiting)} == {200}


async def test_an_engine_changes_hands_only_when_it_is_drained_and_said_to_be_clear(launch):
    """Time clears no cache: the operator restarts the engine and says so."""
    gateway = await launch(kind="llama-server")
    birch = await gateway.new_key(await gateway.new_project())
    assert (await gateway.post(chat())).status == 200
    isolation, fleet = gateway.parts.isolation, gateway.parts.fleet
    replica = gateway.parts.router.pool.get("r1")
    with pytest.raises(NotReleasable, match="drain it"):
        await isolation.release(replica)
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}))
    client = await gateway.start(chat())
    await gateway.received(2)
    fleet.drain("r1")
    with pytest.raises(NotReleasable, match="in flight"):
        await isolation.release(replica)
    gate.set()
    await client.answer()
    await gateway.until_quiet()
    await isolation.release(replica)
    fleet.resume("r1")
    assert (await gateway.post(chat(), key=birch)).status == 200
    assert (await gateway.post(chat())).status == 503


async def test_a_release_elsewhere_is_noticed(launch, claims):
    """Another machine's gateways follow the claims."""
    gateway = await launch(kind="llama-server")
    assert (await gateway.post(chat())).status == 200
    [url] = await claims.one.owners()
    await claims.one.release(url)
    await claims.one.claim(url, "proj_other")
    await gateway.parts.isolation.refresh()
    assert (await gateway.post(chat())).code == "no_replica_not_allowed"


async def test_only_what_has_an_owner_can_be_released(launch):
    """A salted engine's cache is everybody's at once."""
    gateway = await launch(kind="vllm")
    with pytest.raises(NotReleasable, match="belongs to nobody"):
        await gateway.parts.isolation.release(gateway.parts.router.pool.get("r1"))


async def test_a_retry_never_leaves_the_tenants_engines(launch):
    """A failed attempt must not open another tenant's engine."""
    gateway = await launch(kind="llama-server", engines=2)
    birch = await gateway.new_key(await gateway.new_project())
    assert (await gateway.post(chat())).status == 200
    assert (await gateway.post(chat(), key=birch)).status == 200
    mine = gateway.engines.requests[0][0]
    await gateway.engines.all[mine].kill()
    got = await gateway.post(chat())
    assert got.status in {502, 503}
    assert [index for index, _ in gateway.engines.requests].count(1 - mine) == 1


def section(**fields):
    """A replica as the configuration has it."""
    return ReplicaSection(**{"name": "r1", "model": "m", "engine": "llama-server", "url": "http://h:1", **fields})


def test_an_operator_is_told_of_every_undivided_cache():
    """At start-up and by the doctor: what happens by default, what to write, what it costs."""
    alone, accepted = separation_notes((section(), section(shared_cache="accept"), section(engine="vllm")))
    assert 'shared_cache = "accept"' in alone
    assert "first one alone" in alone
    assert "accepted" in accepted


def test_sharing_can_only_be_accepted_where_there_is_something_to_accept(tmp_path):
    """A key that does nothing would be believed in."""
    file = tmp_path / "w.toml"
    head = '[[replicas]]\nname = "a"\nmodel = "m"\nurl = "http://h:1"\n'
    file.write_text(f'{head}engine = "vllm"\nshared_cache = "accept"\n')
    with pytest.raises(ConfigError, match="separates tenants by a salt"):
        load(file)
    file.write_text(f'{head}engine = "llama-server"\nshared_cache = "maybe"\n')
    with pytest.raises(ConfigError, match="shared_cache"):
        load(file)
    file.write_text(f'{head}engine = "llama-server"\nshared_cache = "accept"\n')
    assert load(file).replicas[0].shares_cache


def control_of(gateway):
    """A client of its control socket's application."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway.gateway.control), base_url="http://gateway")


async def test_a_dry_run_shows_why_a_replica_is_not_for_the_tenant(launch):
    """An operator who asks why a tenant is refused sees the rule."""
    gateway = await launch(kind="llama-server")
    await gateway.post(chat())
    other = await gateway.new_project()
    await gateway.new_key(other)
    async with control_of(gateway) as control:
        told = (await control.post("/routes/explain", json={"request": chat(), "project_id": other})).json()
    assert told["reason"] == "every replica of this model has a cache that belongs to another tenant"
    assert told["candidates"] == [{"replica": "r1", "filtered": "not for this tenant"}]


class CachingEngine:
    """What a vLLM with prefix caching and cache reports answers: cached is what it has read under the same salt."""

    def __init__(self):
        self._held = set()

    def __call__(self, request):
        body = request.json
        prompt = json.dumps(body["messages"])
        key = (body["cache_salt"], prompt)
        cached = len(prompt) // 4 if key in self._held else 0
        self._held.add(key)
        return answer("ok", prompt_tokens=len(prompt) // 4, cached=cached)(request)


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_the_cached_tokens_that_a_tenant_is_shown_are_its_own(launch, is_streaming):
    """P10 on vLLM: birch's first is 0 whatever it writes, alder's second is not; a group of one organisation shares."""
    gateway = await launch(kind="vllm", engines=1)
    engine = CachingEngine()
    gateway.engine.fallback = engine
    birch = await gateway.new_key(await gateway.new_project())
    group = '{"sharing_group": "team"}'
    cedar, cypress = [await gateway.new_key(await gateway.new_project(group)) for _ in range(2)]
    abroad = (await gateway.store.create_organization("abroad")).id
    namesake = await gateway.new_key(await gateway.new_project(group, abroad))
    options = {"stream": True, "stream_options": {"include_usage": True}} if is_streaming else {}

    async def cached(key, **extra):
        got = await gateway.post(chat("word " * 400, **options, **extra), key=key)
        usage = got.chunks[-1]["usage"] if is_streaming else got.json["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert await cached(gateway.key) == 0
    assert await cached(birch, cache_salt="guess") == 0
    assert await cached(gateway.key) > 400
    assert await cached(cedar) == 0
    assert await cached(cypress) > 400
    assert await cached(namesake) == 0
    shown = [record.cached_tokens for record in gateway.records]
    assert [bool(one) for one in shown] == [False, False, True, False, True, False]


async def test_projects_of_a_group_own_an_engine_together(launch):
    """A group is one cache domain, also where there is no salt."""
    gateway = await launch(kind="llama-server")
    group = '{"sharing_group": "team"}'
    cedar, cypress = [await gateway.new_key(await gateway.new_project(group)) for _ in range(2)]
    assert [(await gateway.post(chat(), key=key)).status for key in (cedar, cypress, gateway.key)] == [200, 200, 503]
    assert await shown(gateway) == {"r1": ("owner", f"{gateway.organization}/team")}


async def test_a_change_of_group_acts_on_the_next_request(launch):
    """The salt follows the limits document at once."""
    gateway = await launch(kind="vllm")
    for limits in ("{}", '{"sharing_group": "team"}', '{"sharing_group": "Team"}', '{"sharing_group": null}'):
        await gateway.limit(gateway.project, limits)
        assert (await gateway.post(chat())).status == 200
    salts = [request.json["cache_salt"] for _, request in gateway.engines.requests]
    assert len(set(salts[:3])) == 3
    assert salts[3] == salts[0]


def test_the_doctor_names_every_replica_that_this_is_about(tmp_path):
    """An operator finds it before a second tenant does."""
    file = tmp_path / "w.toml"
    file.write_text('[[replicas]]\nname = "a"\nmodel = "m"\nurl = "http://h:1"\nengine = "llama-server"\n')
    patient = Patient(detect(), Home(tmp_path / "home"), load(file))
    found = [one for one in check_config(patient) if one.check == "isolation"]
    assert [(one.health, one.detail.partition(":")[0]) for one in found] == [(Health.NOTE, "a")]


async def test_the_admin_plane_is_told_and_orders_the_release(launch):
    """The control socket's answers: who owns what, 404, 409 and the release itself."""
    gateway = await launch(kind="llama-server")
    await gateway.post(chat())
    async with control_of(gateway) as control:
        [replica] = (await control.get("/replicas")).json()["data"]
        assert replica["cache"] == {"separation": "owner", "owner": gateway.project}
        assert (await control.post("/replicas/none/release")).status_code == 404
        refused = await control.post("/replicas/r1/release")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_releasable")
        await control.post("/replicas/r1/drain")
        assert (await control.post("/replicas/r1/release")).status_code == 200
        [replica] = (await control.get("/replicas")).json()["data"]
        assert replica["cache"]["owner"] is None
