"""The ledger of real processes: what clients and engines saw is in it once, whoever was killed in between."""

import asyncio
import contextlib
import csv
import functools
import json
import random
import shutil
import sqlite3

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli import app
from policies.ledger import Group, Retention, Wanted
from policies.redis_ledger import RedisLedger
from policies.sqlite_ledger import SqliteLedger
from tests.gateway.client import Client
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures
from tests.scripted_engine import ScriptedEngine, answer
from tests.warmlane_process import PATIENCE_S, commands

MODEL = "scripted-model"
ALL = Wanted(0, 10**10)
HOLD_S = 0.005  # so that a kill always meets requests that an engine has

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def usage_of(number):
    """What the engine uses for request `number`: (prompt tokens, cached, output)."""
    return 20 + number % 13, number % 7, 1 + number % 5


def reply(request):
    """An answer after a moment, whose usage follows from the number in the prompt."""
    gate = asyncio.Event()
    asyncio.get_running_loop().call_later(HOLD_S, gate.set)
    number = int(request.json["messages"][0]["content"].rpartition(" ")[2])
    prompt_tokens, cached, output = usage_of(number)
    return answer(*["x"] * output, prompt_tokens=prompt_tokens, cached=cached, gates={0: gate})(request)


def config_of(engine, store="", processes=1, drain_s=2):
    """A gateway in front of one engine whose model has a price."""
    return f"""
    [gateway]
    processes = {processes}
    drain_s = {drain_s}
    [store]
    url = "{store}"
    [[models]]
    name = "{MODEL}"
    price_in = 2.0
    price_cached = 0.5
    price_out = 8.0
    [[replicas]]
    name = "r1"
    model = "{MODEL}"
    engine = "vllm"
    url = "{engine.url}"
    seats = 64
    """


class System:
    """A running `warmlane gateway`. `done`: request id -> number of what a client saw the end of."""

    def __init__(self, running, engine):
        self.running = running
        self.engine = engine
        self.port = int(running.fields["url"].rpartition(":")[2].removesuffix("/v1"))
        self.key = running.fields["key"]
        self.done = {}
        self.num_broken = 0

    async def ask(self, number, **fields):
        """One request on its own connection: its answer, None if the gateway died."""
        client = None
        try:
            client = await Client.open(self.port)
            body = {"model": MODEL, "messages": [{"role": "user", "content": f"say {number}"}], **fields}
            client.send(body, key=self.key)
            found = await client.answer()
        except (OSError, asyncio.IncompleteReadError):
            return None
        finally:
            if client is not None:
                client.close()
        return found

    async def ask_until_done(self, number):
        """Ask again until the end is seen; the request is streamed if its number is even."""
        while True:
            found = await self.ask(number, stream=number % 2 == 0)
            if found is not None and found.status == 200 and (found.is_done if number % 2 == 0 else found.is_complete):
                self.done[found.header("x-request-id")] = number
                return
            self.num_broken += 1
            await asyncio.sleep(0.02)

    async def kill_a_gateway(self):
        """kill -9, at once."""
        victims = [one for one in self.running.children() if "gateway.process" in " ".join(one.cmdline())]
        victims[0].kill()

    def get(self, path):
        """A question with the team's own key."""
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.get(f"http://127.0.0.1:{self.port}/v1{path}", headers=headers, timeout=PATIENCE_S)

    def sent_ids(self):
        """The ids of all requests that the engine got."""
        return {dict(one.headers)["x-request-id"].rpartition("-")[0] for one in self.engine.requests}


@contextlib.asynccontextmanager
async def system_of(home, **options):
    """A ready system; it ends kindly."""
    async with ScriptedEngine(model=MODEL) as engine:
        engine.default = reply
        with commands(home) as start:
            running = start("gateway", config=config_of(engine, **options))
            await asyncio.to_thread(running.until_ready)
            system = System(running, engine)
            await until(lambda: _is_serving(system))
            yield system
            assert await asyncio.to_thread(running.end) == 0, running.stderr


