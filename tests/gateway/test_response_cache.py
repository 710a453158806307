"""The response cache through HTTP: who gets an earlier answer, in which form, at what cost, and what is never kept."""

import asyncio
import json

import anthropic
import httpx2
import openai
import pytest

from policies.store import Level
from routing import hedge
from tests.gateway.kit import MODEL, chat, completion, message, respond
from tests.gateway.test_token_limits import used
from tests.scripted_engine import Cut, Reply, answer, dropped, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
ON = {"response_cache": {"max_mb": 4}}


@pytest.fixture
async def caching(launch):
    """Starts gateways whose project takes part: `await caching(limits='{…}')`."""

    async def start(limits='{"response_cache": "repeatable"}', **options):
        gateway = await launch(**ON | options)
        await gateway.limit(gateway.project, limits)
        return gateway

    return start


def greedy(text="Hello", **fields):
    """A chat whose answer is to be the same every time."""
    return chat(text, temperature=0, **fields)


def results(*answers):
    """What their headers say of the cache."""
    return [one.header("x-warmlane-cache") for one in answers]


@both_ways
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
async def test_one_entry_answers_both_ways(caching, first, second):
    """Same text, same usage, same form as an engine's; the engine is asked once."""
    gateway = await caching()
    gateway.script(answer("Hel", "lo", cached=3))
    usage = {True: {"stream_options": {"include_usage": True}}, False: {}}
    got = await gateway.post(greedy(stream=first, **usage[first]))
    again = await gateway.post(greedy(stream=second, **usage[second]))
    assert results(got, again) == ["miss", "hit"]
    assert (again.status, again.text, again.usage) == (200, "Hello", got.usage)
    assert (again.is_stream, again.header("age")) == (second, "0")
    if first == second:
        assert again.body == got.body
    if second:
        assert (again.is_done, again.roles, again.chunks[0]["object"]) == (True, 1, "chat.completion.chunk")
    assert len(gateway.engines.requests) == 1


@both_ways
async def test_official_clients_read_what_is_given_again(caching):
    """Tools, several choices, both clients, both ways."""
    gateway = await caching()
    gateway.script(answer("Hel", "lo"), answer("He", "y"))
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=10) as http:
        client = openai.AsyncOpenAI(base_url=gateway.url, api_key=gateway.key, max_retries=0, http_client=http)
        asked = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "seed": 1}
        for _ in range(2):
            got = await client.chat.completions.create(**asked)
            assert (got.choices[0].message.content, got.usage.total_tokens) == ("Hello", 12)
            stream = await client.chat.completions.create(**asked, stream=True)
            assert "".join([one.choices[0].delta.content or "" async for one in stream]) == "Hello"
        other = anthropic.AsyncAnthropic(
            base_url=gateway.url.removesuffix("/v1"), api_key=gateway.key, max_retries=0, http_client=http
        )
        asked = {
            "model": MODEL,
            "max_tokens": 9,
            "messages": [{"role": "user", "content": "b"}],
            "extra_body": {"temperature": 0},
        }
        for _ in range(2):
            assert (await other.messages.create(**asked)).content[0].text == "Hey"
            async with other.messages.stream(**asked) as events:
                assert await events.get_final_text() == "Hey"
    assert len(gateway.engines.requests) == 2


async def test_every_surface_that_generates_takes_part(caching):
    """Completions, responses and messages; a response is kept under an id of its own each time."""
    gateway = await caching()
    for path, body in (
        ("/v1/completions", completion(temperature=0)),
        ("/v1/responses", respond(temperature=0)),
        ("/v1/messages", message(temperature=0)),
    ):
        gateway.script(answer("Hello"))
        answers = [await gateway.post(body, path=path) for _ in range(2)]
        assert results(*answers) == ["miss", "hit"], path
        if path == "/v1/responses":
            ids = {one.json["id"] for one in answers}
            assert len(ids) == 2
            for one in ids:
                assert (await gateway.get(f"{path}/{one}")).json["output"][0]["content"][0]["text"] == "Hello"


