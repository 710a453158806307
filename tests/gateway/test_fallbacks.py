"""Another model answers where the one that was named cannot: P21, and that nobody gets what is not theirs by it."""

import asyncio
import json

import pytest

from gateway.settings import ConfigFile
from policies.store import Level
from routing import breaker
from tests.gateway.kit import chat, completion, message, respond
from tests.scripted_engine import Cut, Reply, answer, dropped, sse, status

OTHER = "small-b"
MODELS = [{"name": "small-a", "aliases": ["fast"], "fallbacks": [OTHER]}, {"name": OTHER}]
PRICES = {"price_in": 1, "price_out": 2}


@pytest.fixture
async def pair(launch, monkeypatch):
    """small-a on r1, small-b on r2, and a breaker that never opens."""
    monkeypatch.setattr(breaker, "MAX_FAULTS", 10**9)

    async def start(models=MODELS, **sections):
        replicas = [{"model": "small-a"}, {"model": OTHER, "upstream_model": "engine/small-b"}]
        return await launch(engines=2, replica=replicas, models=models, **{"retries": {"budget_ratio": 1}, **sections})

    return start


def hung():
    """An engine that says nothing."""
    return answer("x", gates={0: asyncio.Event()})


def asked_of(gateway):
    """(engine, model it was asked for) of each upstream request."""
    return [(index, json.loads(request.body)["model"]) for index, request in gateway.engines.requests]


@pytest.mark.parametrize("failure", [dropped, lambda: status(500), lambda: status(503), lambda: status(429)])
@pytest.mark.parametrize("is_streaming", [False, True])
async def test_a_model_whose_engines_fail_is_stood_in_for(pair, failure, is_streaming):
    """P21: real names everywhere; the client is told who answered, the record too, and one request is counted."""
    gateway = await pair()
    gateway.script(failure(), answer("Hi"))
    got = await gateway.post({**chat(stream=is_streaming), "model": "fast"})
    assert got.status == 200
    assert got.text == "Hi"
    assert got.header("x-warmlane-model") == OTHER
    assert asked_of(gateway) == [(0, "engine/small-a"), (1, "engine/small-b")]
    (record,) = await gateway.until_recorded(1)
    assert (record.model, record.requested_model, record.replica) == (OTHER, "fast", "r2")
    assert (record.outcome, record.attempts, record.lost_attempts <= 1) == ("finished", 2, True)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (completion(), "/v1/completions"),
        (message(), "/v1/messages"),
        (respond(), "/v1/responses"),
    ],
)
async def test_every_surface_that_writes_is_stood_in_for(pair, body, path):
    """Each is a chat or a completion underneath."""
    gateway = await pair()
    gateway.script(dropped(), answer("Hi"))
    got = await gateway.post(body, path=path)
    assert (got.status, got.header("x-warmlane-model")) == (200, OTHER)


async def test_whoever_may_not_use_the_fallback_gets_the_failure(pair):
    """P21: a permission for an alias and its model is none for what stands in for it."""
    gateway = await pair()
    await gateway.limit(gateway.project, '{"models": ["fast", "small-a"]}')
    gateway.script(dropped())
    got = await gateway.post({**chat(), "model": "fast"})
    assert (got.status, got.json["error"]["code"]) == (502, "replica_reset")
    assert [index for index, _ in asked_of(gateway)] == [0]
    await gateway.limit(gateway.project, json.dumps({"models": ["small-a", OTHER]}))
    gateway.script(dropped(), answer("Hi"))
    assert (await gateway.post(chat())).status == 200


async def test_a_model_that_nobody_serves_now_is_stood_in_for(pair):
    """Its only replica is drained: nothing was sent, so nothing of the retry budget goes."""
    gateway = await pair(retries={"budget_ratio": 0})
    gateway.parts.fleet.drain("r1")
    gateway.script(answer("Hi"))
    assert (await gateway.post(chat())).text == "Hi"
    assert asked_of(gateway) == [(1, "engine/small-b")]


async def test_a_failure_that_was_sent_needs_the_retry_budget(pair):
    """Else every failure of a fleet would double the load on another."""
    gateway = await pair(retries={"budget_ratio": 0})
    for _ in range(30):
        gateway.script(dropped())
        if (await gateway.post(chat())).status == 502:
            break
    else:
        raise AssertionError("the budget knows no end")


