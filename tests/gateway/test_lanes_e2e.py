"""Lanes: who may ask for which, and who waits for whom (case P13)."""

import asyncio

import pytest

from policies.lane import Lane
from tests.gateway.kit import chat
from tests.scripted_engine import answer

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


@both_ways
async def test_a_lane_is_a_wish_within_the_key(launch):
    """The header and `service_tier` choose a lane up to the key's own; above it is 403, nonsense is 400."""
    gateway = await launch()
    standard = await gateway.new_key(max_lane=Lane.STANDARD, default_lane=Lane.BULK)
    cases = [
        (gateway.key, {}, None, 200, "interactive"),
        (gateway.key, {}, "bulk", 200, "bulk"),
        (gateway.key, {"service_tier": "flex"}, None, 200, "bulk"),
        (standard, {}, None, 200, "bulk"),
        (standard, {}, "Standard", 200, "standard"),
        (standard, {}, "interactive", 403, None),
        (standard, {"service_tier": "priority"}, None, 403, None),
        (standard, {}, "express", 400, None),
    ]
    for key, extra, lane, code, told in cases:
        headers = [("x-warmlane-lane", lane)] if lane else []
        got = await gateway.post(chat(**extra), key=key, headers=headers)
        assert (got.status, got.header("x-warmlane-lane")) == (code, told)
    assert [request.json["priority"] for _, request in gateway.engines.requests] == [0, 2, 2, 2, 1]


async def test_bulk_never_takes_the_reserved_seats(launch):
    """P13, thin: with all of bulk's seats taken an interactive request starts at once, and bulk waits its turn."""
    gateway = await launch(seats=4, lanes={"interactive": {"reserved_seats": 1}})
    gate = asyncio.Event()
    gateway.script(*[answer("bulk", gates={0: gate})] * 3, answer("person"), *[answer("bulk")] * 17)
    bulk = [await gateway.start(chat(f"{number}"), headers=[("x-warmlane-lane", "bulk")]) for number in range(20)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 17)
    assert gateway.in_flight["leases"] == 3
    got = await gateway.post(chat("person"))
    assert got.text == "person"
    gate.set()
    assert [(await client.answer()).text for client in bulk] == ["bulk"] * 20
    assert max(gateway.records, key=lambda record: record.queue_s or 0).lane == "bulk"


async def test_a_seat_that_frees_goes_to_the_higher_lane(launch):
    """P13: who came later in a higher lane is served before bulk that waits."""
    gateway = await launch(seats=1, lanes={"interactive": {"reserved_seats": 0}})
    gate = asyncio.Event()
    gateway.script(answer("first", gates={0: gate}))
    clients = [await gateway.start(chat("first"))]
    await gateway.received()
    for number, lane in enumerate(["bulk", "standard", "interactive"], start=1):
        clients.append(await gateway.start(chat(lane), headers=[("x-warmlane-lane", lane)]))
        await gateway.until(lambda number=number: gateway.in_flight["queued"] == number)
    gate.set()
    for client in clients:
        assert (await client.answer()).status == 200
    asked = [request.json["messages"][0]["content"] for _, request in gateway.engines.requests]
    assert asked == ["first", "interactive", "standard", "bulk"]
