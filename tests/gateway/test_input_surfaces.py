"""Embeddings, rerank, score and the tokenizer through HTTP: everything that a chat has, and nothing held afterwards."""

import asyncio
import json
import threading

import pytest

from gateway import input_relay
from gateway.request import FORMS, GENERATING, Surface
from tests.gateway.inputs_kit import (
    BODIES,
    CHARGED,
    FREE,
    INPUT_SURFACES,
    embeddings,
    packed,
    rerank,
    score,
    served,
    vector_of,
)
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat
from tests.gateway.test_token_limits import PRICED, used
from tests.scripted_engine import PATIENCE_S, Framing, Reply, answer, dropped, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
surfaces = pytest.mark.parametrize("surface", INPUT_SURFACES, ids=[one.name.lower() for one in INPUT_SURFACES])
charged = pytest.mark.parametrize("surface", CHARGED, ids=[one.name.lower() for one in CHARGED])


def never():
    """Something that does not happen."""
    return asyncio.Event()


async def ask(gateway, surface, *, body=None, **options):
    """A whole answer of this surface."""
    return await gateway.post(body or BODIES[surface](), path=surface.value, **options)


def test_every_surface_that_generates_no_text_is_tried():
    """A new one must be added here."""
    assert set(INPUT_SURFACES) == set(CHARGED) | set(FREE) == set(BODIES)
    assert set(Surface) == set(GENERATING) | set(BODIES) | set(FORMS)  # those of audio: test_audio.py


