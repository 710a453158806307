"""A model that does not serve what is asked of it: refused clearly, learned where nobody said so, at no others' cost."""

import asyncio
import json

import pytest

from gateway.abilities import LACK_S
from gateway.request import FORMS, GENERATING, Surface
from tests.gateway.inputs_kit import BODIES, INPUT_SURFACES, embeddings, rerank, score, served, tokenize
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat, completion, message, respond
from tests.scripted_engine import answer, status

TALKING = {*GENERATING, Surface.COUNT_TOKENS, Surface.INPUT_TOKENS}  # what needs a chat
NO_ROUTE = status(404, {"detail": "Not Found"})
surfaces = pytest.mark.parametrize("surface", INPUT_SURFACES, ids=[one.name.lower() for one in INPUT_SURFACES])


async def told(launch, *cards, **options):
    """A gateway whose replicas' engines have told what their models do."""
    gateway = await launch(engines=len(cards), **options)
    for engine, card in zip(gateway.engines.all, cards, strict=True):
        engine.card = {"id": UPSTREAM_MODEL, **card}
    for connection in gateway.parts.fleet._connections.values():
        connection.abilities.due_at = 0.0
    await gateway.parts.fleet.probe_all()
    return gateway


async def asked_for(gateway, surface, **fields):
    """The answer on that surface."""
    generating = {Surface.CHAT: chat, Surface.COMPLETIONS: completion, Surface.MESSAGES: message}
    body = {**BODIES, **generating, Surface.RESPONSES: respond}[surface](**fields)
    return await gateway.post(body, path=surface.value)


@pytest.mark.parametrize(
    ("tasks", "unserved"),
    [
        (["generate"], {Surface.EMBEDDINGS, Surface.RERANK, Surface.SCORE}),
        (["embed", "score"], TALKING),
        (["score"], TALKING | {Surface.EMBEDDINGS}),
        (["generate", "embed", "score"], set()),
    ],
)
async def test_what_an_engine_says_it_does_is_all_that_is_asked_of_it(launch, tasks, unserved):
    """The refusal names the model and what it serves; no engine is asked, nothing is charged."""
    gateway = await told(launch, {"tasks": tasks, "max_model_len": 64})
    [listed] = (await gateway.get("/v1/models")).json["data"]
    assert (listed["tasks"], listed["max_model_len"]) == (sorted(tasks), 64)
    for surface in set(Surface) - set(FORMS):
        sent = len(gateway.engines.requests)
        gateway.script(*([] if surface in unserved else [served() if surface in BODIES else answer("Hi")]))
        got = await asked_for(gateway, surface)
        if surface not in unserved:
            assert got.status == 200, surface
            continue
        assert (got.status, got.code, got.error["param"]) == (400, "unsupported_model", "model"), surface
        assert f"{MODEL!r} does not serve {surface.value}: it serves /v1/" in got.error["message"]
        assert len(gateway.engines.requests) == sent
        assert gateway.records[-1].outcome == "client_error"


async def test_messages_are_tokenised_only_where_there_is_a_chat(launch):
    """A text is by every tokenizer."""
    gateway = await told(launch, {"tasks": ["embed"]})
    gateway.script(served())
    assert (await asked_for(gateway, Surface.TOKENIZE)).status == 200
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}
    got = await gateway.post(body, path="/v1/tokenize")
    assert (got.status, got.code) == (400, "unsupported_model")
    assert "/v1/tokenize of messages" in got.error["message"]


async def test_other_models_that_serve_it_are_named_to_who_may_know_them(launch):
    """A project that may not use a model does not learn of it."""
    replica = [{"tasks": ["generate"]}, {"model": "bge", "tasks": ["embed"]}]
    gateway = await launch(engines=2, replica=replica)
    assert "'bge' does" in (await asked_for(gateway, Surface.EMBEDDINGS)).error["message"]
    narrow = await gateway.new_key(await gateway.new_project(json.dumps({"models": [MODEL]})))
    got = await gateway.post(embeddings(), path="/v1/embeddings", key=narrow)
    assert got.code == "unsupported_model"
    assert "bge" not in got.error["message"]