async def _is_serving(system):
    return (await asyncio.to_thread(system.get, "/models")).json()["data"]


async def until(condition):
    """Wait for what other processes bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  # nobody tells: it is seen from outside
            await asyncio.sleep(0.02)


async def ask_many(system, num_requests, num_clients, num_kills):
    """So many requests by so many clients, with kills at chance moments in between."""
    numbers = iter(range(num_requests))
    kill_at = sorted(random.sample(range(num_requests // 10, num_requests), num_kills))

    async def go_on():
        for number in numbers:
            await system.ask_until_done(number)

    async def kill():
        for moment in kill_at:
            while len(system.done) < moment:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.001)
            await system.kill_a_gateway()

    await asyncio.gather(kill(), *(go_on() for _ in range(num_clients)))


async def all_rows(ledger):
    """Every row by id."""
    rows, after = [], None
    while True:
        page = await ledger.rows(ALL, after=after)
        rows += page.rows
        after = page.next_after
        if after is None:
            break
    assert len({row.request_id for row in rows}) == len(rows)
    return {row.request_id: row for row in rows}


async def check(ledger, system, files):
    """Who saw the end, and whatever an engine got, is there once, with the engine's own numbers or the reservation."""
    rows = await all_rows(ledger)
    assert set(system.done) <= set(rows)
    assert system.sent_ids() <= set(rows)
    for request_id, row in rows.items():
        if row.recovered:
            assert row.charged_tokens == row.reserved_tokens > 0
            assert row.cost_nanousd > 0
        elif row.outcome == "finished":
            number = system.done.get(request_id)
            if number is not None:
                prompt_tokens, cached, output = usage_of(number)
                assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (prompt_tokens, cached, output)
                assert row.cost_nanousd == (prompt_tokens - cached) * 2000 + cached * 500 + output * 8000
                assert row.charged_tokens > 0
    (total,) = (await ledger.usage(ALL, Group.PROJECT)).rows
    assert total.totals.requests == len(rows)
    assert total.totals.charged_tokens == sum(row.charged_tokens for row in rows.values())
    assert total.totals.cost_nanousd == sum(row.cost_nanousd or 0 for row in rows.values())
    assert files == []
    return rows


async def test_kill_nine_loses_no_request_and_charges_none_twice(tmp_path):
    """Within 1,000 requests: afterwards each request whose client saw the end marker is in the ledger exactly once."""
    home = tmp_path / "home"
    async with system_of(home) as system:
        await ask_many(system, 1000, 24, 2)
    async with await SqliteLedger.open(home / "warmlane.ledger.sqlite3") as ledger:
        rows = await check(ledger, system, list((home / "ledger").iterdir()))
    assert len(system.done) == 1000
    assert any(row.recovered for row in rows.values())
    print(f"{len(rows)} rows, {sum(row.recovered for row in rows.values())} recovered, {system.num_broken} asked again")


@pytest.mark.chaos
@pytest.mark.usefixtures("redis_program")
async def test_each_of_several_gateways_is_replayed(tmp_path, redis_server):  # noqa: F811
    """Two gateways on one Redis, each with its own file: one dies, and nothing is lost or charged twice."""
    home = tmp_path / "home"
    async with system_of(home, store=redis_server.url, processes=2) as system:
        await ask_many(system, 300, 16, 2)
    async with await RedisLedger.open(redis_server.url, Retention(30, 400)) as ledger:
        await check(ledger, system, list((home / "ledger").iterdir()))
    assert len(system.done) == 300


@pytest.mark.usefixtures("redis_program")
async def test_every_gateway_knows_a_request_whichever_served_it(tmp_path, redis_server):  # noqa: F811
    """The first asking after the end already: at another gateway it waits until the ledger has the request."""
    async with system_of(tmp_path / "home", store=redis_server.url, processes=2) as system:
        for number in range(3):
            found = await system.ask(number, stream=number % 2 == 0)
            path = f"/requests/{found.header('x-request-id')}"
            # Each on a connection of its own, which the kernel gives to either gateway.
            answers = await asyncio.gather(*(asyncio.to_thread(system.get, path) for _ in range(12)))
            assert [one.status_code for one in answers] == [200] * 12
            assert len({one.content for one in answers}) == 1
        assert (await asyncio.to_thread(system.get, "/requests/req_none")).status_code == 404


