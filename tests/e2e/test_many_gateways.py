"""Four gateway processes on one port and one Redis: caps, weights and limits hold over all of them, whoever dies."""

import asyncio
import contextlib
import time
from collections import Counter
from functools import partial

import httpx
import pytest
import pytest_asyncio

from gateway.admin.control_client import GatewayControl
from policies.leases import LEASE_S
from tests.e2e.holding_engine import HoldingEngine, prompt_of
from tests.gateway.client import Client
from tests.redis_server import _running as running_redis
from tests.redis_server import redis_program, redis_server  # noqa: F401  # fixtures
from tests.warmlane_process import PATIENCE_S, commands

NUM_GATEWAYS, SEATS, CAP = 4, 6, 3
HOLD_S = 0.1
BYTES_PER_TOKEN = 4
MODEL = "scripted-model"

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]


class Engine(HoldingEngine):
    """Holds every request for `HOLD_S`."""

    def __init__(self):
        super().__init__(MODEL, HOLD_S, ["Hi"], lambda request: len(prompt_of(request)) // BYTES_PER_TOKEN)


class Tenant:
    """A project with one key. `statuses`: how its requests ended; `broken`: lost their gateway and were sent anew."""

    def __init__(self, system, name, key):
        self.name = name
        self.statuses = Counter()
        self.broken = 0
        self.prompt_tokens = 10
        self._num_asked = 0
        self._port = system.port
        self._key = key

    async def ask(self):
        """One request on a connection of its own."""
        (await self._answered(None)).close()

    @contextlib.asynccontextmanager
    async def clients(self, count):
        """So many clients ask without a pause, each on its connection; at the end each finishes what it has begun."""
        going = [True]

        async def go_on():
            client = None
            while going:
                client = await self._answered(client)
            client.close()

        async with asyncio.TaskGroup() as group:  # a test that fails leaves no client behind
            for _ in range(count):
                group.create_task(go_on())
            yield
            going.clear()

    async def _answered(self, client):
        """A request with a prompt of its own, sent again on a new connection until it is answered: that connection."""
        self._num_asked += 1
        prompt = f"{self.name} {self._num_asked} ".ljust(self.prompt_tokens * BYTES_PER_TOKEN, "x")
        while True:
            is_answered = False
            try:
                client = client or await Client.open(self._port)
                client.send({"model": MODEL, "messages": [{"role": "user", "content": prompt}]}, key=self._key)
                found = await client.answer()
                is_answered = found.is_complete
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # it died
            finally:
                if client is not None and not is_answered:
                    client.close()
            if is_answered:
                self.statuses[found.status] += 1
                return client
            client = None
            self.broken += 1


class System:
    """The running whole: supervisor, gateways, Redis, two engines."""

    def __init__(self, running, home, engines, redis):
        self.running = running
        self.engines = engines
        self.redis = redis
        self.port = int(running.fields["url"].rpartition(":")[2].removesuffix("/v1"))
        self.sockets = [home / "run" / f"gateway-{number}.sock" for number in range(1, NUM_GATEWAYS + 1)]

    async def admin(self, *words):
        """A question to the admin plane."""
        return await asyncio.to_thread(self.running.admin, *words)

    async def tenant(self, name, limits):
        """A new project of its own organisation, with these limits."""
        organization = await self.admin("/organizations", "POST", {"name": name})
        project = await self.admin("/projects", "POST", {"name": name, "organization_id": organization["id"]})
        await self.admin(f"/projects/{project['id']}/limits", "PUT", limits)
        key = await self.admin("/keys", "POST", {"name": name, "project_id": project["id"]})
        return Tenant(self, name, key["secret"])

    async def of_each(self):
        """The statistics of each gateway."""
        controls = [GatewayControl(partial(list, [socket])) for socket in self.sockets]
        return await asyncio.gather(*(control.statistics() for control in controls))

    async def gauge(self, name):
        """A sample without labels, over all gateways."""
        text = await GatewayControl(lambda: self.sockets).metrics()
        return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])

    async def readiness(self):
        """What a load balancer is told."""
        client = await Client.open(self.port)
        client.send(None, path="/health/ready", method="GET", close=True)
        found = await client.answer()
        client.close()
        return found.status, found.json["status"]

    async def kill_a_gateway(self, index):
        """kill -9, at once."""
        name = self.sockets[index].name
        victim = next(one for one in self.running.children() if name in " ".join(one.cmdline()))
        victim.kill()

    async def until_whole(self):
        """Every gateway runs, knows all the others and has its leases."""
        await until(self._is_whole)

    async def until_quiescent(self):
        """Nothing is held by any gateway."""
        await until(self._is_quiescent)

    async def _is_whole(self):
        try:
            return (await self.gauge("warmlane_gateways"), await self.gauge("warmlane_gateways_degraded")) == (4, 0)
        except Exception:
            return False  # one is starting

    async def _is_quiescent(self):
        in_flight = (await self.admin("/statistics"))["in_flight"]
        return "leased_units" in in_flight and not any(in_flight.values())