@both_ways
@surfaces
async def test_an_answer_is_the_engines_under_the_name_that_was_asked_for(launch, surface):
    """An alias goes out, the engine's own name in; whatever the engine calls itself is not told."""
    gateway = await launch(models=[{"name": MODEL, "aliases": ["alias"]}])
    gateway.script(served())
    got = await ask(gateway, surface, body=BODIES[surface](model="alias"))
    assert (got.status, got.header("content-type")) == (200, "application/json")
    assert UPSTREAM_MODEL.encode() not in got.body
    sent = await gateway.received()
    assert sent.json["model"] == UPSTREAM_MODEL
    own_paths = dict.fromkeys((Surface.TOKENIZE, Surface.COUNT_TOKENS, Surface.INPUT_TOKENS), "/tokenize")
    own_paths[Surface.DETOKENIZE] = "/detokenize"
    assert sent.path == own_paths.get(surface, surface.value)
    if surface in CHARGED:
        assert got.json["model"] == "alias"
        assert got.json["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status, record.surface) == ("finished", 200, surface.value)
    assert (record.model, record.requested_model, record.replica, record.attempts) == (MODEL, "alias", "r1", 1)
    assert (record.ttft_s, record.num_chunks, record.is_streaming, record.is_estimated) == (None, 0, False, False)
    assert record.queue_s is not None
    assert record.gateway_s is not None
    told = await gateway.get(f"/v1/requests/{record.request_id}")
    assert told.json["charged_tokens"] == (7 if surface in CHARGED else 0)


async def test_each_answer_has_its_clients_shape(launch):
    """What a client's library reads."""
    gateway = await launch()
    gateway.script(*[served()] * 6)
    found = (await ask(gateway, Surface.EMBEDDINGS, body=embeddings(["a", "bcd"]))).json
    assert [one["embedding"] for one in found["data"]] == [vector_of("a"), vector_of("bcd")]
    found = (await ask(gateway, Surface.EMBEDDINGS, body=embeddings([5, 6], encoding_format="base64"))).json
    assert found["data"] == [{"object": "embedding", "index": 0, "embedding": packed(vector_of([5, 6]))}]
    found = (await ask(gateway, Surface.RERANK, body=rerank(top_n=1))).json
    assert found["results"] == [{"index": 0, "relevance_score": 0.5, "document": {"text": "a cat"}}]
    found = (await ask(gateway, Surface.SCORE)).json
    assert [one["score"] for one in found["data"]] == [0.0, 0.25]
    found = (await ask(gateway, Surface.TOKENIZE)).json
    assert (found["count"], found["tokens"]) == (5, list(b"Hello"))
    found = (await ask(gateway, Surface.DETOKENIZE)).json
    assert found == {"prompt": "Hello"}


@pytest.mark.parametrize(("wanted", "given"), [("base64", "float"), ("float", "base64")])
async def test_a_form_that_an_engine_ignores_is_made_here(launch, wanted, given):
    """The official client asks for base64 by default; some engines know only numbers."""
    gateway = await launch()
    vector = packed(vector_of("Hello")) if given == "base64" else vector_of("Hello")
    gateway.script(served().but(data=[{"index": 0, "embedding": vector}]))
    got = await ask(gateway, Surface.EMBEDDINGS, body=embeddings(encoding_format=wanted))
    assert got.json["data"][0]["embedding"] == (
        packed(vector_of("Hello")) if wanted == "base64" else vector_of("Hello")
    )


@both_ways
@surfaces
async def test_what_holds_for_a_chat_holds_before_the_body_is_read(launch, surface):
    """Keys, surfaces, models and lanes; every refusal has its record and asks no engine."""
    gateway = await launch()
    assert (await ask(gateway, surface, key="wl-unknown")).status == 401
    narrow = await gateway.new_key(await gateway.new_project('{"surfaces": ["/v1/chat/completions"]}'))
    got = await ask(gateway, surface, key=narrow)
    assert (got.status, got.code) == (403, "surface_not_allowed")
    opened = await gateway.new_key(await gateway.new_project(json.dumps({"surfaces": [surface.value]})))
    gateway.script(served())
    assert (await ask(gateway, surface, key=opened)).status == 200
    assert (await gateway.post(chat(), key=opened)).code == "surface_not_allowed"
    other = await gateway.new_key(await gateway.new_project('{"models": ["another"]}'))
    assert (await ask(gateway, surface, key=other)).code == "model_not_allowed"
    low = await gateway.new_key(await gateway.new_project('{"max_lane": "bulk", "default_lane": "bulk"}'))
    got = await ask(gateway, surface, key=low, headers=[("x-warmlane-lane", "interactive")])
    assert (got.status, got.code) == (403, "lane_not_allowed")
    gateway.script(served())
    got = await ask(gateway, surface, key=low)
    assert (got.status, got.header("x-warmlane-lane")) == (200, "bulk")
    assert (await ask(gateway, surface, body=BODIES[surface](model="none"))).code == "model_not_found"
    got = await ask(gateway, surface, body=b"{")
    assert got.status == 400
    got = await ask(gateway, surface, headers=[("content-encoding", "gzip")])
    assert got.status == 415
    assert len(gateway.engines.requests) == 2
    assert len(await gateway.until_recorded(10)) == 10


@charged
async def test_tokens_are_reserved_by_the_input_and_charged_as_reported(launch, surface):
    """No output is expected; what the headers tell is settled."""
    gateway = await launch(models=PRICED)
    await gateway.limit(gateway.project, '{"tpm": 1000, "usd_per_month": 100}')
    gateway.script(served(usage=33))
    got = await ask(gateway, surface)
    assert got.header("x-ratelimit-remaining-tokens") == "967"
    assert used(gateway) == 33
    [record] = await gateway.until_recorded(1)
    assert 0 < record.reserved_tokens < 20
    assert (record.prompt_tokens, record.completion_tokens, record.charged_tokens) == (33, 0, 33)
    assert record.cost_nanousd == 33 * 1_000_000
    big = {"embeddings": embeddings("word " * 2000), "rerank": rerank("word " * 1000), "score": score("word " * 1000)}
    got = await ask(gateway, surface, body=big[surface.name.lower()])
    assert (got.status, got.code) == (429, "tpm")
    assert used(gateway) == 33
    assert len(gateway.engines.requests) == 1


async def test_token_ids_are_counted_and_not_estimated(launch):
    """A list of ids says how many there are."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 500}')
    gateway.script(served(usage=400))
    assert (await ask(gateway, Surface.EMBEDDINGS, body=embeddings([[7] * 150, [8] * 250]))).status == 200
    [record] = await gateway.until_recorded(1)
    assert record.reserved_tokens == 400
    assert (await ask(gateway, Surface.EMBEDDINGS, body=embeddings([7] * 101))).code == "tpm"
    gateway.script(served(usage=100))
    assert (await ask(gateway, Surface.EMBEDDINGS, body=embeddings([7] * 100))).status == 200


@charged
async def test_what_no_engine_reports_is_estimated_for_all_who_are_told(launch, surface):
    """The client, the ledger and the limits; the row says that it was estimated."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 10000}')
    for _ in range(20):  # texts of twelve bytes a token, of which no more is believed than five
        gateway.script(served(usage=40))
        text = {"embeddings": embeddings, "rerank": rerank, "score": score}[surface.name.lower()]
        await ask(gateway, surface, body=text("x" * (480 if surface is Surface.EMBEDDINGS else 235)))
    before = used(gateway)
    gateway.script(served(usage=None))
    got = await ask(gateway, surface, body=text("y" * 1000))
    *_, record = await gateway.until_recorded(21)
    assert record.is_estimated
    assert got.json["usage"]["total_tokens"] == record.charged_tokens > record.reserved_tokens
    assert (record.completion_tokens, used(gateway)) == (0, before + record.charged_tokens)


@pytest.mark.parametrize("surface", FREE)
async def test_the_tokenizer_takes_requests_and_no_tokens(launch, surface):
    """No model is run: it is counted against the minute, and costs nothing, also for a model without a price."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 10, "tokens_per_day": 10, "usd_per_month": 1, "rpm": 2}')
    gateway.script(served(), served())
    long = {"model": MODEL, "tokens": [65] * 5000} if surface is Surface.DETOKENIZE else BODIES[surface]("word " * 5000)
    assert (await ask(gateway, surface, body=long)).status == 200
    assert used(gateway) == used(gateway, "tokens_per_day") == 0
    assert (await ask(gateway, surface)).status == 200
    assert (await ask(gateway, surface)).code == "rpm"
    records = await gateway.until_recorded(3)
    assert [(one.charged_tokens, one.cost_nanousd, one.is_estimated) for one in records[:2]] == [(0, None, False)] * 2


@surfaces
async def test_short_answers_of_a_chat_are_not_expected_because_of_it(launch, surface):
    """What a tenant's chats answer is learned from chats alone."""
    gateway = await launch()
    gateway.script(*[served()] * 20)
    before = gateway.parts.outputs.expected(gateway.project, gateway.parts.directory.tenants()[0].limits.default_lane)
    for _ in range(20):
        await ask(gateway, surface)
    await gateway.post(chat(max_tokens=500))
    *_, record = await gateway.until_recorded(21)
    assert record.reserved_tokens >= before


@surfaces
@pytest.mark.parametrize(
    "failure",
    [dropped(), status(500), status(429, headers={"retry-after": "1"}), served(cut=True), answer("not that"),
     Reply([b"nonsense"], framing=Framing.LENGTH)],
    ids=["dropped", "500", "429", "cut", "other", "nonsense"],
)  # fmt: skip
async def test_another_replica_answers_while_nothing_was_sent(launch, surface, failure):
    """Which is until the whole answer is here and is one."""
    gateway = await launch(engines=2)
    gateway.script(failure, served())
    got = await ask(gateway, surface)
    assert got.status == 200
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts) == ("finished", 2)
    assert record.charged_tokens == (7 if surface in CHARGED else 0)
    assert {index for index, _ in gateway.engines.requests} == {0, 1}