async def test_an_answer_that_is_given_again_costs_no_tokens_and_counts_as_a_request(caching):
    """Nor does it wait for tokens that are used up, or for a seat."""
    gateway = await caching('{"response_cache": "all", "rpm": 4, "tpm": 40}', seats=1)
    gateway.script(answer("a", prompt_tokens=20))
    await gateway.post(chat(max_tokens=4))
    assert used(gateway, "tpm") == 21
    gate = asyncio.Event()
    gateway.script(answer("b", prompt_tokens=20, gates={0: gate}))
    waiting = await gateway.start(chat("other", max_tokens=4))
    await gateway.received(2)
    again = await gateway.post(chat(max_tokens=4))
    assert (again.status, again.header("x-ratelimit-remaining-requests")) == (200, "1")
    gate.set()
    await waiting.answer()
    assert used(gateway, "tpm") == 42
    assert (await gateway.post(chat(max_tokens=4))).code == "tpm"  # nothing is left: refused as any request
    records = {record.request_id: record for record in gateway.records}
    record = records[again.header("x-request-id")]
    assert (record.from_cache, record.outcome, record.attempts, record.replica) == (True, "finished", 0, None)
    assert (record.charged_tokens, record.prompt_tokens, record.ttft_s, record.queue_s) == (0, None, None, None)
    assert sum(one.from_cache for one in gateway.records) == 1


async def test_rpm_counts_them(caching):
    """So that a loop against the cache is bounded, too."""
    gateway = await caching('{"response_cache": "all", "rpm": 2}')
    gateway.script(answer("a"))
    codes = [(await gateway.post(chat())).status for _ in range(3)]
    assert codes == [200, 200, 429]


async def test_nobody_takes_part_who_did_not_say_so(launch):
    """Neither where the gateway keeps nothing, nor a project without the word."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"response_cache": "all"}')
    assert results(*[await gateway.post(greedy()) for _ in range(2)]) == [None, None]
    gateway = await launch(**ON)
    assert results(*[await gateway.post(greedy()) for _ in range(2)]) == [None, None]
    await gateway.limit(gateway.organization, '{"response_cache": "repeatable"}', Level.ORGANIZATION)
    assert results(*[await gateway.post(greedy()) for _ in range(2)]) == ["miss", "hit"]
    assert results(*[await gateway.post(chat()) for _ in range(2)]) == [None, None]
    await gateway.limit(gateway.project, '{"response_cache": "off"}')
    assert results(await gateway.post(greedy())) == [None]
    await gateway.limit(gateway.project, '{"response_cache": "all"}')
    assert results(*[await gateway.post(chat()) for _ in range(2)]) == ["miss", "hit"]
    assert (await gateway.get("/v1/limits")).json["response_cache"] == "all"


async def test_no_project_is_given_what_another_was_told(caching):
    """Not even one that shares the engines' cache on purpose; within a project every key is."""
    gateway = await caching('{"response_cache": "all", "sharing_group": "both"}')
    other = await gateway.new_key(await gateway.new_project('{"response_cache": "all", "sharing_group": "both"}'))
    mine = await gateway.new_key()
    gateway.script(answer("first"), answer("second"))
    got = [await gateway.post(chat(), key=key) for key in (gateway.key, mine, other, other)]
    assert [one.text for one in got] == ["first", "first", "second", "second"]
    assert results(*got) == ["miss", "hit", "miss", "hit"]


async def test_a_request_may_decline(caching):
    """`no-cache` is answered anew and that is kept; `no-store` is as if there were no cache; `max-age` bounds the age."""
    gateway = await caching()
    gateway.script(*[answer(word) for word in ("a", "b", "c", "d")])

    async def ask(wish=None):
        got = await gateway.post(greedy(), headers=[("cache-control", wish)] if wish else [])
        return got.text, got.header("x-warmlane-cache")

    assert await ask("no-store") == ("a", "miss")
    assert await ask() == ("b", "miss")
    assert await ask("no-cache") == ("c", "miss")
    assert await ask() == await ask("max-age=60") == ("c", "hit")
    assert await ask("no-store") == ("d", "miss")
    assert await ask() == ("c", "hit")


