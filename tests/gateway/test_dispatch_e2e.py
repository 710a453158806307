"""Whose turn it is, through the whole gateway: caps, weights, floods, pinned lanes, and what those who wait are told."""

import asyncio
import re
from collections import Counter

import pytest

from gateway.model_queue import ModelQueue
from routing.seat_control import SeatControl
from tests.gateway.kit import chat, now
from tests.scripted_engine import answer

ONE_SEAT = {"seats": 1, "lanes": {"interactive": {"reserved_seats": 0}}}
BULK = [("x-warmlane-lane", "bulk")]
STANDARD = [("x-warmlane-lane", "standard")]


def asked(gateway):
    """What the engines were asked, in order."""
    return [request.json["messages"][0]["content"] for _, request in gateway.engines.requests]


class Batches:
    """How many requests of each tenant an engine had at once. `most`: by (tenant's salt, engine)."""

    def __init__(self, gateway, gate):
        self.most = Counter()
        self._gate = gate
        for engine in gateway.engines.all:
            engine.fallback = self._replier(engine)

    def _replier(self, engine):
        def reply(request):
            salt = request.json["cache_salt"]
            running = [one for one in engine.requests if not (one.finished.is_set() or one.aborted.is_set())]
            held = sum(one.json["cache_salt"] == salt for one in running)
            self.most[salt, engine] = max(self.most[salt, engine], held)
            is_held = request.json["messages"][0]["content"].startswith("held")
            return answer("done", gates={0: self._gate} if is_held else {})(request)

        return reply

    def of(self, gateway, project):
        """The tenant's peak in each engine."""
        salt = gateway.parts.directory.tenant(project).cache_salt
        return [self.most[salt, engine] for engine in gateway.engines.all]


async def test_a_batch_cap_holds_in_every_replica_and_holds_up_nobody_else(launch):
    """Two seats of each batch and no more, while six of eight are free: the rest waits, and all are answered."""
    gateway = await launch(engines=2, seats=8)
    await gateway.limit(gateway.project, '{"batch_cap": {"interactive": 2}}')
    other = await gateway.new_project()
    gate = asyncio.Event()
    batches = Batches(gateway, gate)
    held = [await gateway.start(chat(f"held {number}")) for number in range(12)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 8)
    assert gateway.in_flight["leases"] == gateway.in_flight["turns"] == 4
    got = await gateway.post(chat("other"), key=await gateway.new_key(other))
    assert got.status == 200
    assert gateway.in_flight["queued"] == 8
    gate.set()
    assert [(await client.answer()).text for client in held] == ["done"] * 12
    assert batches.of(gateway, gateway.project) == [2, 2]


