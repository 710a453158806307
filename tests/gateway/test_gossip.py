"""Gateways that gossip over a real Redis: together they hit as one, without it they agree by hash, and they recover."""

import asyncio
import contextlib
import json

import pytest

from cache_affinity.gossip_wire import MAX_READ_BYTES
from cache_affinity.prefix import prefix_key
from gateway import server
from gateway.app import Gateway
from gateway.gossip import Gossip
from gateway.redis_gossip import CHANNEL, RedisLine
from gateway.request import Surface, read
from gateway.settings import Settings
from observability.gauges import READ_AT_SCRAPE
from policies.lane import Lane
from policies.leases import SoleHoldings
from policies.sole_meters import SoleMeters
from policies.sqlite_store import SqliteStore
from policies.store import NewKey, StoreError
from routing import gossip_hearing
from routing.decision import RouteDecision
from routing.query import RouteQuery
from tests.gateway.kit import MODEL, Engines, RunningGateway, _start, _stop, chat, settings_for
from tests.redis_server import redis_program, redis_server, shared_redis  # noqa: F401  # fixtures
from tests.routing.gossipers import Gateway as RoutingGateway
from tests.scripted_engine import answer

NUM_GATEWAYS, NUM_ENGINES = 3, 4
LONG = "some words that make a prompt long " * 60


class Peers(SoleHoldings):
    """The others, as far as leases know them."""

    is_degraded = is_limits_degraded = False

    def __init__(self):
        super().__init__()
        self.num_gateways = NUM_GATEWAYS
        self.meters = SoleMeters()


class Fleet:
    """Gateways with one store and one key in front of the same engines."""

    def __init__(self, gateways, engines):
        self.all = gateways
        self.engines = engines
        self.hearings = [one.parts.gossip.hearing for one in gateways]

    async def until(self, condition):
        """Wait for what the background brings about."""
        await self.all[0].until(condition)

    async def until_all_hear(self):
        """Every gateway hears every other."""
        await self.until(lambda: all(one.num_others == NUM_GATEWAYS - 1 for one in self.hearings))

    async def ask(self, number, messages):
        """A request to one gateway; which engine it came to. The engine tells nothing of hits: it has no cache."""
        self.engines.script(answer("Hello", " world", cached=None))
        reply = await self.all[number].post({"model": MODEL, "messages": messages})
        assert reply.status == 200
        return self.engines.requests[-1][0]

    async def until_heard(self):
        """What was sent until now is in everybody's picture, and that it has ended."""
        await self.until(lambda: self.num_flying == [0] * NUM_GATEWAYS)
        sizes = [sum(len(replica.shadow) for replica in one.parts.router.pool) for one in self.all]
        await self.until(
            lambda: len({sum(len(replica.shadow) for replica in one.parts.router.pool) for one in self.all}) == 1
        )
        assert sum(len(replica.shadow) for replica in self.all[0].parts.router.pool) == max(sizes)

    def homes(self, text):
        """Where each gateway would send this prompt now."""
        found = []
        for one in self.all:
            principal = one.parts.directory.authenticate([(b"x-api-key", one.key.encode())], 0.0)
            segments = read(Surface.CHAT, json.dumps(chat(text)).encode()).segments
            key = prefix_key(MODEL, principal.tenant.cache_salt, segments)
            decision = one.parts.router.route(RouteQuery(MODEL, key, Lane.INTERACTIVE, one.project), one.parts.clock())
            assert isinstance(decision, RouteDecision)
            found.append(decision.chosen)
        return found

    @property
    def num_flying(self):
        """Requests at all engines as each gateway believes."""
        return [sum(replica.num_flying for replica in one.parts.router.pool) for one in self.all]


@contextlib.asynccontextmanager
async def fleet(url, path):
    """Three gateways that serve and hear each other."""
    async with contextlib.AsyncExitStack() as stack:
        engines = Engines(NUM_ENGINES)
        for engine in engines.all:
            await stack.enter_async_context(engine)
        store = await stack.enter_async_context(await SqliteStore.open(path / "store.sqlite3"))
        project = await store.create_project("alder", (await store.create_organization("alder")).id)
        _, secret = await store.create_key(NewKey(project_id=project.id, name="k"))
        gateways = []
        for _ in range(NUM_GATEWAYS):
            settings = settings_for(engines)
            gateway = Gateway(settings, store, Peers(), line=RedisLine(url))
            listener = server.listen("127.0.0.1", 0)
            public = server.data_plane(gateway.app(), gateway.protocol(), drain_s=settings.gateway.drain_s)
            await _start(public, listener)
            stack.push_async_callback(_stop, public)
            await gateway.parts.directory.refresh()
            await gateway.parts.fleet.probe_all()
            port = listener.getsockname()[1]
            gateways.append(RunningGateway(gateway, store, public, port, engines, secret.text, project=project.id))
        found = Fleet(gateways, engines)
        await found.until_all_hear()
        yield found
        for one in gateways:
            for client in one.clients:
                client.close()
            await one.until_quiet()


async def test_turns_of_a_conversation_meet_whichever_gateway_they_come_to(shared_redis, tmp_path):  # noqa: F811
    """Three gateways hit as one: each knows where the others sent the turns before."""
    async with fleet(shared_redis.url, tmp_path) as gateways:
        for chats in range(4):
            messages, engines = [], set()
            for turn in range(6):
                messages.append({"role": "user", "content": f"{chats} {turn} {LONG}"})
                engines.add(await gateways.ask(turn % NUM_GATEWAYS, messages))
                messages.append({"role": "assistant", "content": "Hello world"})
                await gateways.until_heard()
            assert len(engines) == 1, chats
        text = gateways.all[0].gateway.metrics.text().decode()
        assert "warmlane_gateways_deaf 0.0\n" in text
        assert 'warmlane_gossip_dropped_total{reason="malformed"} 0.0\n' in text
        told = {one.name for one in READ_AT_SCRAPE}
        assert {
            line.split("{")[0].split()[0] for line in text.splitlines() if line.startswith("warmlane_gossip")
        } <= told