async def test_of_one_models_replicas_those_are_asked_that_serve_it(launch):
    """And the receipt says why the others were not."""
    gateway = await launch(engines=3, replica=[{"tasks": ["generate"]}, {"tasks": ["generate", "embed"]}, {}])
    gateway.script(*[served()] * 6)
    for number in range(6):
        assert (await asked_for(gateway, Surface.EMBEDDINGS, texts=f"text {number}")).status == 200
    assert 0 not in {index for index, _ in gateway.engines.requests}
    decision = gateway.parts.recorder.find(gateway.records[-1].request_id)[1]
    filtered = {one.replica: one.filtered for one in decision.receipt("x").candidates}
    assert filtered["r1"] == "does not serve this endpoint"
    assert (await gateway.post(chat())).status == 200


async def test_a_replica_that_serves_it_is_waited_for_though_others_are_free(launch):
    """A seat that is of no use is none."""
    gateway = await launch(engines=2, seats=1, replica=[{"tasks": ["generate"]}, {"tasks": ["embed"]}])
    gate = asyncio.Event()
    gateway.script(served(gate=gate), served())
    first = await gateway.start(embeddings("a"), path="/v1/embeddings")
    await gateway.received()
    second = await gateway.start(embeddings("b"), path="/v1/embeddings")
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    gate.set()
    assert (await first.answer()).status == (await second.answer()).status == 200
    assert [index for index, _ in gateway.engines.requests] == [1, 1]


@surfaces
async def test_an_endpoint_that_an_engine_has_not_is_learned_and_asked_for_again_later(launch, surface):
    """404 on one replica is no fault of it: another answers, and the next request goes there at once."""
    gateway = await launch(engines=2, kind="vllm")
    gateway.script(NO_ROUTE, served(), served())
    assert (await asked_for(gateway, surface)).status == 200
    [lacking, having] = [index for index, _ in gateway.engines.requests]
    assert (await asked_for(gateway, surface)).status == 200
    assert [index for index, _ in gateway.engines.requests] == [lacking, having, having]
    assert gateway.records[0].lost_attempts == 0
    connection = gateway.parts.fleet.connection(f"r{lacking + 1}")
    connection.abilities.lacking = {one: until - LACK_S for one, until in connection.abilities.lacking.items()}
    await gateway.parts.fleet.probe_all()
    assert gateway.parts.router.pool.get(f"r{lacking + 1}").spec.surfaces == connection.surfaces
    assert not connection.abilities.lacking


@surfaces
@pytest.mark.parametrize("code", [403, 404, 405, 501])
async def test_who_asks_a_model_for_what_it_has_not_harms_nobody_else(launch, surface, code):
    """Not one such answer counts against the replica, so that one tenant cannot shut another's chats out."""
    gateway = await launch(kind="vllm")
    gateway.script(*[status(code)] * 6)
    for _ in range(6):
        got = await asked_for(gateway, surface)
        assert (got.status, got.code, got.error["param"]) == (400, "unsupported_model", "model")
    assert len(gateway.engines.requests) == (1 if code in (404, 405) else 6)
    gateway.engines._scripts.clear()
    assert (await gateway.post(chat())).status == 200
    outcomes = [one.outcome for one in gateway.records]
    assert outcomes == ["client_error"] * 6 + ["finished"]
    assert all(not one.charged_tokens for one in gateway.records[:6])


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_chats_with_a_model_that_embeds_shut_nobody_out(launch, surface, stream):
    """Once it has embedded, its 404 to a chat is no fault; who embeds goes on, and chats are refused here."""
    gateway = await launch(kind="vllm")
    gateway.script(served(), NO_ROUTE, served())
    assert (await asked_for(gateway, Surface.EMBEDDINGS)).status == 200
    for _ in range(5):
        got = await asked_for(gateway, surface, stream=stream)
        assert (got.status, got.code) == (400, "unsupported_model")
    assert (await asked_for(gateway, Surface.EMBEDDINGS)).status == 200
    assert len(gateway.engines.requests) == 3