async def test_a_ledger_that_is_removed_while_requests_run_loses_none(tmp_path):
    """Both the file that the supervisor fills and the folder that gateways write to; told in the log and the numbers."""
    home = tmp_path / "home"
    async with system_of(home) as system:

        async def count(number):
            return (await asyncio.to_thread(system.running.admin, "/statistics"))["ledger"][number]

        async def is_restored(times):
            await system.ask_until_done(len(system.done))
            return await count("restored") == times

        async def is_taken():
            return await count("waiting") == 0

        for removal in (1, 2):
            for _ in range(10):
                await system.ask_until_done(len(system.done))
            shutil.rmtree(home / "ledger")
            for path in home.glob("warmlane.ledger.sqlite3*"):
                path.unlink()
            await until(functools.partial(is_restored, 2 * removal))  # the gateway's and the supervisor's
        await until(is_taken)
        assert system.running.stderr.count("ledger.file_removed") == 2
        assert system.running.stderr.count("ledger.store_removed") == 2
    async with await SqliteLedger.open(home / "warmlane.ledger.sqlite3") as ledger:
        await check(ledger, system, list((home / "ledger").iterdir()))
    assert len(system.done) >= 22


async def test_a_killed_supervisor_leaves_everything_to_the_next(tmp_path):
    """Kill -9 of the whole: the next run charges what was left, before it serves anybody."""
    home = tmp_path / "home"
    async with ScriptedEngine(model=MODEL) as engine:
        engine.default = reply
        with commands(home) as start:
            running = start("gateway", config=config_of(engine))
            await asyncio.to_thread(running.until_ready)
            system = System(running, engine)
            await until(lambda: _is_serving(system))
            held = asyncio.Event()
            engine.default = answer("x", gates={0: held})
            asking = asyncio.ensure_future(system.ask(5))
            await engine.received(1)
            for child in running.children():
                child.kill()
            running.process.kill()
            await asyncio.to_thread(running.process.wait)
            assert await asking is None
            engine.default = reply
            running = start("gateway", config=config_of(engine))
            await asyncio.to_thread(running.until_ready)
            usage = await asyncio.to_thread(running.admin, "/usage?group_by=model")
            assert usage["data"][0]["requests"] == 1
            assert usage["data"][0]["charged_tokens"] > 0
            assert await asyncio.to_thread(running.end) == 0


async def test_a_kind_end_settles_what_is_open(tmp_path):
    """P45: streams that the end of the grace cuts are in the ledger with what they used, not recovered."""
    home = tmp_path / "home"
    async with system_of(home, drain_s=0.2) as system:
        held = asyncio.Event()
        system.engine.default = answer("a", "b", "c", prompt_tokens=20, gates={3: held})
        asking = asyncio.ensure_future(system.ask(0, stream=True))
        await system.engine.received(1)
    found = await asking
    assert not found.is_done
    async with await SqliteLedger.open(home / "warmlane.ledger.sqlite3") as ledger:
        row = await ledger.row(found.header("x-request-id"))
    assert (row.outcome, row.recovered) == ("stopped", False)
    assert row.charged_tokens > 0
    assert list((home / "ledger").iterdir()) == []


