"""Every kind of limit at every level: a refusal names it, what is left and when to come back; a shadow only counts."""

import asyncio
import json
import re

import pytest

from policies.lane import Lane
from policies.store import Level
from tests.gateway.kit import MODEL, chat
from tests.gateway.test_token_limits import tokens
from tests.scripted_engine import answer

PRICED = [{"name": MODEL, "price_in": 1000, "price_cached": 100, "price_out": 4000}]  # USD a million: 1 mUSD a token
# What is set, the least and most seconds to wait, and how the refusal of a second request of 10 + 20 tokens begins.
KINDS = {
    "rpm": (1, (1, 61), "the {scope} may send 1 requests in 60 seconds: 0 are left"),
    "tpm": (40, (1, 61), "the {scope} may use 40 tokens in 60 seconds: 10 are left and this request needs about"),
    "tokens_per_day": (
        40,
        (1, 86_400),
        "the {scope} may use 40 tokens a day (UTC): 10 are left and this request needs",
    ),
    "usd_per_month": (
        0.1,
        (1, 31 * 86_400),
        "the {scope} may spend 0.1 USD a month (UTC): 0.01 are left and this request may cost",
    ),
    "concurrency": (
        {"interactive": 1},
        (1, 1),
        "the {scope} may have 1 requests in flight in the interactive lane, queued ones included: 0 are left",
    ),
}
each_kind = pytest.mark.parametrize("name", KINDS)
each_level = pytest.mark.parametrize("level", [Level.PROJECT, Level.ORGANIZATION], ids=["project", "organization"])


async def second_answer(launch, name, level, **options):
    """The gateway and what the second request of a project gets whose limit lets one pass."""
    gateway = await launch(models=PRICED)
    of = gateway.project if level is Level.PROJECT else gateway.organization
    await gateway.limit(of, json.dumps({name: KINDS[name][0], **options}), level)
    if name != "concurrency":
        gateway.script(tokens(20), tokens(20))
        assert (await gateway.post(chat(max_tokens=20))).status == 200
        return gateway, await gateway.post(chat(max_tokens=20))
    gate = asyncio.Event()
    gateway.script(answer("held", gates={0: gate}))
    first = await gateway.start(chat())
    await gateway.received()
    got = await gateway.post(chat())
    gate.set()
    assert (await first.answer()).status == 200
    await gateway.until_quiet()
    return gateway, got


def counted(gateway, reason):
    """Of the metric of refusals, by reason."""
    gateway.parts.recorder.flush()
    lines = gateway.gateway.metrics.text().decode().splitlines()
    found = [line for line in lines if line.startswith(f'warmlane_limit_refusals_total{{reason="{reason}"}}')]
    return float(found[0].split()[-1]) if found else 0.0


def record_of(gateway, got):
    """What is known of the request that got this answer."""
    return gateway.parts.recorder.find(got.header("x-request-id"))[0]


@each_level
@each_kind
async def test_a_refusal_names_its_limit_what_is_left_and_when_to_come_back(launch, name, level):
    """In the body, the headers, the record, the metric and to the team itself."""
    gateway, got = await second_answer(launch, name, level)
    _, (least_s, most_s), text = KINDS[name]
    assert (got.status, got.code, got.error["type"]) == (429, name, "rate_limit_error")
    assert got.error["message"].startswith(text.format(scope=level.value))
    told_s = int(re.search(r"try again in (\d+) s", got.error["message"])[1])
    assert least_s <= told_s <= most_s
    assert int(got.header("retry-after")) == min(
        told_s, 3600
    )  # clamped for clients that sleep as long as they are told
    record = record_of(gateway, got)
    assert (record.outcome, record.reason, record.limit) == ("refused", name, f"{level.value}.{name}")
    assert counted(gateway, name) == 1.0
    row = (await gateway.get(f"/v1/requests/{record.request_id}")).json
    assert (row["status"], row["reason"], row["limit"]) == (429, name, f"{level.value}.{name}")


@each_level
@each_kind
async def test_a_shadow_lets_through_and_counts_what_it_would_have_refused(launch, name, level):
    """By its name, in the record and the metric; the headers tell of no limit that does not hold."""
    gateway, got = await second_answer(launch, name, level, shadow=True)
    assert got.status == 200
    record = record_of(gateway, got)
    assert (record.outcome, record.limit) == ("finished", f"shadow.{level.value}.{name}")
    assert (counted(gateway, f"shadow_{name}"), counted(gateway, name)) == (1.0, 0.0)
    assert not [key for key, _ in got.headers if key.startswith("x-ratelimit")]
    shown = [one for one in (await gateway.get("/v1/limits")).json["data"] if one["limit"] == name]
    assert {one["shadow"] for one in shown if one["scope"] == level.value} == {True}


@pytest.mark.parametrize("asked", ["interactive", "standard"])
async def test_a_key_only_narrows_the_lanes(launch, asked):
    """A key has no counted limits of its own: its lanes are what may be narrowed, and a refusal says which it may use."""
    gateway = await launch()
    key = await gateway.new_key(max_lane=Lane.BULK, default_lane=Lane.BULK)
    got = await gateway.post(chat(), key=key, headers=[("x-warmlane-lane", asked)])
    assert got.status == 403
    assert "bulk" in got.error["message"]
    assert (await gateway.post(chat(), key=key)).header("x-warmlane-lane") == "bulk"


@each_level
async def test_a_surface_that_is_not_allowed_is_refused_by_name(launch, level):
    """403 before anything is counted, and the team sees which it may use; the others are served as ever."""
    gateway = await launch(models=PRICED)
    of = gateway.project if level is Level.PROJECT else gateway.organization
    await gateway.limit(of, json.dumps({"surfaces": ["/v1/completions"], "rpm": 5}), level)
    got = await gateway.post(chat())
    assert (got.status, got.code, got.error["type"]) == (403, "surface_not_allowed", "permission_error")
    assert "/v1/chat/completions" in got.error["message"]
    assert record_of(gateway, got).outcome == "forbidden"
    assert gateway.engine.requests == []
    gateway.script(answer("x"))
    served = await gateway.post({"model": MODEL, "prompt": "hello"}, path="/v1/completions")
    assert (served.status, served.header("x-ratelimit-remaining-requests")) == (200, "4")
    assert (await gateway.get("/v1/limits")).json["surfaces"] == ["/v1/completions"]
