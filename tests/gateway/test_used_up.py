"""A limit that has nothing left refuses before the body: it is neither waited for nor read, and the connection is in order."""

import json

import pytest

from policies.store import Level
from tests.gateway.kit import MODEL, chat
from tests.gateway.test_token_limits import tokens, used
from tests.scripted_engine import answer

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
PRICED = [{"name": MODEL, "price_in": 1000, "price_cached": 100, "price_out": 4000}]  # USD a million: 1 mUSD a token
LIMITS = {"rpm": 1, "tpm": 30, "tokens_per_day": 30, "usd_per_month": 0.09}
each_limit = pytest.mark.parametrize("name", LIMITS)
each_level = pytest.mark.parametrize("level", [Level.PROJECT, Level.ORGANIZATION], ids=["project", "organization"])
SHOWN = {"rpm": "x-ratelimit-remaining-requests", "tpm": "x-ratelimit-remaining-tokens"}


async def used_up(launch, name, level=Level.PROJECT, **options):
    """A gateway whose project has used up its limit: by one request of 10 prompt tokens and 20 of output."""
    gateway = await launch(models=PRICED)
    of = gateway.project if level is Level.PROJECT else gateway.organization
    await gateway.limit(of, json.dumps({name: LIMITS[name], **options}), level)
    gateway.script(tokens(20))
    assert (await gateway.post(chat(max_tokens=20))).status == 200
    return gateway


def head(gateway, *lines, length=1_000_000):
    """A request without its body."""
    whole = ["POST /v1/chat/completions HTTP/1.1", "host: g", f"authorization: Bearer {gateway.key}"]
    return "\r\n".join([*whole, f"content-length: {length}", *lines, "", ""]).encode()


def assert_told(got, name, level):
    """Which limit, that nothing is left, and when to come back."""
    assert (got.status, got.code, got.error["type"]) == (429, name, "rate_limit_error")
    assert f"the {level.value}" in got.error["message"]
    assert "0 are left; try again in" in got.error["message"]
    assert int(got.header("retry-after")) >= 1
    if name in SHOWN:
        assert got.header(SHOWN[name]) == "0"


@both_ways
@each_level
@each_limit
async def test_the_body_is_not_waited_for(launch, way, name, level):
    """The answer comes to the head alone. What follows is thrown away: until it closes, or until the next request."""
    gateway = await used_up(launch, name, level)
    client = await gateway.connect()
    client.write(head(gateway, length=100_000))
    got = await client.answer()
    assert_told(got, name, level)
    client.write(b"x" * 100_000)
    if way == "hot":
        assert got.header("connection") == "close"
        assert await client.until_closed() == b""
    else:
        client.send(chat(), key=gateway.key)
        assert (await client.answer()).status == 429
    assert gateway.records[-1].limit == f"{level.value}.{name}"
    assert len(gateway.engines.requests) == 1
    assert gateway.gateway._bodies.held_bytes == 0


@each_limit
async def test_a_body_is_not_asked_for(launch, name):
    """No 100 Continue for what is refused anyway."""
    gateway = await used_up(launch, name)
    client = await gateway.connect()
    client.write(head(gateway, "expect: 100-continue"))
    assert (await client.answer()).status == 429


@both_ways
@each_limit
async def test_what_came_with_its_body_keeps_its_connection(launch, way, name):
    """Nothing of the body is left on it: the next request is told as the first."""
    gateway = await used_up(launch, name)
    client = await gateway.connect()
    for _ in range(2):
        client.send(chat(max_tokens=20), key=gateway.key)
        got = await client.answer()
        assert (got.status, got.header("connection")) == (429, None)


@each_limit
async def test_the_body_is_not_read_for_it(launch, name):
    """A body that is no JSON is told the same, so nobody read it; nothing is counted."""
    gateway = await used_up(launch, name)
    before = used(gateway, name)
    got = await gateway.post(b"{" * 200_000)
    assert_told(got, name, Level.PROJECT)
    assert used(gateway, name) == before


@each_limit
async def test_in_shadow_mode_nobody_is_refused_before_the_body(launch, name):
    """It is read, served, and the record says what would have happened."""
    gateway = await used_up(launch, name, shadow=True)
    client = await gateway.connect()
    body = json.dumps(chat(max_tokens=20)).encode()
    client.write(head(gateway, length=len(body)))
    await gateway.until(lambda: gateway.gateway._bodies.held_bytes == 0)
    client.write(body)
    assert (await client.answer()).status == 200
    assert gateway.records[-1].limit == f"shadow.project.{name}"


@both_ways
async def test_what_was_refused_by_its_head_stays_refused_when_room_is_made_meanwhile(launch, way, monkeypatch):
    """Its body was not read, so there is nothing else to say; nothing is counted."""
    gateway = await used_up(launch, "tokens_per_day")
    quotas, moment = gateway.parts.quotas, gateway.gateway._moment()
    rejected = quotas.used_up(gateway.parts.directory.tenant(gateway.project), moment)
    await gateway.limit(gateway.project, '{"rpm": 5}')
    monkeypatch.setattr(quotas, "used_up", lambda *_: rejected)
    client = await gateway.connect()
    client.write(head(gateway))
    got = await client.answer()
    assert_told(got, "tokens_per_day", Level.PROJECT)
    assert (got.header("x-ratelimit-remaining-requests"), used(gateway, "rpm")) == ("4", 1)


async def test_who_has_something_left_is_waited_for(launch):
    """One token is something: what the request needs is known when it is read."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tokens_per_day": 31}')
    gateway.script(tokens(20), answer("a"))
    await gateway.post(chat(max_tokens=20))
    client = await gateway.connect()
    body = json.dumps(chat(max_tokens=20)).encode()
    client.write(head(gateway, "expect: 100-continue", length=len(body)))
    assert (await client.head())[0] == 100
    client._head = None
    client.write(body)
    got = await client.answer()
    assert (got.status, got.code) == (429, "tokens_per_day")
    assert "1 are left and this request needs about" in got.error["message"]