async def until(condition):
    """Wait for what real processes bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  # nobody tells: it is seen from outside
            await asyncio.sleep(0.02)


def config_of(engines, url):
    """Four gateways, two replicas."""
    replicas = "".join(
        f'[[replicas]]\nname = "r{number}"\nmodel = "{MODEL}"\nengine = "vllm"\nurl = "{engine.url}"\nseats = {SEATS}\n'
        for number, engine in enumerate(engines, start=1)
    )
    return f'[gateway]\nprocesses = {NUM_GATEWAYS}\ndrain_s = 2\n[store]\nurl = "{url}"\n{replicas}'


@pytest.fixture(scope="module")
def module_redis(redis_program):  # noqa: F811
    """A Redis that this module may pause."""
    yield from running_redis()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running_system(module_redis, tmp_path_factory):
    """`warmlane gateway` with four processes."""
    home = tmp_path_factory.mktemp("many") / "home"
    async with Engine() as first, Engine() as second:
        with commands(home) as start:
            running = start("gateway", config=config_of([first, second], module_redis.url))
            await asyncio.to_thread(running.until_ready)
            yield System(running, home, [first, second], module_redis)
            assert await asyncio.to_thread(running.end) == 0, running.stderr


@pytest_asyncio.fixture(loop_scope="module")
async def system(running_system):
    """The system, whole before the test and quiescent after it."""
    await running_system.until_whole()
    yield running_system
    await running_system.until_quiescent()


async def test_a_batch_cap_holds_over_all_gateways(system):
    """No replica ever has more than 3 of the tenant's, and hardly ever less: the cap is one, not one a gateway."""
    tenant = await system.tenant("capped", {"batch_cap": {"interactive": CAP}})
    began_at = time.monotonic()
    async with tenant.clients(200):
        await asyncio.sleep(3)
    took_s = time.monotonic() - began_at
    assert [engine.most["capped"] for engine in system.engines] == [CAP, CAP]
    assert set(tenant.statuses) == {200}
    assert tenant.broken == 0
    used_ratio = tenant.statuses[200] * HOLD_S / (took_s * CAP * len(system.engines))
    print(f"capped: {tenant.statuses[200]} requests, {used_ratio:.0%} of the cap in use")
    assert used_ratio > 0.5
    assert all(one["remembered"] for one in await system.of_each())


async def test_weights_hold_in_total(system):
    """Under overload two tenants are served 2 to 1, though each gateway knows only its own waiters."""
    heavy = await system.tenant("heavy", {"weight": 2})
    light = await system.tenant("light", {"weight": 1})
    heavy.prompt_tokens = light.prompt_tokens = 8000  # so that what the bound allows is small beside what is served
    async with heavy.clients(60), light.clients(60):
        await asyncio.sleep(1.5)
        before = heavy.statuses[200], light.statuses[200]
        await asyncio.sleep(6)
        after = heavy.statuses[200], light.statuses[200]
    ratio = (after[0] - before[0]) / (after[1] - before[1])
    print(f"weights: {after[0] - before[0]} to {after[1] - before[1]}, ratio {ratio:.3f}")
    assert ratio == pytest.approx(2, rel=0.1)
    assert all(engine.most["heavy"] <= SEATS and engine.most["light"] <= SEATS for engine in system.engines)


