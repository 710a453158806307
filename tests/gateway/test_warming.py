"""Pre-warming through a whole gateway: who reads it, in whose name, what it costs, and that nothing stays held."""

import asyncio
import json

import httpx
import pytest

from tests.gateway.kit import MODEL, chat, completion
from tests.scripted_engine import answer, status

LONG = "You are a helpful assistant of the Alder company. " * 80
PROMPT = {
    "model": MODEL,
    "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "."}],
    "max_completion_tokens": 500,
    "n": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
}


class Warmer:
    """A gateway with four replicas and its control socket."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.gateway.control), base_url="http://c")

    async def warm(self, **changes):
        """(status, answer)."""
        body = {"project_id": self.gateway.project, "request": PROMPT, **changes}
        told = await self.client.post("/prefixes/warm", content=json.dumps(body).encode())
        await self.gateway.until_quiet()
        return told.status_code, told.json()


@pytest.fixture
async def warmer(launch):
    """Four replicas, one seat each."""
    one = Warmer(await launch(engines=4, seats=1))
    async with one.client:
        yield one


async def test_so_many_replicas_read_it_as_one_token_of_the_project(warmer):
    """Each once; with the project's salt, in bulk, whatever the operator's body said of the answer."""
    gateway = warmer.gateway
    gateway.script(*[answer("x", prompt_tokens=1000, cached=cached) for cached in (0, 0, 0)])
    code, told = await warmer.warm(count=3)
    assert code == 200, told
    assert (told["asked"], told["warmed"], told["lane"], told["model"]) == (3, 3, "bulk", MODEL)
    assert [one["uncached_tokens"] for one in told["replicas"]] == [1000] * 3
    assert len({one["replica"] for one in told["replicas"]}) == 3
    salt = gateway.parts.directory.tenant(gateway.project).cache_salt
    assert len({index for index, _ in gateway.engines.requests}) == 3
    for _, request in gateway.engines.requests:
        sent = request.json
        assert (sent["max_tokens"], sent["cache_salt"], sent["messages"]) == (1, salt, PROMPT["messages"])
        assert not sent.get("stream")
        assert not {"n", "max_completion_tokens", "stream_options"} & sent.keys()


async def test_the_next_request_goes_where_it_is_warm(warmer):
    """What it is for; and warming again finds the same replica, which has it."""
    gateway = warmer.gateway
    gateway.script(answer("x", prompt_tokens=1000, cached=0), answer("x", prompt_tokens=1000, cached=990))
    _, told = await warmer.warm()
    [first] = told["replicas"]
    _, again = await warmer.warm()
    [second] = again["replicas"]
    assert second["replica"] == first["replica"]
    assert (second["cached_tokens"], second["uncached_tokens"]) == (990, 10)
    messages = [PROMPT["messages"][0], {"role": "user", "content": "What is it?"}]
    await gateway.post({"model": MODEL, "messages": messages})
    assert gateway.engines.requests[-1][0] == int(first["replica"][1:]) - 1


async def test_who_holds_it_is_chosen_before_others(warmer):
    """Whichever replica that is; else warming twice would fill two caches."""
    for name in ("r1", "r2", "r3", "r4"):
        prompt = {"model": MODEL, "messages": [{"role": "system", "content": f"{name} {LONG}"}]}
        await warmer.warm(request=prompt, replicas=[name])
        _, told = await warmer.warm(request=prompt)
        assert [one["replica"] for one in told["replicas"]] == [name]


async def test_it_is_in_the_projects_records_and_charged_to_it(warmer):
    """As a request in bulk without a key; its prompts are no successive prompts of the project's."""
    gateway = warmer.gateway
    gateway.script(answer("x", prompt_tokens=1000, cached=0), answer("x", prompt_tokens=1000, cached=0))
    _, told = await warmer.warm(count=2)
    records = gateway.records
    assert {one.request_id for one in records} == {one["request_id"] for one in told["replicas"]}
    assert {(one.project, one.key, one.lane, one.outcome) for one in records} == {
        (gateway.project, "", "bulk", "finished")
    }
    assert told["charged_tokens"] == sum(one.charged_tokens for one in records) == 2002
    assert len(gateway.parts.prefixes) == 0


async def test_a_limit_of_the_project_holds_for_it(warmer):
    """Refused like any request of its own, and told for each replica; nothing is sent."""
    gateway = warmer.gateway
    await gateway.limit(gateway.project, '{"rpm": 1}')
    gateway.script(answer("x"))
    code, told = await warmer.warm(count=2)
    assert (code, told["warmed"]) == (200, 1)
    outcomes = sorted((one["outcome"], one["reason"] is None) for one in told["replicas"])
    assert outcomes == [("finished", True), ("refused", False)]
    assert len(gateway.engines.requests) == 1