def an_error(request):
    """An engine that says 200 and fails inside."""
    return Reply([sse('{"error": {"code": 500}}')], headers=[("content-type", "text/event-stream")])


@pytest.mark.parametrize(
    ("stream", "script"),
    [
        (False, status(400)),
        (False, answer("a", cut_before=0, cut=Cut.RESET)),
        (False, answer("a", finish_reason="content_filter")),
        (True, status(400)),
        (True, an_error),
        (True, answer("a", "b", cut_before=2, cut=Cut.RESET)),
        (True, answer("a", has_finish=False)),
        (True, answer("a", finish_reason="abort")),
    ],
)
async def test_only_what_is_complete_is_kept(caching, stream, script):
    """A failure, a cut, a filter, an end without a reason: the next one asks an engine."""
    gateway = await caching(retries={"max_attempts": 1})
    gateway.script(script)
    await gateway.post(greedy(stream=stream))
    assert len(gateway.parts.kept_answers) == 0
    gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0
    assert results(*[await gateway.post(greedy(stream=stream)) for _ in range(2)]) == ["miss", "hit"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_its_client_did_not_wait_for_is_not_kept(caching, stream):
    """The engine was told to stop in the middle."""
    gateway = await caching()
    gateway.script(answer("x", "y", gates={2 if stream else 0: asyncio.Event()}))
    client = await gateway.start(greedy(stream=stream))
    request = await gateway.received()
    client.reset()
    await request.until_aborted()
    await gateway.until_quiet()
    assert len(gateway.parts.kept_answers) == 0
    assert results(*[await gateway.post(greedy(stream=stream)) for _ in range(2)]) == ["miss", "hit"]


async def test_another_models_answer_is_not_given_as_its_own(caching):
    """What a fallback said is kept as the fallback's, whoever it stood in for."""
    models = [{"name": MODEL, "fallbacks": ["spare"]}, {"name": "spare"}]
    gateway = await caching(engines=2, replica=[{}, {"model": "spare"}], models=models, retries={"max_attempts": 1})
    gateway.script(status(500), answer("spare's"), answer("its own"))
    first = await gateway.post(greedy())
    assert (first.text, first.header("x-warmlane-model")) == ("spare's", "spare")
    assert [(await gateway.post(greedy())).text for _ in range(2)] == ["its own"] * 2
    again = await gateway.post(greedy() | {"model": "spare"})
    assert (again.text, *results(again)) == ("spare's", "hit")
    gateway.script(status(500))
    other = await gateway.post(greedy(), headers=[("cache-control", "max-age=0")])
    assert (other.status, *results(other)) == (200, "miss")
    gateway.script(status(500))
    assert len(gateway.parts.kept_answers) == 2


async def test_a_retry_is_kept_once_and_whole(caching):
    """What a failed attempt had said is not in it."""
    gateway = await caching(engines=2)
    gateway.script(dropped(), answer("Hel", "lo"))
    body = greedy(stream=True)
    assert [(await gateway.post(body)).text for _ in range(2)] == ["Hello", "Hello"]
    assert len(gateway.engines.requests) == 2
    assert len(gateway.parts.kept_answers) == 1


async def test_of_two_attempts_side_by_side_the_complete_one_is_kept(caching, monkeypatch):
    """Each is written down by itself, so nothing of the other is mixed in."""
    monkeypatch.setattr(hedge, "MIN_SEEN", 0)
    gateway = await caching(engines=2, hedging={"max_share": 0.5})
    gateway.script(answer("slow", gates={0: asyncio.Event()}), answer("Hel", "lo"))
    assert [(await gateway.post(greedy(stream=True))).text for _ in range(2)] == ["Hello", "Hello"]
    assert len(gateway.engines.requests) == 2
    assert [record.from_cache for record in await gateway.until_recorded(2)] == [False, True]


async def test_what_cannot_be_turned_is_asked_anew_and_kept_beside(caching):
    """Unknown members have one form; then both forms are there."""
    gateway = await caching()

    def strange(request):
        reply = answer("Hello")(request)
        reply.steps = [step.replace(b'"index": 0', b'"token_ids": [1], "index": 0') for step in reply.steps]
        return reply

    gateway.script(strange, strange)
    got = [await gateway.post(greedy(stream=stream)) for stream in (False, True, False, True)]
    assert results(*got) == ["miss", "miss", "hit", "hit"]
    assert [one.body for one in got[:2]] == [one.body for one in got[2:]]
    assert len(gateway.parts.kept_answers) == 1


async def test_what_is_too_large_is_not_kept(caching):
    """Neither as an entry nor beside others: bounds in bytes, the longest unused go first."""
    gateway = await caching(response_cache={"max_mb": 4, "max_entry_kb": 1, "max_mb_per_project": 3 / 1024})
    kept = gateway.parts.kept_answers
    gateway.script(answer("x" * 2000))
    await gateway.post(greedy())
    assert (len(kept), kept.counts["unfit"]) == (0, 1)
    for number in range(6):
        await gateway.post(greedy(str(number)))
        assert kept.num_bytes <= 3 * 1024
    assert (len(kept) + kept.counts["evicted"], kept.counts["kept"]) == (6, 6)
    assert results(await gateway.post(greedy("0")), await gateway.post(greedy("5"))) == ["miss", "hit"]


async def test_an_answer_ends_with_its_time_its_project_and_its_settings(caching):
    """And a reload acts at once: without room nothing is looked up any more."""
    gateway = await caching(response_cache={"max_mb": 4, "ttl_s": 60})
    kept = gateway.parts.kept_answers
    await gateway.post(greedy())
    (entry,) = kept._answers.values()
    entry.kept_at -= 59.0
    assert (await gateway.post(greedy())).header("age") == "59"
    entry.kept_at -= 2.0
    assert results(await gateway.post(greedy())) == ["miss"]
    settings = gateway.parts.settings
    off = settings.response_cache.model_copy(update={"max_mb": 0})
    gateway.gateway.apply(settings.model_copy(update={"response_cache": off}))
    assert results(await gateway.post(greedy())) == [None]
    gateway.gateway.apply(settings)
    assert results(await gateway.post(greedy())) == ["hit"]
    await gateway.store.delete_project(gateway.project, cascade=True)
    await gateway.parts.directory.refresh()
    assert len(kept) == 0


async def test_an_entry_that_nobody_can_read_is_dropped(caching):
    """It cannot happen; were it to, the engine is asked."""
    gateway = await caching()
    await gateway.post(greedy())
    (entry,) = gateway.parts.kept_answers._answers.values()
    entry.whole = b"x"
    gateway.script(answer("new"), answer("newer"))
    assert [(await gateway.post(greedy())).text for _ in range(2)] == ["new", "new"]
    entry = next(iter(gateway.parts.kept_answers._answers.values()))
    entry.whole = b"x"
    assert (await gateway.post(greedy(stream=True))).text == "newer"


async def test_metrics_count_what_became_of_requests(caching):
    """By a closed set of words."""
    gateway = await caching()
    for _ in range(3):
        await gateway.post(greedy())
    rows = {(name, *labels.values()): value for name, labels, value in gateway.parts.kept_answers.gauges()}
    assert (rows["warmlane_response_cache_total", "hit"], rows["warmlane_response_cache_total", "miss"]) == (2, 1)
    assert rows["warmlane_response_cache_answers",] == 1
    assert 'warmlane_response_cache_total{result="kept"} 1' in gateway.gateway.metrics.text().decode()


async def test_a_long_answer_is_given_again_whole(caching):
    """It is written at once: what may be kept bounds it."""
    gateway = await caching()
    gateway.script(answer(*["word " * 200] * 150))
    first, again = [await gateway.post(greedy(stream=True)) for _ in range(2)]
    assert again.body == first.body
    assert len(again.body) > 128 * 1024
    assert json.loads(again.payloads[-2])["choices"][0]["finish_reason"] == "stop"