async def test_usage_is_told_by_api_shell_and_own_key(tmp_path):
    """The admin plane, `warmlane usage`, an export, a backup and the team's own view tell the same."""
    home = tmp_path / "home"
    async with system_of(home) as system:
        project = (await asyncio.to_thread(system.running.admin, "/keys"))["data"][0]["project_id"]
        found = [await system.ask(number, stream=True) for number in range(5)]
        ids = [one.header("x-request-id") for one in found]
        own = await asyncio.to_thread(system.get, f"/requests/{ids[3]}")
        prompt_tokens, cached, _ = usage_of(3)
        assert own.json()["prompt_tokens"] == prompt_tokens
        assert (own.json()["outcome"], own.json()["cached_tokens"]) == ("finished", cached)
        await asyncio.to_thread(
            system.running.admin, f"/projects/{project}/limits", "PUT", {"rpm": 5, "tokens_per_day": 10_000}
        )
        refused = await system.ask(9)
        assert refused.status == 429
        own = (await asyncio.to_thread(system.get, f"/requests/{refused.header('x-request-id')}")).json()
        assert (own["outcome"], own["reason"], own["limit"]) == ("refused", "rpm", "project.rpm")

        async def is_taken():
            page = await asyncio.to_thread(system.running.admin, f"/usage?project_id={project}")
            return page["data"] and page["data"][0]["requests"] == 6

        await until(is_taken)
        usage = (await asyncio.to_thread(system.running.admin, f"/usage?project_id={project}"))["data"][0]
        expected = [usage_of(number) for number in range(5)]
        assert usage["group"] == project
        assert usage["refused"] == 1
        assert usage["prompt_tokens"] == sum(one[0] for one in expected)
        assert usage["cached_tokens"] == sum(one[1] for one in expected)
        assert usage["completion_tokens"] == sum(one[2] for one in expected)
        cost = sum((prompt - hit) * 2 + hit * 0.5 + out * 8 for prompt, hit, out in expected) / 1e6
        assert usage["cost_usd"] == pytest.approx(cost)
        own = (await asyncio.to_thread(system.get, "/usage?group_by=lane")).json()["data"][0]
        assert own == {**usage, "group": "interactive"}
        shown = await shell(home, "usage", "--json", "--group-by", "project")
        assert json.loads(shown)["data"] == [usage]
        table = await shell(home, "usage", "--project", "demo")
        assert project in table
        assert "demo" in table
        out = tmp_path / "rows.csv"
        assert f"6 requests are in {out}" in await shell(home, "usage", "export", "--out", str(out))
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert [row["request_id"] for row in rows[:5]] == ids
        assert rows[5]["outcome"] == "refused"
        await shell(home, "backup", str(tmp_path / "copies"), "--home", str(home))
    with contextlib.closing(sqlite3.connect(tmp_path / "copies" / "warmlane.ledger.sqlite3")) as copy:
        assert copy.execute("SELECT count(*) FROM requests").fetchone() == (6,)
    with contextlib.closing(sqlite3.connect(tmp_path / "copies" / "warmlane.sqlite3")) as copy:
        assert copy.execute("SELECT count(*) FROM keys").fetchone() == (1,)


async def test_a_restart_grants_no_second_allowance(tmp_path):
    """A gateway that was killed comes back with what was used counted."""
    home = tmp_path / "home"
    async with system_of(home) as system:
        project = (await asyncio.to_thread(system.running.admin, "/keys"))["data"][0]["project_id"]
        limits = {"rpm": 8, "tokens_per_day": 100_000, "usd_per_month": 5}
        await asyncio.to_thread(system.running.admin, f"/projects/{project}/limits", "PUT", limits)
        for number in range(5):
            assert (await system.ask(number)).status == 200
        before = await used(system)
        assert all(before.values())
        await system.kill_a_gateway()
        await until(lambda: is_back(system))
        assert await used(system) == before
        statuses = [(await system.ask(number)).status for number in range(6)]
        assert statuses == [200, 200, 200, 429, 429, 429]


async def used(system):
    """How much of the budgets of the day and the month is used."""
    limits = (await asyncio.to_thread(system.get, "/limits")).json()["data"]
    return {one["limit"]: one["used"] for one in limits if one["limit"] in {"tokens_per_day", "usd_per_month"}}


async def is_back(system):
    try:
        return await _is_serving(system)
    except httpx.TransportError:
        return False


async def shell(home, *words):
    """The stdout of a `warmlane` command that succeeds."""
    ran = await asyncio.to_thread(CliRunner().invoke, app, words, env={"WARMLANE_HOME": str(home)})
    assert ran.exit_code == 0, ran.output
    return ran.stdout
