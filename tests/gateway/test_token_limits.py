"""Tokens and money through HTTP: reserved, settled once by what was really done, told in headers and records."""

import asyncio
import re

import pytest

from cache_affinity.ratio import TokenRatio
from policies.meters import Moment
from policies.store import Level
from tests.gateway.kit import MODEL, chat
from tests.scripted_engine import Cut, answer, dropped, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
PRICED = [{"name": MODEL, "price_in": 1000, "price_cached": 100, "price_out": 4000}]  # USD a million: 1 mUSD a token


def tokens(number):
    """An answer of so many tokens."""
    return answer(*["a"] * number)


def used(gateway, name="tpm", scope="project"):
    """What is counted of one limit now."""
    tenant = gateway.parts.directory.tenant(gateway.project)
    moment = Moment(gateway.parts.clock(), gateway.parts.unix())
    [found] = [
        one for one in gateway.parts.quotas.standings(tenant, moment) if (one.name, one.scope.value) == (name, scope)
    ]
    return found.used


def left(got):
    """The remaining tokens that an answer told."""
    return int(got.header("x-ratelimit-remaining-tokens"))


@both_ways
async def test_the_token_headers_are_limit_less_charged_less_reserved(launch, way):
    """P20: whole answers tell what is settled, streams what is reserved; failed and aborted ones count too."""
    gateway = await launch(retries={"max_attempts": 1})
    await gateway.limit(gateway.project, '{"tpm": 10000}')
    gateway.script(tokens(20), tokens(20), status(500))
    got = await gateway.post(chat())
    assert (got.header("x-ratelimit-limit-tokens"), left(got)) == ("10000", 9970)
    assert re.fullmatch(r"[1-9]\d?s", got.header("x-ratelimit-reset-tokens"))
    streamed = await gateway.post(chat(stream=True, max_tokens=40))
    assert 9900 < left(streamed) < 9940  # its prompt as far as known, and 40 that it may answer
    assert used(gateway) == 60
    assert left(await gateway.post(chat())) == 9940  # a failed engine's work costs its tenant nothing
    gateway.script(answer("c", gates={2: asyncio.Event()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"c"')
    client.close()
    await gateway.until_quiet()
    [*_, gone] = gateway.records
    assert (gone.outcome, gone.completion_tokens, gone.is_estimated) == ("client_gone", 1, True)
    assert used(gateway) == 60 + gone.charged_tokens
    assert gone.charged_tokens == gone.prompt_tokens + 1


async def test_the_first_refusal_comes_when_the_headers_said_so(launch):
    """P20: with 25 left a request of at most 20 passes, and the next does not; nothing is counted by a refusal."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 100}')
    gateway.script(tokens(65))
    assert left(await gateway.post(chat(max_tokens=80))) == 25
    gateway.script(tokens(10))
    assert left(await gateway.post(chat(max_tokens=15))) == 5
    before = (used(gateway), used_requests(gateway))
    got = await gateway.post(chat(max_tokens=15))
    assert (got.status, got.code, got.error["type"]) == (429, "tpm", "rate_limit_error")
    assert "100 tokens in 60 seconds: 5 are left" in got.error["message"]
    assert 1 <= int(got.header("retry-after")) <= 61
    assert (left(got), used(gateway), used_requests(gateway)) == (5, *before)
    assert gateway.records[-1].limit == "project.tpm"
    assert gateway.records[-1].charged_tokens is None


def used_requests(gateway):
    """Requests counted in the minute, whatever limits there are."""
    return sum(one.used(gateway.parts.clock()) for one in gateway.parts.quotas.meters._minutes.values())


async def test_a_refused_token_limit_eats_nothing_of_the_others(launch):
    """P14: refused for its tokens after the request limit has passed, at either level; every counter is as before."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"rpm": 10, "tokens_per_day": 50, "tpm": 1000}', Level.ORGANIZATION)
    await gateway.limit(gateway.project, '{"rpm": 5, "tpm": 500, "concurrency": {"interactive": 2}}')
    gateway.script(tokens(30))
    await gateway.post(chat(max_tokens=30))
    standings = [used(gateway, *which) for which in EVERY]
    for _ in range(3):
        got = await gateway.post(chat(max_tokens=30))
        assert (got.status, got.code) == (429, "tokens_per_day")
        assert got.header("x-ratelimit-remaining-requests") == "4"
        assert [used(gateway, *which) for which in EVERY] == standings == [1, 1, 40, 40, 40, 40, 0]
    assert gateway.records[-1].limit == "organization.tokens_per_day"


EVERY = [
    ("rpm", "organization"),
    ("rpm", "project"),
    ("tpm", "organization"),
    ("tpm", "project"),
    ("tokens_per_day", "organization"),
    ("tokens_per_day", "project"),
    ("concurrency", "project"),
]


async def test_a_small_limit_is_not_made_impossible_by_a_guess(launch):
    """The first guess of an answer is 128 tokens; a limit of 60 must still let a short request in."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 60}')
    assert (await gateway.post(chat())).status == 200


async def test_a_prompt_above_the_limit_is_told_that_waiting_is_of_no_use(launch):
    """No Retry-After, and the message says why."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 60}')
    got = await gateway.post(chat("word " * 200))
    assert (got.status, got.code, got.header("retry-after")) == (429, "tpm", None)
    assert "waiting is of no use" in got.error["message"]


async def test_cached_tokens_are_weighed(launch):
    """With a discount of 3/4, 8 cached of 10 prompt tokens count as 2."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000, "cached_token_discount": 0.75}')
    gateway.script(answer("a", "b", cached=8))
    assert left(await gateway.post(chat())) == 1000 - (2 + 2 + 2)
    assert gateway.records[0].charged_tokens == 6


async def test_each_level_weighs_cached_tokens_by_its_own_word(launch):
    """A project's discount must not widen what its organisation allows."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"tpm": 1000}', Level.ORGANIZATION)
    await gateway.limit(gateway.project, '{"cached_token_discount": 1}')
    gateway.script(answer("a", "b", cached=8))
    await gateway.post(chat())
    assert (used(gateway), used(gateway, scope="organization")) == (4, 12)


async def test_money_is_counted_to_the_nanodollar(launch):
    """10 input of which 4 cached, and 2 output, at 1, 0.1 and 4 mUSD."""
    gateway = await launch(models=PRICED)
    await gateway.limit(gateway.project, '{"usd_per_month": 1}')
    gateway.script(answer("a", "b", cached=4))
    assert (await gateway.post(chat(max_tokens=50))).status == 200
    assert gateway.records[0].cost_nanousd == used(gateway, "usd_per_month") == 14_400_000


async def test_money_that_is_gone_is_refused_until_the_month_is_over(launch):
    """The refusal names limit, remaining and reset."""
    gateway = await launch(models=PRICED)
    await gateway.limit(gateway.project, '{"usd_per_month": 0.3, "time_zone": "Asia/Tokyo"}')
    gateway.script(tokens(60))
    assert (await gateway.post(chat(max_tokens=60))).status == 200
    got = await gateway.post(chat(max_tokens=60))
    assert (got.status, got.code, got.header("retry-after")) == (429, "usd_per_month", "3600")
    assert "0.3 USD a month (Asia/Tokyo): 0.05 are left" in got.error["message"]
    assert re.search(r"try again in \d+ s", got.error["message"])


async def test_a_model_without_a_price_is_closed_to_who_has_a_budget(launch):
    """What cannot be counted is not spent; without a budget it is served and has no cost."""
    gateway = await launch()
    assert (await gateway.post(chat())).status == 200
    assert gateway.records[0].cost_nanousd is None
    await gateway.limit(gateway.project, '{"usd_per_month": 1000, "rpm": 5}')
    got = await gateway.post(chat())
    assert (got.status, got.code, got.error["param"]) == (403, "model_not_priced", "model")
    assert "no price" in got.error["message"]
    assert used(gateway, "rpm") == 1
    assert (await gateway.received()).path.endswith("completions")
    assert len(gateway.engines.requests) == 1


@pytest.mark.parametrize("limits", ['{"tpm": 0}', '{"tokens_per_day": 0}', '{"usd_per_month": 0}'])
async def test_a_limit_of_zero_allows_nothing(launch, limits):
    """And promises nothing."""
    gateway = await launch(models=PRICED)
    await gateway.limit(gateway.project, limits)
    got = await gateway.post(chat())
    assert (got.status, got.header("retry-after")) == (429, None)


async def test_shadow_limits_let_through_and_tell(launch):
    """In the record and in the metric; the headers do not speak of a limit that does not hold."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 1, "tpm": 20, "shadow": true}')
    gateway.script(tokens(5), tokens(5), tokens(5))
    answers = [await gateway.post(chat(max_tokens=5)) for _ in range(3)]
    assert [got.status for got in answers] == [200] * 3
    assert answers[0].header("x-ratelimit-limit-requests") is None
    assert [record.limit for record in gateway.records] == [None, "shadow.project.rpm", "shadow.project.rpm"]
    assert [record.outcome for record in gateway.records] == ["finished"] * 3
    gateway.parts.recorder.flush()
    assert b'warmlane_limit_refusals_total{reason="shadow_rpm"} 2.0' in gateway.gateway.metrics.text()


async def test_shadow_tokens_let_through_and_tell(launch):
    """What a shadowed limit would have refused is not counted against it."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 20, "shadow": true}')
    gateway.script(*[tokens(5)] * 3)
    for _ in range(3):
        assert (await gateway.post(chat(max_tokens=5))).status == 200
    assert [record.limit for record in gateway.records] == [None, "shadow.project.tpm", "shadow.project.tpm"]
    assert used(gateway) == 15


async def test_a_projects_shadow_does_not_open_its_organisation(launch):
    """A lower level can only narrow."""
    gateway = await launch()
    await gateway.limit(gateway.organization, '{"rpm": 1}', Level.ORGANIZATION)
    await gateway.limit(gateway.project, '{"shadow": true}')
    assert [(await gateway.post(chat())).status for _ in range(2)] == [200, 429]
    assert gateway.records[-1].limit == "organization.rpm"


@pytest.mark.parametrize("stream", [True, False])
async def test_retries_are_charged_once(launch, stream):
    """P38: one fails after its prompt was read, one busy, the third serves: the third's work alone is charged."""
    gateway = await launch(engines=3, retries={"max_attempts": 3, "budget_ratio": 1})
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(dropped(), status(429), tokens(4))
    got = await gateway.post(chat(stream=stream))
    assert got.status == 200
    [record] = await gateway.until_recorded(1)
    assert (record.attempts, record.charged_tokens, used(gateway)) == (3, 14, 14)


@pytest.mark.parametrize("cut", [Cut.CLOSE, Cut.RESET])
async def test_an_engine_that_dies_is_charged_by_what_was_delivered(launch, cut):
    """P37: the prompt and the tokens that were streamed; the rest is given back."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(answer(*["a"] * 40, cut_before=31, cut=cut))
    got = await gateway.post(chat(stream=True))
    assert got.error is not None
    [record] = await gateway.until_recorded(1)
    assert 28 <= record.completion_tokens <= 31
    assert record.charged_tokens == record.prompt_tokens + record.completion_tokens == used(gateway)
    assert record.is_estimated


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_costs_the_prompt(launch, stream):
    """P37: free use by hanging up is not possible."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(answer("a", hold_head=asyncio.Event()))
    client = await gateway.start(chat("word " * 100, stream=stream))
    await gateway.received()
    client.close()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"
    assert 100 <= record.charged_tokens <= 100 + 200
    assert used(gateway) == record.charged_tokens


async def test_leaving_the_queue_costs_no_tokens(launch):
    """No engine has read the prompt; the place in the minute is used."""
    gateway = await launch(seats=1)
    await gateway.limit(gateway.project, '{"tpm": 1000, "rpm": 5}')
    gate = asyncio.Event()
    gateway.script(answer("held", gates={0: gate}))
    holder = await gateway.start(chat(max_tokens=10), key=await gateway.new_key(await gateway.new_project()))
    await gateway.received()
    waiting = await gateway.start(chat())
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    assert used(gateway) > 100
    waiting.close()
    await gateway.until(lambda: gateway.in_flight["queued"] == 0)
    await gateway.until_recorded(1)
    assert (used(gateway), used(gateway, "rpm")) == (0, 1)
    gate.set()
    await holder.answer()


async def test_an_engines_own_refusal_costs_no_tokens(launch):
    """Nothing was worked off."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(status(400))
    assert (await gateway.post(chat())).status == 400
    assert (used(gateway), gateway.records[0].charged_tokens) == (0, 0)


@pytest.mark.parametrize("usage", ["separate", "none"])
@pytest.mark.parametrize("stream", [True, False])
async def test_without_a_report_the_charge_is_estimated_and_says_so(launch, stream, usage):
    """An engine that counts nothing is charged by what was sent and what came."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 1000}')
    gateway.script(answer(*"abcdef", usage=usage, volunteers_usage=usage != "none"))
    assert (await gateway.post(chat(stream=stream, max_tokens=9))).status == 200
    [record] = await gateway.until_recorded(1)
    assert record.is_estimated is (usage == "none")
    assert record.charged_tokens == record.prompt_tokens + record.completion_tokens == used(gateway)
    assert record.completion_tokens == (6 if usage != "none" or stream else 2)  # by chunks, or by six bytes of text


async def test_output_is_learned_by_model_and_reserved_so(launch):
    """After many answers of 40 tokens about 40 are reserved, not the first guess."""
    gateway = await launch()
    gateway.script(*[tokens(40)] * 60)
    for _ in range(60):
        await gateway.post(chat())
    first, *_, last = gateway.records
    assert last.reserved_tokens < first.reserved_tokens - 70
    assert 40 <= last.reserved_tokens <= 60


@pytest.mark.parametrize(
    ("limits", "admitted"),
    [('{"rpm": 20}', 20), ('{"tokens_per_day": 400}', 20), ('{"tpm": 400, "concurrency": {"interactive": 64}}', 20)],
)
async def test_of_64_clients_at_once_exactly_as_many_pass_as_may(launch, monkeypatch, limits, admitted):
    """The race on one process: exactly N, whatever the order; each request here is 10 + 10 tokens."""
    gateway = await launch(seats=4)
    await gateway.limit(gateway.project, limits)
    gateway.engine.fallback = tokens(10)
    monkeypatch.setattr(TokenRatio, "tokens", lambda *_: 10)  # as the engine will count them
    answers = await asyncio.gather(*(gateway.post(chat(max_tokens=10)) for _ in range(64)))
    assert sorted(got.status for got in answers) == [200] * admitted + [429] * (64 - admitted)
    assert all(got.code in limits for got in answers if got.status == 429)


async def test_a_changed_limit_acts_on_what_was_used_before(launch):
    """Raised: more pass at once. Lowered below what is used: none, and nothing negative is told."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tokens_per_day": 50}')
    gateway.script(tokens(30))
    await gateway.post(chat(max_tokens=30))
    assert (await gateway.post(chat(max_tokens=30))).status == 429
    await gateway.limit(gateway.project, '{"tokens_per_day": 100}')
    gateway.script(tokens(20))
    assert left(await gateway.post(chat(max_tokens=30))) == 30
    await gateway.limit(gateway.project, '{"tokens_per_day": 10}')
    got = await gateway.post(chat(max_tokens=1))
    assert (got.status, left(got)) == (429, 0)