async def test_redis_cut_and_back(redis_server, tmp_path, monkeypatch):  # noqa: F811
    """Without Redis everything is served, cold prompts have one home and nobody's load stays; with it all is as before."""
    monkeypatch.setattr(gossip_hearing, "SILENT_S", 0.8)
    async with fleet(redis_server.url, tmp_path) as gateways:
        gate = asyncio.Event()
        gateways.engines.script(answer("Hi", gates={1: gate}))
        waiting = asyncio.create_task(gateways.all[0].post(chat(f"long {LONG}", stream=True)))
        await gateways.until(lambda: gateways.num_flying == [1] * NUM_GATEWAYS)
        redis_server.kill()
        await gateways.until(lambda: not any(one.num_others for one in gateways.hearings))
        assert gateways.num_flying == [1, 0, 0], "only its own gateway still feels it"
        gate.set()
        assert (await waiting).status == 200
        homes = [gateways.homes(f"cold {number} {LONG}") for number in range(40)]
        assert [len(set(of_all)) for of_all in homes] == [1] * 40
        assert len({of_all[0] for of_all in homes}) >= NUM_ENGINES - 1
        for number in range(NUM_GATEWAYS):
            assert (await gateways.all[number].post(chat(f"cut {number} {LONG}"))).status == 200
        assert sum(one.parts.gossip.num_unsent for one in gateways.all) > 0
        assert b"warmlane_gateways_deaf 1.0\n" in gateways.all[1].gateway.metrics.text()
        redis_server.start()
        await gateways.until_all_hear()
        engine = await gateways.ask(0, [{"role": "user", "content": f"back {LONG}"}])
        await gateways.until(lambda: len(set(gateways.homes(f"back {LONG}"))) == 1)
        assert gateways.homes(f"back {LONG}") == [f"r{engine + 1}"] * NUM_GATEWAYS
        assert b"warmlane_gateways_deaf 0.0\n" in gateways.all[1].gateway.metrics.text()


async def test_what_anybody_else_publishes_harms_nobody(shared_redis, tmp_path):  # noqa: F811
    """Garbage on the channel is counted, and gossip goes on."""
    async with fleet(shared_redis.url, tmp_path) as gateways:
        with shared_redis.client() as client:
            for content in (b"x", b"\x01" * 40, bytes(MAX_READ_BYTES + 1), b"\x63other version"):
                client.publish(CHANNEL, content)
        await gateways.until(lambda: all(one.counts.get("malformed", 0) == 1 for one in gateways.hearings))
        await gateways.until(lambda: all(one.counts.get("version", 0) == 2 for one in gateways.hearings))
        assert await gateways.ask(0, [{"role": "user", "content": LONG}]) in range(NUM_ENGINES)
        await gateways.until_heard()


async def test_a_gateway_that_ends_in_order_is_forgotten_at_once(shared_redis, tmp_path, monkeypatch):  # noqa: F811
    """It says so, and nobody waits for its silence."""
    monkeypatch.setattr(gossip_hearing, "SILENT_S", 3600.0)
    async with fleet(shared_redis.url, tmp_path) as gateways:
        await _stop(gateways.all[2].server)
        await gateways.until(lambda: [one.num_others for one in gateways.hearings[:2]] == [1, 1])


class Line:
    """A line that the test holds in its hands."""

    def __init__(self):
        self.told = []
        self.news = asyncio.Event()
        self.is_closed = self.is_cut = False

    async def publish(self, content):
        if self.is_cut:
            raise StoreError("away")
        self.told.append(content)
        self.news.set()

    async def messages(self):
        yield b""
        await asyncio.Event().wait()

    async def close(self):
        self.is_closed = True


class Directory:
    """Knows the installation once it was read."""

    installation = 0


@pytest.mark.parametrize("is_cut", [False, True])
async def test_gossip_ends_whatever_the_line_does_and_says_farewell(is_cut):
    """Nothing is told before the installation is known, and an end with the store away is no error."""
    fleet_of_one, line, directory, peers = RoutingGateway(1), Line(), Directory(), Peers()
    gossip = Gossip(line, fleet_of_one.router, asyncio.get_running_loop().time, peers)
    running = asyncio.create_task(gossip.run(directory))
    await asyncio.sleep(0.05)
    assert not line.told
    directory.installation = 5
    await asyncio.wait_for(line.news.wait(), 10)
    line.is_cut = is_cut
    num_told = len(line.told)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert len(line.told) == num_told + (not is_cut)
    assert line.is_closed
    assert "Gossip" in repr(gossip)


def test_there_is_no_gossip_without_a_shared_store_or_when_it_is_switched_off():
    """One switch; and one gateway with its own store pays nothing."""
    from gateway.process import _line

    assert _line(Settings()) is None
    shared = {"store": {"url": "redis://127.0.0.1:1/0"}}
    assert isinstance(_line(Settings(**shared)), RedisLine)
    assert _line(Settings(**shared, gateway={"gossip": False})) is None
    assert repr(RedisLine("redis://127.0.0.1:1/0")).startswith("<RedisLine warmlane:gossip")