@surfaces
async def test_when_all_fail_it_is_told_and_nothing_is_charged(launch, surface):
    """P06: attempts have a bound."""
    gateway = await launch(engines=3, retries={"max_attempts": 2})
    await gateway.limit(gateway.project, '{"tokens_per_day": 1000}')
    gateway.script(served(cut=True), served(cut=True), served())
    got = await ask(gateway, surface)
    assert (got.status, got.code) == (502, "replica_reset")
    assert used(gateway, "tokens_per_day") == 0
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts, record.lost_attempts) == ("replica_error", 2, 2)


@surfaces
async def test_an_engines_own_refusal_is_passed_on_in_its_words(launch, surface):
    """P18: the client's fault is retried nowhere and held against nobody."""
    gateway = await launch(engines=2)
    refusal = {"error": {"message": "this model reads 512 tokens at most", "param": "input", "code": "too_long"}}
    gateway.script(*[status(400, refusal)] * 5)
    for _ in range(5):
        got = await ask(gateway, surface)
        assert (got.status, got.code, got.error["param"]) == (400, "too_long", "input")
    assert len(gateway.engines.requests) == 5
    gateway.script(served())
    assert (await ask(gateway, surface)).status == 200


@surfaces
async def test_an_answer_that_takes_too_long_is_504_and_the_engine_is_told(launch, surface):
    """There is no first token to wait for, only the total."""
    gateway = await launch(timeouts={"first_token_s": 0.01, "idle_s": 0.02, "total_s": 0.1})
    gateway.script(served(gate=never()))
    got = await ask(gateway, surface)
    assert (got.status, got.code) == (504, "replica_timeout")
    await (await gateway.received()).until_aborted()


