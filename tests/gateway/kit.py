"""A whole gateway in the test's own loop: temporary store, scripted engines, real sockets.

    gateway = await launch(engines=2, timeouts={"idle_s": 0.2})      # the fixture in conftest.py
    gateway.script(dropped(), answer("Hi"))                          # what the next upstream requests get, whichever engine
    answer = await gateway.post(chat(stream=True))
    assert answer.text == "Hi"

`way` "hot" serves with our protocol class, "asgi" with uvicorn's own, so that every request takes the fall-through.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cache_affinity.prefix import prefix_key
from gateway import server
from gateway.app import Gateway
from gateway.request import Surface, read
from gateway.settings import Settings
from policies.lane import Lane
from policies.sqlite_store import SqliteStore
from policies.store import Level, NewKey
from routing.query import RouteQuery
from tests.gateway.client import Client
from tests.scripted_engine import PATIENCE_S, ScriptedEngine, within_patience

MODEL = "small-a"
UPSTREAM_MODEL = "engine/small-a"


def chat(text="Hello", **fields):
    """A chat request's body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


def completion(prompt="Hello", **fields):
    """A completion request's body."""
    return {"model": MODEL, "prompt": prompt, **fields}


def message(text="Hello", **fields):
    """A body of Anthropic's /v1/messages."""
    return {"model": MODEL, "max_tokens": 16, "messages": [{"role": "user", "content": text}], **fields}


def respond(text="Hello", **fields):
    """A body of OpenAI's /v1/responses."""
    return {"model": MODEL, "input": text, **fields}