@pytest.mark.parametrize("reply", [status(400), status(422)])
async def test_what_the_client_did_wrong_is_as_wrong_elsewhere(pair, reply):
    """An engine's own refusal of the request."""
    gateway = await pair()
    gateway.script(reply)
    assert (await gateway.post(chat())).status == 400 + 22 * (reply.status == 422)
    assert len(gateway.engines.requests) == 1


async def test_limits_are_no_trouble(pair):
    """Whoever is over its limit must not get past it by another name."""
    gateway = await pair()
    await gateway.limit(gateway.project, '{"rpm": 0}')
    assert (await gateway.post(chat())).status == 429
    assert not gateway.engines.requests


async def test_both_fail_and_the_first_is_told(pair):
    """It is what was asked for."""
    gateway = await pair()
    gateway.script(dropped(), status(503))
    got = await gateway.post(chat())
    assert (got.status, got.json["error"]["code"]) == (502, "replica_reset")
    assert got.header("x-warmlane-model") is None
    (record,) = await gateway.until_recorded(1)
    assert (record.model, record.outcome, record.charged_tokens) == ("small-a", "replica_error", 0)


async def test_after_content_nobody_stands_in(pair):
    """Another model's text would not go on where this one's stopped."""
    gateway = await pair()
    piece = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
    gateway.script(Reply([sse(json.dumps(piece)), Cut.RESET], headers=[("content-type", "text/event-stream")]))
    got = await gateway.post(chat(stream=True))
    assert "error" in got.body.decode()
    assert len(gateway.engines.requests) == 1


async def test_the_price_is_that_of_who_answered(pair):
    """The held money of the first is given back; a tenant with a budget pays for what it got."""
    models = [{**MODELS[0], **PRICES}, {"name": OTHER, "price_in": 10, "price_out": 20}]
    gateway = await pair(models=models)
    await gateway.limit(gateway.project, '{"usd_per_month": 1}')
    gateway.script(dropped(), answer("Hi"))
    await gateway.post(chat())
    (record,) = await gateway.until_recorded(1)
    expected = 10_000 * record.prompt_tokens + 20_000 * record.completion_tokens
    assert record.cost_nanousd == expected


async def test_a_fallback_without_a_price_is_none_for_whoever_has_a_budget(pair):
    """Money that cannot be counted is not spent; the failure is told."""
    gateway = await pair(models=[{**MODELS[0], **PRICES}, {"name": OTHER}])
    await gateway.limit(gateway.project, '{"usd_per_month": 1}')
    gateway.script(dropped())
    assert (await gateway.post(chat())).status == 502
    (record,) = await gateway.until_recorded(1)
    assert record.cost_nanousd in (0, None)
    await gateway.limit(gateway.project, "{}", level=Level.PROJECT)


async def test_a_client_that_leaves_while_another_stands_in_holds_nothing(pair):
    """The fixture looks whether anything is held."""
    gateway = await pair()
    gateway.script(dropped(), hung())
    client = await gateway.start(chat())
    await gateway.received(2)
    client.close()
    (record,) = await gateway.until_recorded(1)
    assert (record.outcome, record.model) == ("client_gone", OTHER)


async def test_a_conversation_stays_with_its_variant_and_both_get_some(pair):
    """A canary by weight: the tenant names the model, and is told who answered."""
    gateway = await pair(models=[{"name": "small-a", "weights": {"small-a": 1, OTHER: 1}}, {"name": OTHER}])
    for number in range(24):
        for turn in ("", " and more"):
            got = await gateway.post(chat(f"conversation {number}", user=turn))
            assert got.status == 200
    served = [index for index, _ in asked_of(gateway)]
    assert served[::2] == served[1::2]
    assert {0, 1} == set(served)
    records = await gateway.until_recorded(48)
    assert {record.model for record in records} == {"small-a", OTHER}
    assert {record.requested_model for record in records} == {"small-a"}


async def test_a_canary_that_is_away_harms_nobody(pair):
    """Its conversations are answered by the one with more weight, under the name that was asked for; not the other way."""
    models = [{"name": "small-a", "weights": {"small-a": 3, OTHER: 2}}, {"name": OTHER}]
    gateway = await pair(models=models)
    gateway.parts.fleet.drain("r2")
    for number in range(12):
        got = await gateway.post(chat(f"conversation {number}"))
        assert (got.status, got.header("x-warmlane-model")) == (200, None)
    gateway.parts.fleet.resume("r2")
    gateway.parts.fleet.drain("r1")
    statuses = {(await gateway.post(chat(f"conversation {number}"))).status for number in range(12)}
    assert statuses == {200, 503}