async def test_replicas_may_be_named(warmer):
    """Also twice, which is once; an unknown one is refused before anything is sent."""
    gateway = warmer.gateway
    code, told = await warmer.warm(replicas=["r3", "r3", "r2"])
    assert (code, [one["replica"] for one in told["replicas"]]) == (200, ["r3", "r2"])
    code, told = await warmer.warm(replicas=["r1", "gpu-9"])
    assert (code, told["error"]["param"], "'gpu-9'" in told["error"]["message"]) == (404, "replicas", True)
    assert len(gateway.engines.requests) == 2


async def test_an_engine_that_fails_is_told_and_no_other_takes_its_part(warmer):
    """The others' rows are what they are."""
    gateway = warmer.gateway
    gateway.script(status(500), answer("x"))
    _, told = await warmer.warm(replicas=["r1", "r2"])
    assert sorted(one["outcome"] for one in told["replicas"]) == ["finished", "replica_error"]
    assert len(gateway.engines.requests) == 2


async def test_a_replica_without_a_seat_is_given_up_in_time(warmer):
    """What waits longer than was asked ends as timed out, and the seat's holder is not touched."""
    gateway, gate = warmer.gateway, asyncio.Event()
    gateway.script(answer("Hi", gates={0: gate}))
    client = await gateway.start(chat(gateway.prompt_for("r2")))
    await gateway.received()
    told = await warmer.client.post(
        "/prefixes/warm",
        json={"project_id": gateway.project, "request": PROMPT, "replicas": ["r2"], "timeout_s": 0.1},
    )
    [row] = told.json()["replicas"]
    assert row["outcome"] == "timed_out", row
    gate.set()
    assert (await client.answer()).status == 200


async def test_a_drained_replica_is_not_chosen(warmer):
    """Nobody is sent there."""
    gateway = warmer.gateway
    gateway.parts.fleet.drain("r1")
    _, told = await warmer.warm(count=10)
    assert sorted(one["replica"] for one in told["replicas"]) == ["r2", "r3", "r4"]
    for name in ("r2", "r3", "r4"):
        gateway.parts.fleet.drain(name)
    code, told = await warmer.warm()
    assert (code, told["error"]["type"]) == (503, "service_unavailable_error")


async def test_a_completions_prompt_in_another_lane(warmer):
    """The operator's choice."""
    code, told = await warmer.warm(request=completion(LONG), surface="/v1/completions", lane="interactive")
    assert (code, told["lane"], told["warmed"]) == (200, "interactive", 1)
    assert warmer.gateway.engines.requests[0][1].path == "/v1/completions"


async def test_engines_of_one_tenant_each_are_not_taken_from_others(launch):
    """They have no salt: whoever is sent there owns their cache from then on. A named one is the operator's wish."""
    one = Warmer(await launch(engines=3, kind="llama-server"))
    async with one.client:
        _, told = await one.warm(count=3)
        [row] = told["replicas"]
        assert row["outcome"] == "finished", row
        owners = one.gateway.parts.isolation.owners
        owned = [spec.name for spec in (each.spec for each in one.gateway.parts.router.pool) if owners.owner(spec.url)]
        assert owned == [row["replica"]]
        _, again = await one.warm(count=3)
        assert [each["replica"] for each in again["replicas"]] == owned
        other = await one.gateway.new_project()
        await one.gateway.new_key(other)
        _, foreign = await one.warm(project_id=other, replicas=owned)
        assert (foreign["warmed"], foreign["replicas"][0]["outcome"]) == (0, "shed")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"project_id": "proj_none"}, 404),
        ({"request": {"model": "none", "messages": PROMPT["messages"]}}, 404),
        ({"request": {"model": MODEL}}, 400),
        ({"request": 5}, 400),
        ({"count": 0}, 400),
        ({"count": 65}, 400),
        ({"timeout_s": 0}, 400),
        ({"timeout_s": 601}, 400),
        ({"surface": "/v1/embeddings"}, 400),
        ({"lane": "fast"}, 400),
        ({"nosuch": 1}, 400),
    ],
)
async def test_what_cannot_be_warmed_is_refused(warmer, changes, code):
    """Before anything is sent."""
    got, told = await warmer.warm(**changes)
    assert (got, "message" in told["error"]) == (code, True)
    assert warmer.gateway.engines.requests == []