@surfaces
async def test_a_clients_deadline_holds(launch, surface):
    """And is not the replica's fault."""
    gateway = await launch()
    gateway.script(served(gate=never()))
    got = await ask(gateway, surface, headers=[("x-warmlane-deadline-ms", "30")])
    assert (got.status, got.code) == (504, "deadline")
    gateway.script(served())
    assert (await ask(gateway, surface)).status == 200


@both_ways
@surfaces
async def test_leaving_aborts_the_engine_and_pays_for_what_it_reads(launch, surface):
    """P37: hanging up is no discount; the tokenizer costs nothing in any case."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tokens_per_day": 10000}')
    gateway.script(served(gate=never()))
    client = await gateway.start(BODIES[surface](), path=surface.value)
    request = await gateway.received()
    client.close()
    await request.until_aborted()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status) == ("client_gone", 499)
    assert used(gateway, "tokens_per_day") == record.charged_tokens
    assert bool(record.charged_tokens) == record.is_estimated == (surface in CHARGED)


@surfaces
async def test_leaving_the_queue_leaves_nothing_there(launch, surface):
    """One seat, one who has it, one who waits and goes."""
    gateway = await launch(seats=1)
    gate = asyncio.Event()
    gateway.script(served(gate=gate), served())
    first = await gateway.start(BODIES[surface](), path=surface.value)
    await gateway.received()
    second = await gateway.start(BODIES[surface](), path=surface.value)
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    second.close()
    await gateway.until(lambda: gateway.in_flight["queued"] == 0)
    gate.set()
    assert (await first.answer()).status == 200
    gone, done = sorted(await gateway.until_recorded(2), key=lambda one: one.status, reverse=True)
    assert (gone.outcome, gone.charged_tokens or 0, done.outcome) == ("client_gone", 0, "finished")


async def test_people_go_before_bulk_here_too(launch):
    """One queue a model, whatever is asked of it."""
    gateway = await launch(seats=1)
    gate = asyncio.Event()
    gateway.script(served(gate=gate), served(), served())
    first = await gateway.start(embeddings(), path="/v1/embeddings")
    await gateway.received()
    bulk = await gateway.start(embeddings("bulk", service_tier="flex"), path="/v1/embeddings")
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    person = await gateway.start(rerank("person"), path="/v1/rerank")
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    gate.set()
    for client in (first, bulk, person):
        assert (await client.answer()).status == 200
    assert [request.path for _, request in gateway.engines.requests][1:] == ["/v1/rerank", "/v1/embeddings"]


async def test_load_alone_decides_where_a_text_is_read(launch):
    """Nothing is kept of it, so nobody is believed to hold it; equal texts have one home, busy ones are passed."""
    gateway = await launch(engines=3)
    gate = asyncio.Event()
    gateway.script(*[served(gate=gate)] * 9)
    clients = [await gateway.start(embeddings("the same"), path="/v1/embeddings") for _ in range(9)]
    await gateway.received(9)
    assert {index for index, _ in gateway.engines.requests} == {0, 1, 2}
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200
    assert all(len(replica.shadow) == 0 for replica in gateway.parts.router.pool)
    gateway.script(*[served()] * 6)
    for _ in range(6):
        await ask(gateway, Surface.EMBEDDINGS, body=embeddings("the same again"))
    assert len({index for index, _ in gateway.engines.requests[9:]}) == 1
    record = gateway.records[-1]
    decision = gateway.parts.recorder.find(record.request_id)[1]
    assert decision.receipt(record.request_id).predicted.hit_tokens == record.predicted_hit_tokens == 0


async def test_a_large_answer_is_read_beside_the_loop(launch, monkeypatch):
    """It is written as any other."""
    monkeypatch.setattr(input_relay, "LARGE_BYTES", 10)
    gateway = await launch(engines=2)
    gateway.script(served(), Reply([b"nonsense but long"], framing=Framing.LENGTH), served())
    assert (await ask(gateway, Surface.EMBEDDINGS)).json["data"][0]["embedding"] == vector_of("Hello")
    assert (await ask(gateway, Surface.EMBEDDINGS)).status == 200
    assert len(gateway.engines.requests) == 3


async def test_leaving_while_a_large_answer_is_read_leaves_nothing(launch, monkeypatch):
    """What is read then is thrown away."""
    gate, is_reading = threading.Event(), threading.Event()

    def reading(*_):
        is_reading.set()
        gate.wait(PATIENCE_S)

    monkeypatch.setattr(input_relay, "LARGE_BYTES", 10)
    monkeypatch.setattr(input_relay, "shaped", reading)
    gateway = await launch()
    gateway.script(served())
    client = await gateway.start(embeddings(), path="/v1/embeddings")
    await gateway.until(is_reading.is_set)
    client.close()
    [record] = await gateway.until_recorded(1)
    gate.set()
    assert (record.outcome, record.status) == ("client_gone", 499)
    await gateway.until_quiet()


async def test_an_answer_that_is_too_large_is_the_clients_to_change(launch, monkeypatch):
    """Another replica would answer as much; the engine did nothing wrong."""
    monkeypatch.setattr(input_relay, "MAX_ANSWER_BYTES", 100)
    gateway = await launch(engines=2)
    gateway.script(served())
    got = await ask(gateway, Surface.EMBEDDINGS)
    assert (got.status, got.code, got.error["param"]) == (413, "answer_too_large", "input")
    assert "base64" in got.error["message"]
    assert len(gateway.engines.requests) == 1


@pytest.mark.parametrize("most_bytes", [100, None], ids=["too large", "other dimensions"])
async def test_what_an_engine_did_for_an_answer_that_cannot_be_told_is_charged(launch, monkeypatch, most_bytes):
    """It was asked for: else whoever asks for it again and again keeps an engine busy for nothing."""
    if most_bytes is not None:
        monkeypatch.setattr(input_relay, "MAX_ANSWER_BYTES", most_bytes)
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(served())
    got = await ask(gateway, Surface.EMBEDDINGS, body=embeddings("a" * 400, dimensions=2))
    assert got.status == (400 if most_bytes is None else 413)
    [record] = await gateway.until_recorded(1)
    assert record.charged_tokens == record.reserved_tokens == used(gateway) == 100
    assert (record.is_estimated, record.ttft_s, record.lost_attempts) == (True, None, 0)


async def test_a_bug_in_reading_an_answer_is_told_as_one(launch, monkeypatch):
    """Nobody waits for ever."""
    monkeypatch.setattr(input_relay, "shaped", lambda *_: 1 / 0)
    gateway = await launch()
    gateway.script(served())
    assert (await ask(gateway, Surface.EMBEDDINGS)).status == 500