async def test_a_reload_changes_who_stands_in(pair):
    """As everything about models does."""
    gateway = await pair()
    changed = gateway.gateway.settings.model_copy(
        update={"models": tuple(one.model_copy(update={"fallbacks": ()}) for one in gateway.gateway.settings.models)}
    )
    gateway.gateway.apply(changed)
    gateway.script(dropped())
    assert (await gateway.post(chat())).status == 502


REPLICA = {"name": "r", "model": "a", "engine": "vllm", "url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([{"name": "a", "fallbacks": ["a"]}], "fallbacks of a: it cannot be its own"),
        ([{"name": "a", "fallbacks": ["x"]}], "fallbacks of a: x is no model"),
        ([{"name": "a", "aliases": ["x"], "mirror": {"model": "x", "share": 0.5}}], "mirror of a: x is no model"),
        ([{"name": "a", "mirror": {"model": "a", "share": 0.5}}], "mirror of a: it cannot be its own"),
        ([{"name": "a", "fallbacks": ["b", "b"]}, {"name": "b"}], "b stands more than once"),
        ([{"name": "a", "weights": {"a": 0}}], "weights of a: one of them must be above 0"),
        ([{"name": "a", "weights": {"b": 1}, **PRICES}, {"name": "b"}], "it has a price, so b needs one too"),
        ([{"name": "a", "weights": {"a": -1}}], "greater than or equal to 0"),
        ([{"name": "a", "fallbacks": [f"m{n}" for n in range(9)]}], "at most 8"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_read(models, words):
    """With the model and the key in the sentence."""
    with pytest.raises(ValueError, match=words):
        ConfigFile(replicas=[REPLICA], models=models)


async def test_a_copy_goes_to_the_mirror_and_nobody_gets_its_answer(pair):
    """Charged to nobody, in no record but the request's own; counted for the operator."""
    gateway = await pair(models=[{"name": "small-a", "mirror": {"model": OTHER, "share": 0.5}}, {"name": OTHER}])
    for _ in range(4):
        assert (await gateway.post(chat("Hi", stream=True))).status == 200
    await gateway.received(6)
    await gateway.until_quiet()
    asked = [model for _, model in asked_of(gateway)]
    assert (asked.count("engine/small-a"), asked.count("engine/small-b")) == (4, 2)
    copied = next(json.loads(one.body) for index, one in gateway.engines.requests if index == 1)
    assert "stream" not in copied
    records = await gateway.until_recorded(4)
    assert {record.model for record in records} == {"small-a"}
    assert "warmlane_mirrored_total" in {name for name, _, _ in gateway.parts.traffic.gauges()}
    assert sum(number for _, _, number in gateway.parts.traffic.gauges()) == 2


async def test_a_copy_waits_for_no_seat(pair):
    """A mirror that is full is left out; the client notices nothing."""
    models = [{"name": "small-a", "mirror": {"model": OTHER, "share": 1}}, {"name": OTHER}]
    gateway = await pair(models=models, seats=1)
    gateway.parts.fleet.drain("r2")
    assert (await gateway.post(chat())).status == 200
    await gateway.until_quiet()
    assert [labels["outcome"] for _, labels, _ in gateway.parts.traffic.gauges()] == ["left_out"]


@pytest.mark.parametrize("reply", [dropped(), status(500)])
async def test_a_copy_that_fails_fails_alone(pair, reply):
    """Its engine's trouble is the mirror's."""
    gateway = await pair(models=[{"name": "small-a", "mirror": {"model": OTHER, "share": 1}}, {"name": OTHER}])
    gateway.engines.all[1].default = lambda _: reply
    assert (await gateway.post(chat())).status == 200
    await gateway.until_quiet()
    assert [labels["outcome"] for _, labels, _ in gateway.parts.traffic.gauges()] == ["failed"]


async def test_copies_under_way_end_when_the_gateway_stops(pair):
    """No client waits for them, so they hold up nobody."""
    gateway = await pair(models=[{"name": "small-a", "mirror": {"model": OTHER, "share": 1}}, {"name": OTHER}])
    gateway.engines.all[1].default = hung()
    assert (await gateway.post(chat())).status == 200
    await gateway.until(lambda: gateway.in_flight["mirrored"] == 1)
    gateway.gateway.drain()
    await gateway.until_quiet()
    await asyncio.sleep(0)