async def test_a_killed_gateways_seats_return_within_a_lease(system):
    """kill -9 in mid-load: the cap is never broken, is soon used up again by the others, and everything finishes."""
    tenant = await system.tenant("bereaved", {"batch_cap": {"interactive": CAP}})
    async with tenant.clients(100):
        await until(partial(_is_full, system.engines, "bereaved", CAP))
        units = [one["in_flight"]["leased_units"] for one in await system.of_each()]
        assert any(units)
        await system.kill_a_gateway(units.index(max(units)))
        died_at = time.monotonic()
        await until(partial(_is_below, system.engines, "bereaved", CAP))
        await until(partial(_is_full, system.engines, "bereaved", CAP))
        back_s = time.monotonic() - died_at
        await asyncio.sleep(1)
    print(f"kill -9: of {units} units the victim's were back after {back_s:.2f} s; {tenant.broken} asked again")
    assert back_s < LEASE_S
    assert [engine.most["bereaved"] for engine in system.engines] == [CAP, CAP]
    assert set(tenant.statuses) == {200}
    assert tenant.broken > 0


async def test_request_limits_are_not_multiplied(system):
    """P16: 60 a minute are 60 over four processes, and a restart admits no more than that process's part again."""
    tenant = await system.tenant("limited", {"rpm": 60})
    await asyncio.gather(*(tenant.ask() for _ in range(200)))
    assert tenant.statuses == {200: 60, 429: 140}
    await system.kill_a_gateway(0)
    await asyncio.sleep(0.2)
    await system.until_whole()
    await asyncio.gather(*(tenant.ask() for _ in range(100)))
    assert tenant.statuses[200] <= 60 + 60 // NUM_GATEWAYS


async def test_without_redis_each_gateway_serves_with_its_part(system):
    """P17: a frozen Redis is told by readiness and a gauge; requests go on, within every limit; then all is as before."""
    tenant = await system.tenant("patient", {})
    await asyncio.sleep(LEASE_S * 0.75)  # who has just joined may not use a part: the others do not count with it yet
    assert await system.readiness() == (200, "ready")
    system.redis.pause()
    try:
        frozen_at = time.monotonic()
        async with tenant.clients(20):
            await until(partial(_is_degraded, system))
            assert await system.readiness() == (200, "degraded")
            await asyncio.sleep(LEASE_S + 1 - (time.monotonic() - frozen_at))  # now every gateway is on its own
            before = tenant.statuses[200]
            await asyncio.sleep(1)
            assert tenant.statuses[200] > before
    finally:
        system.redis.resume()
    assert set(tenant.statuses) == {200}
    assert all(engine.most["patient"] <= SEATS for engine in system.engines)
    await system.until_whole()
    assert await system.readiness() == (200, "ready")


async def test_a_restarted_gateway_serves_from_its_first_connection(redis_server, tmp_path):  # noqa: F811
    """With workers of our own: it is told of them before it listens, so nobody meets a gateway that knows no model."""
    config = f"""
    [gateway]
    processes = 2
    [store]
    url = "{redis_server.url}"
    [[workers]]
    model = "fake-model"
    engine = "fake"
    """

    def ask_again_and_again(up):
        """The statuses of requests on new connections, until the killed gateway is there again for a while."""
        up.child("gateway-2.sock").kill()
        began_at, statuses = time.monotonic(), Counter()
        while time.monotonic() < began_at + 3:
            try:
                statuses[up.chat().status_code] += 1
            except httpx.TransportError:
                statuses["died"] += 1  # it was in the dead one's queue of connections
        return statuses

    with commands(tmp_path / "home") as start:
        up = start("up", config=config)
        await asyncio.to_thread(up.until_ready)
        statuses = await asyncio.to_thread(ask_again_and_again, up)
        assert set(statuses) - {"died"} == {200}
        assert statuses["died"] <= 1
        assert len(up.children()) == 3
        assert await asyncio.to_thread(up.end) == 0, up.stderr


async def _is_full(engines, tenant, cap):
    return all(engine.running(tenant) == cap for engine in engines)


async def _is_below(engines, tenant, cap):
    return any(engine.running(tenant) < cap for engine in engines)


async def _is_degraded(system):
    return await system.gauge("warmlane_gateways_degraded") == NUM_GATEWAYS