async def test_a_batch_cap_counts_each_lane_by_itself(launch):
    """The bulk cap is full; the same tenant's people are served."""
    gateway = await launch(seats=8)
    await gateway.limit(gateway.project, '{"batch_cap": {"bulk": 1}}')
    gate = asyncio.Event()
    Batches(gateway, gate)
    held = [await gateway.start(chat(f"held {number}"), headers=BULK) for number in range(3)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    assert (await gateway.post(chat("person"))).status == 200
    gate.set()
    assert [(await client.answer()).status for client in held] == [200] * 3


async def test_a_raised_batch_cap_acts_on_those_who_wait(launch):
    """The administrator raises it, then lifts it: nobody has to ask again."""
    gateway = await launch(seats=8)
    await gateway.limit(gateway.project, '{"batch_cap": {"interactive": 1}}')
    gate = asyncio.Event()
    Batches(gateway, gate)
    held = [await gateway.start(chat(f"held {number}")) for number in range(6)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 5)
    await gateway.limit(gateway.project, '{"batch_cap": {"interactive": 3}}')
    assert (gateway.in_flight["leases"], gateway.in_flight["queued"]) == (3, 3)
    await gateway.limit(gateway.project, "{}")
    assert (gateway.in_flight["leases"], gateway.in_flight["queued"]) == (6, 0)
    gate.set()
    assert [(await client.answer()).status for client in held] == [200] * 6


async def test_a_batch_cap_of_nothing_refuses_those_who_wait_and_those_who_come(launch):
    """429 that names the limit, without advice to come back; the request in the batch is finished."""
    gateway = await launch(seats=8)
    await gateway.limit(gateway.project, '{"rpm": 10, "batch_cap": {"interactive": 1}}')
    gate = asyncio.Event()
    Batches(gateway, gate)
    first = await gateway.start(chat("held first"))
    await gateway.received()
    waits = await gateway.start(chat("held second"))
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    await gateway.limit(gateway.project, '{"rpm": 10, "batch_cap": {"interactive": 0}}')
    for refused in (await waits.answer(), await gateway.post(chat("third"))):
        assert (refused.status, refused.code, refused.header("retry-after")) == (429, "batch_cap", None)
        assert refused.header("x-ratelimit-remaining-requests") == "9"
    gate.set()
    assert (await first.answer()).status == 200


async def test_another_try_is_under_the_limits_of_now(launch):
    """A request that comes back to the queue after its engine broke must not bring its old cap with it."""
    gateway = await launch(engines=2, seats=8, retries={"budget_ratio": 1.0})
    await gateway.limit(gateway.project, '{"batch_cap": {"interactive": 1}}')
    gate, hold = asyncio.Event(), asyncio.Event()
    gateway.script(answer("cut", gates={0: gate}, cut_before=1), answer("held", gates={0: hold}))
    clients = [await gateway.start(chat(f"{number}")) for number in range(2)]
    await gateway.received(2)
    await gateway.limit(gateway.project, '{"batch_cap": {"interactive": 2}}')
    gate.set()
    assert (await clients[0].answer()).status == 200, (
        "the other replica has its second seat, beside the one that is held"
    )
    hold.set()
    assert (await clients[1].answer()).status == 200
    assert gateway.records[0].attempts == 2


async def fill(gateway, keys, num, **fields):
    """`num` requests of each key wait behind one that holds the only seat; the gate that lets it go, and the clients."""
    gate = asyncio.Event()
    gateway.script(answer("first", gates={0: gate}))
    clients = [await gateway.start(chat("first"))]
    await gateway.received()
    for number in range(num):
        for name, key in keys.items():
            clients.append(await gateway.start(chat(f"{name} {number:02}"), key=key, **fields))
    await gateway.until(lambda: gateway.in_flight["queued"] == num * len(keys))
    return gate, clients


async def tenants(gateway, **limits):
    """Name to key of new tenants with these limits."""
    return {name: await gateway.new_key(await gateway.new_project(document)) for name, document in limits.items()}


async def test_service_is_divided_by_the_tenants_weights(launch):
    """2:1 while both wait, and what is left is served to the end."""
    gateway = await launch(**ONE_SEAT)
    keys = await tenants(gateway, heavy='{"weight": 2}', light='{"weight": 1}')
    gateway.engine.fallback = answer("x", prompt_tokens=1000)
    gate, clients = await fill(gateway, keys, 30)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 61
    served = Counter(text.split()[0] for text in asked(gateway)[1:37])
    assert served["heavy"] == pytest.approx(24, abs=1)


async def test_cached_prompts_make_a_tenants_requests_cheaper(launch):
    """Charged is what the engine computed: at three quarters cached, one tenant has four requests to the other's one."""
    gateway = await launch(**ONE_SEAT)
    keys = await tenants(gateway, warm="{}", cold="{}")

    def reply(request):
        is_warm = request.json["messages"][0]["content"].startswith("warm")
        return answer("x", prompt_tokens=4000, cached=3000 if is_warm else 0)(request)

    gateway.engine.fallback = reply
    gate, clients = await fill(gateway, keys, 30)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 61
    served = Counter(text.split()[0] for text in asked(gateway)[1:31])
    assert served["warm"] == pytest.approx(24, abs=1)


async def test_a_flood_delays_another_tenant_by_no_more_than_its_turn(launch):
    """Forty wait, and who comes after them is next."""
    gateway = await launch(**ONE_SEAT)
    gate, clients = await fill(gateway, {"flood": gateway.key}, 40)
    keys = await tenants(gateway, other="{}")
    clients.append(await gateway.start(chat("other"), key=keys["other"]))
    await gateway.until(lambda: gateway.in_flight["queued"] == 41)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 42
    assert asked(gateway).index("other") <= 2


async def test_a_lane_may_be_pinned_to_replicas_by_label(launch):
    """Bulk goes where the label is, waits there though the other replica is free, and a person goes anywhere."""
    night = {"pool": "night"}
    gateway = await launch(
        engines=2, seats=2, replica=[{}, {"labels": night}], lanes={"bulk": {"labels": night}, "interactive": {}}
    )
    gate = asyncio.Event()
    Batches(gateway, gate)
    held = [await gateway.start(chat(f"held {number}"), headers=BULK) for number in range(4)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 3)
    assert (await gateway.post(chat("person"))).status == 200
    gate.set()
    assert [(await client.answer()).status for client in held] == [200] * 4
    assert [len(engine.requests) for engine in gateway.engines.all][1] >= 4
    assert all(one.json["priority"] == 0 for one in gateway.engines.all[0].requests)


async def test_a_pinned_lane_whose_replicas_are_missing_is_refused_at_once(launch):
    """No replica has the label: nothing to wait an hour for."""
    gateway = await launch(lanes={"bulk": {"labels": {"pool": "night"}}})
    got = await gateway.post(chat(), headers=BULK)
    assert (got.status, got.code) == (503, "no_replica_not_labelled")
    assert "the bulk lane goes only to replicas with pool=night" in got.error["message"]
    assert (await gateway.post(chat())).status == 200


async def test_bulk_that_waited_long_is_served_as_standard(launch):
    """Behind standard by its weight, before it once it has waited for `lift_after_s`."""
    lanes = {
        "interactive": {"reserved_seats": 0},
        "standard": {"weight": 100},
        "bulk": {"weight": 0.01, "lift_after_s": 0.1},
    }
    gateway = await launch(seats=1, lanes=lanes)
    gate, clients = await fill(gateway, {"bulk": gateway.key}, 1, headers=BULK)
    entered_at = now()
    for number in range(3):
        clients.append(await gateway.start(chat(f"standard {number}"), headers=STANDARD))
    await gateway.until(lambda: gateway.in_flight["queued"] == 4 and now() > entered_at + 0.1)
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 5
    assert asked(gateway) == ["first", "bulk 00", "standard 0", "standard 1", "standard 2"]
    assert [request.json["priority"] for _, request in gateway.engines.requests] == [0, 1, 1, 1, 1]


async def test_waiting_streams_are_told_their_place(launch, quick_commit):
    """From 1, moving up as others go, with a time that fits the place; then it is told only that it lives."""
    gateway = await launch(**ONE_SEAT, timeouts={"keepalive_s": 0.05})
    gates = [asyncio.Event() for _ in range(4)]
    gateway.script(*[answer("done", gates={0: gate}) for gate in gates])
    clients = [await gateway.start(chat("first", stream=True))]
    await gateway.received()
    for number in range(3):
        clients.append(await gateway.start(chat(f"{number}", stream=True)))
        await gateway.until(lambda number=number: gateway.in_flight["queued"] == number + 1)
    for place, client in enumerate(clients[1:], start=1):
        told = await client.until("queued position=")
        assert re.findall(rb": queued position=(\d+) eta_ms=\d+\n\n", told)[0] == b"%d" % place
    gates[0].set()
    await clients[3].until("queued position=2")
    for gate in gates[1:]:
        gate.set()
    for place, client in enumerate(clients):
        got = await client.answer()
        assert got.text == "done"
        assert got.is_done
        places = re.findall(r"queued position=(\d+) eta_ms=(\d+)", " ".join(got.comments))
        positions = [int(position) for position, _ in places]
        assert positions == sorted(positions, reverse=True)
        assert all(0 < int(eta_ms) < 60_000 for _, eta_ms in places)
        assert max(positions, default=0) == place


async def test_a_lane_under_pressure_is_shed_with_advice(launch):
    """A person has waited for half of the longest wait: bulk is turned away at once, and told when to return."""
    lanes = {"interactive": {"reserved_seats": 0, "max_wait_s": 0.6}}
    gateway = await launch(seats=1, lanes=lanes)
    gate, clients = await fill(gateway, {"person": gateway.key}, 1)
    waits_since = now()
    await gateway.until(lambda: now() > waits_since + 0.31)
    shed = await gateway.post(chat("bulk"), headers=BULK)
    assert (shed.status, shed.code) == (503, "shed")
    assert int(shed.header("retry-after")) >= 1
    late = await clients[1].answer()
    assert (late.status, late.code, late.header("retry-after")) == (503, "queue_timeout", "1")
    gate.set()
    assert (await clients[0].answer()).status == 200


async def test_a_deadline_that_cannot_be_met_is_refused_at_once(launch):
    """From the drain rate that was seen: 504 with the time when a place will be free, not after the deadline."""
    gateway = await launch(**ONE_SEAT)
    gate, clients = await fill(gateway, {"person": gateway.key}, 12)
    began_at = now()
    hold = asyncio.Event()
    gateway.script(*[answer("x")] * 9, answer("x", gates={0: hold}))
    await gateway.until(lambda: now() > began_at + 0.6)
    gate.set()
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    refused = await gateway.post(chat("hasty"), headers=[("x-warmlane-deadline-ms", "100")])
    assert (refused.status, refused.code) == (504, "deadline")
    assert int(refused.header("retry-after")) >= 1
    assert "cannot be met" in refused.json["error"]["message"]
    hold.set()
    assert [(await client.answer()).status for client in clients] == [200] * 13


async def test_bulk_uses_up_no_allowance_of_a_persons_lane(launch):
    """P35, thin: bulk's own cap refuses bulk, atomically and with its name; people are served, and all is given back."""
    gateway = await launch(seats=8)
    await gateway.limit(gateway.project, '{"concurrency": {"bulk": 5, "interactive": 1}, "batch_cap": {"bulk": 2}}')
    gate = asyncio.Event()
    Batches(gateway, gate)
    bulk = [await gateway.start(chat(f"held {number}"), headers=BULK) for number in range(5)]
    await gateway.until(lambda: gateway.in_flight["queued"] == 3)
    for _ in range(3):
        refused = await gateway.post(chat("more"), headers=BULK)
        assert (refused.status, refused.code) == (429, "concurrency")
        assert (await gateway.post(chat("person"))).status == 200
    bulk.pop().reset()
    await gateway.until(lambda: gateway.in_flight["reservations"] == 4)
    bulk.append(await gateway.start(chat("held again"), headers=BULK))
    await gateway.until(lambda: gateway.in_flight["reservations"] == 5)
    assert (await gateway.post(chat("more"), headers=BULK)).status == 429
    gate.set()
    assert [(await client.answer()).status for client in bulk] == [200] * 5


@pytest.mark.parametrize("num_read", [1, 3])
async def test_a_client_that_leaves_is_charged_for_what_was_made(launch, monkeypatch, num_read):
    """Leaving early must not be a discount: the prompt and every token counted so far."""
    gateway = await launch()
    costs = []
    end = ModelQueue.end
    monkeypatch.setattr(ModelQueue, "end", lambda queue, turn, now: (costs.append(turn.cost), end(queue, turn, now)))
    gate = asyncio.Event()
    gateway.script(answer("a", "b", "c", "d", "e", gates={num_read + 1: gate}))
    client = await gateway.start(chat("word " * 1000, stream=True))
    await client.until('"abc"'[num_read : num_read + 1])
    client.reset()
    await gateway.until_quiet()
    ((_, decision),) = gateway.parts.recorder._remembered.values()
    assert costs == [decision.uncached_tokens + 2 * num_read]


async def test_a_flood_fills_no_other_tenants_place_in_the_queue(launch, quick_commit):
    """The flood's next request is refused as its own; another tenant's waits, and the flood's newest gives way to it.

    Each is told once: a plain request by its status, a stream that has begun by an event. Nothing is counted.
    """
    gateway = await launch(**ONE_SEAT | {"lanes": {"interactive": {"reserved_seats": 0, "queue": 3}}})
    await gateway.limit(gateway.project, '{"rpm": 10}')
    gate, clients = await fill(gateway, {"flood": gateway.key}, 1)
    plain = await gateway.start(chat("plain"))
    await gateway.until(lambda: gateway.in_flight["queued"] == 2)
    stream = await gateway.start(chat("stream", stream=True))
    assert (await stream.head())[0] == 200
    own = await gateway.post(chat("own"))
    assert (own.status, own.code) == (429, "queue_full")
    assert "this project's own share of the interactive lane's queue is full: 3 of its" in own.json["error"]["message"]
    keys = await tenants(gateway, other="{}", third="{}")
    clients.append(await gateway.start(chat("other"), key=keys["other"]))
    told = await stream.answer()
    assert (told.error["code"], told.code, told.is_done) == ("429", "queue_full", False)
    assert re.search(r"own share .* gave up its place; try again in \d+ s$", told.error["message"])
    clients.append(await gateway.start(chat("third"), key=keys["third"]))
    gave_way = await plain.answer()
    assert (gave_way.status, gave_way.code) == (429, "queue_full")
    assert int(gave_way.header("retry-after")) >= 1
    assert gave_way.header("x-ratelimit-remaining-requests") == "8", "of the flood's own only two have their places"
    assert gateway.in_flight["queued"] == 3
    gate.set()
    assert [(await client.answer()).status for client in clients] == [200] * 4
    assert [record.outcome for record in gateway.records].count("refused") == 3


async def test_bulk_that_gave_way_to_people_is_first_of_its_tenant_again(launch, monkeypatch):
    """It was cancelled for others: those that came after it do not overtake it, and its client notices nothing."""
    too_many = []
    monkeypatch.setattr(SeatControl, "excess", lambda _seats, _replica: len(too_many))
    monkeypatch.setattr(SeatControl, "preempt", lambda _seats, _replica, runs: runs[: too_many.pop()])
    gateway = await launch(**ONE_SEAT)
    gateway.script(answer("never", gates={0: asyncio.Event()}))
    clients = [await gateway.start(chat("bulk 0"), headers=BULK)]
    await gateway.received()
    for number, (text, headers) in enumerate([("bulk 1", BULK), ("bulk 2", BULK), ("person", [])], start=1):
        clients.append(await gateway.start(chat(text), headers=headers))
        await gateway.until(lambda number=number: gateway.in_flight["queued"] == number)
    too_many.append(1)
    gateway.parts.bulk_runs.give_way("r1")
    assert [(await client.answer()).status for client in clients] == [200] * 4
    assert asked(gateway) == ["bulk 0", "person", "bulk 0", "bulk 1", "bulk 2"]
    assert Counter(record.attempts for record in gateway.records) == {1: 3, 2: 1}