class Engines:
    """Several scripted engines with one script: the next request gets the next reply, whichever engine it reaches."""

    def __init__(self, count):
        self.all = [ScriptedEngine() for _ in range(count)]
        self.requests = []  # (index of the engine, the request), in order
        self._scripts = deque()
        self._news = asyncio.Condition()
        for index, engine in enumerate(self.all):
            engine.fallback = engine.default
            engine.default = self._replier(index, engine)

    def _replier(self, index, engine):
        def reply(request):
            self.requests.append((index, request))
            engine._spawn(self._tell())
            script = self._scripts.popleft() if self._scripts else engine.fallback
            return script(request) if callable(script) else script

        return reply

    async def _tell(self):
        async with self._news:
            self._news.notify_all()

    def script(self, *replies):
        """Queue what the next requests get."""
        self._scripts.extend(replies)

    async def received(self, count=1):
        """The `count`-th request (from 1) that any engine got, once it has come."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1][1]

    def of(self, request):
        """The engine that got this request."""
        return next(self.all[index] for index, one in self.requests if one is request)


@dataclass
class RunningGateway:
    """A gateway that serves. `key`: a key of `project`, which belongs to `organization`."""

    gateway: Gateway
    store: SqliteStore
    server: server.QuietServer
    port: int
    engines: Engines
    key: str = ""
    organization: str = ""
    project: str = ""
    clients: list[Client] = field(default_factory=list)

    @property
    def engine(self):
        """The first engine."""
        return self.engines.all[0]

    @property
    def parts(self):
        """The gateway's parts."""
        return self.gateway.parts

    @property
    def url(self):
        """What a client is given as base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def in_flight(self):
        """What is held now."""
        return self.gateway.statistics()["in_flight"]

    @property
    def records(self):
        """The records of all requests that have ended, in order."""
        return [record for record, _ in self.parts.recorder._remembered.values()]

    def script(self, *replies):
        """What the next upstream requests get."""
        self.engines.script(*replies)

    async def received(self, count=1):
        """The `count`-th upstream request."""
        return await self.engines.received(count)

    async def new_project(self, limits="{}", organization=None):
        """Id of a new project with these limits, of the first organisation if no other is named."""
        project = await self.store.create_project("p", organization or self.organization)
        await self.limit(project.id, limits)
        return project.id

    async def new_key(self, project=None, **fields):
        """The secret of a new key."""
        _, secret = await self.store.create_key(NewKey(project_id=project or self.project, name="k", **fields))
        await self.parts.directory.refresh()
        return secret.text

    async def limit(self, project, limits, level=Level.PROJECT):
        """Set a limits document (JSON text); it is in force when this returns."""
        await self.store.set_limits(level, project, limits.encode())
        await self.parts.directory.refresh()

    def prompt_for(self, replica, number=1):
        """A prompt that would go to this replica now; `number`: the how-manieth such prompt."""
        for attempt in range(1000):
            body = chat(f"prompt {attempt}")
            principal = self.parts.directory.authenticate([(b"x-api-key", self.key.encode())], 0.0)
            segments = read(Surface.CHAT, json.dumps(body).encode()).segments
            key = prefix_key(MODEL, principal.tenant.cache_salt, segments)
            decision = self.parts.router.route(RouteQuery(MODEL, key, Lane.INTERACTIVE, self.project), now())
            number -= getattr(decision, "chosen", None) == replica
            if number == 0:
                return body["messages"][0]["content"]
        raise AssertionError(f"nothing goes to {replica}")

    async def connect(self):
        """A client's connection; closed with the gateway if not before."""
        client = await Client.open(self.port)
        self.clients.append(client)
        return client

    async def start(self, body, **options):
        """A client whose request is sent; the answer is still to be read."""
        client = await self.connect()
        client.send(body, **{"key": self.key, **options})
        return client

    async def post(self, body, **options):
        """A whole answer, on a connection of its own."""
        client = await self.start(body, **options)
        try:
            return await client.answer()
        finally:
            client.close()

    async def get(self, path, **options):
        """The answer to a GET."""
        client = await self.connect()
        client.send(None, path=path, method="GET", **{"key": self.key, **options})
        return await client.answer()

    async def until(self, condition):
        """Wait until a condition of the gateway holds; nothing announces these, so it is looked at again and again."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def until_quiet(self):
        """Wait until nothing is held any more."""
        try:
            await self.until(lambda: not any(self.in_flight.values()))
        except TimeoutError:
            raise AssertionError(f"still held: {self.in_flight}") from None

    async def until_recorded(self, count):
        """The records, once there are that many."""
        await self.until(lambda: len(self.parts.recorder) >= count)
        assert len(self.records) == count
        return self.records


def settings_for(engines, *, kind="warmlane", seats=8, replica=None, **sections):
    """Settings with a replica r1, r2, … for each engine. `replica`: more of its fields, a list for each its own.

    `sections`: as in the file.
    """
    own = replica if isinstance(replica, list) else [replica or {}] * len(engines.all)
    replicas = [
        {
            "name": f"r{number}",
            "model": MODEL,
            "engine": kind,
            "url": engine.url,
            "seats": seats,
            "upstream_model": UPSTREAM_MODEL,
            **own[number - 1],
        }
        for number, engine in enumerate(engines.all, start=1)
    ]
    return Settings(**{"replicas": replicas, **sections})


@contextlib.asynccontextmanager
async def running_gateway(settings, path, engines, *, way="hot"):
    """A gateway that is ready, with one organisation, project and key. On leaving, nothing may be held any more."""
    async with await SqliteStore.open(path) as store:
        gateway = Gateway(settings, store)
        listener = server.listen("127.0.0.1", 0)
        protocol = gateway.protocol() if way == "hot" else HttpToolsProtocol
        public = server.data_plane(gateway.app(), protocol, drain_s=settings.gateway.drain_s)
        running = RunningGateway(gateway, store, public, listener.getsockname()[1], engines)
        running.organization = (await store.create_organization("alder")).id
        running.project = (await store.create_project("alder", running.organization)).id
        await _start(public, listener)
        running.key = await running.new_key()
        await gateway.parts.fleet.probe_all()
        try:
            yield running
            for client in running.clients:
                client.close()
            await running.until_quiet()
        finally:
            await _stop(public)


async def _start(public, listener):
    """What uvicorn's `serve` does at its beginning; its loop, which looks for an end ten times a second, is left out."""
    public.config.load()
    public.lifespan = public.config.lifespan_class(public.config)
    await public.startup([listener])
    await public.on_tick(0)


async def _stop(public):
    for one in public.servers:
        one.close()
    for connection in list(public.server_state.connections):
        connection.transport.abort()
    for task in list(public.server_state.tasks):
        task.cancel()
    await within_patience(public.lifespan.shutdown())


def now():
    """Monotonic seconds."""
    return time.monotonic()