async def test_a_chat_that_is_404_is_a_fault_where_nothing_was_ever_embedded(launch):
    """It is most likely a wrong name or address, which an operator must see."""
    gateway = await launch(kind="vllm", retries={"max_attempts": 1})
    gateway.script(served(), NO_ROUTE)
    assert (await asked_for(gateway, Surface.TOKENIZE)).status == 200
    got = await gateway.post(chat())
    assert (got.status, got.code) == (502, "replica_error")


async def test_engines_without_an_endpoint_are_not_asked_for_it(launch):
    """llama-server scores no pairs and tokenises no chats; a provider has no tokenizer, and ranks where that is said."""
    gateway = await launch(kind="llama-server")
    got = await asked_for(gateway, Surface.SCORE)
    assert got.code == "unsupported_model"
    assert "/v1/embeddings, /v1/messages, /v1/rerank, /v1/responses, /v1/tokenize" in got.error["message"]
    gateway = await launch(kind="openai")
    for surface in (Surface.RERANK, Surface.SCORE, Surface.TOKENIZE, Surface.DETOKENIZE):
        assert (await asked_for(gateway, surface)).code == "unsupported_model"
    ranking = await launch(kind="openai", replica={"tasks": ["score"]})
    ranking.script(served())
    assert (await asked_for(ranking, Surface.RERANK)).status == 200
    assert not gateway.engines.requests


@pytest.mark.parametrize("kind", ["vllm", "llama-server", "openai", "warmlane"])
async def test_what_each_engine_is_sent(launch, kind):
    """Its own path and words, and nothing that steers."""
    gateway = await launch(kind=kind, replica={"tasks": ["embed", "score"]})
    steering = {"priority": 9, "cache_salt": "theirs", "messages": [], "user": "anna"}
    gateway.script(served())
    got = await gateway.post(embeddings(**steering), path="/v1/embeddings")
    assert got.status == 200
    sent = (await gateway.received()).json
    allowed = {"model", "input"} | {
        "vllm": {"cache_salt", "user"},
        "llama-server": {"user"},
        "openai": set(),
        "warmlane": {"cache_salt", "priority", "user"},
    }[kind]
    assert sent.keys() == allowed
    assert sent.get("cache_salt") != "theirs"
    assert sent.get("priority") != 9
    if kind == "llama-server":
        gateway.script(served(), served().but(content="Hello"))
        assert (await gateway.post(tokenize(return_token_strs=True), path="/v1/tokenize")).json["count"] == 5
        request = await gateway.received(2)
        assert request.path == "/tokenize"
        assert request.json.keys() == {"model", "content", "add_special", "with_pieces"}
        assert (await asked_for(gateway, Surface.DETOKENIZE)).json == {"prompt": "Hello"}


async def test_a_dry_run_tells_who_serves_it(launch):
    """The admin plane's explain reads these bodies as the data plane does, and changes nothing."""
    gateway = await launch(engines=2, replica=[{"tasks": ["generate"]}, {"tasks": ["score"]}])

    async def explained(surface, body):
        control = gateway.gateway.control
        explain = next(one for one in control.routes if one.path == "/routes/explain").endpoint
        asked = json.dumps({"request": body, "project_id": gateway.project, "surface": surface.value}).encode()
        return json.loads((await explain(Posted(asked))).body)

    found = await explained(Surface.RERANK, rerank())
    assert found["chosen"] == "r2"
    assert {one["replica"]: one["filtered"] for one in found["candidates"]} == {
        "r1": "does not serve this endpoint",
        "r2": None,
    }
    found = await explained(Surface.EMBEDDINGS, embeddings())
    assert (found["chosen"], found["reason"]) == (None, "no replica of this model serves this endpoint")
    assert (await explained(Surface.SCORE, score()))["chosen"] == "r2"


class Posted:
    """A request to the control socket."""

    def __init__(self, body):
        self._body = body

    async def body(self):
        """Its body."""
        return self._body
