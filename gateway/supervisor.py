"""The supervisor process: starts gateway processes and workers, owns the admin plane, and ends all of it in order.

It never touches a request. It tells the gateways which workers live, starts again what falls, and says once that all is
ready. The first SIGTERM or SIGINT ends it kindly (gateways drain, then workers, then the admin plane); the second at
once. SIGHUP ends nothing, unless it says that the terminal it runs in was closed.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.admin.app import create_admin_app
from gateway.admin.control_client import ControlError
from gateway.admin.oidc import people_of
from gateway.admin.operations import note
from gateway.admin.usage import Usage
from gateway.admin.wire import ReloadedBody
from gateway.admin_listener import serving
from gateway.admin_settings import audit_keep
from gateway.bootstrap import demo_key
from gateway.children import Children
from gateway.key_uses import KeyUses, following
from gateway.launch_plan import Launch
from gateway.ledger import FOLDER, opened_ledger
from gateway.ledger_keeper import keeping, retention_of
from gateway.ports import listen_on, reachable_url, reserve
from gateway.ready import Readiness
from gateway.reload import HANDED_NAME, Reloader
from gateway.settings import ConfigError, Settings
from gateway.stores import opened
from observability import logs
from policies.audit import SYSTEM, Change
from policies.store import Store

_SEEN_READY_S = 60  # from the last worker's readiness until the gateway has seen it
_POLL_S = 0.05
_STDERR = 2
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SupervisorError(Exception):
    """Warmlane cannot start, or cannot go on; the message is one sentence for a person."""


class Supervisor:
    """One run of `warmlane up` or `warmlane gateway`. `announce` is called once, when all is ready.

    `reread`: the configuration as it is now, flags on top; raises `ConfigError`.
    """

    def __init__(self, launch: Launch, announce: Callable[[Readiness], None], reread: Callable[[], Settings]) -> None:
        self._launch = launch
        self._announce = announce
        self._reread = reread
        self._reloader: Reloader | None = None
        self._store: Store | None = None
        self._reload: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._force = asyncio.Event()
        self._has_terminal = os.isatty(_STDERR)
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def stop(self) -> None:
        """End kindly; called again, end at once."""
        if self._stopping.is_set():
            self._force.set()
        self._stopping.set()

    def hang_up(self) -> None:
        """SIGHUP: a closed terminal ends it kindly; else the configuration is read again."""
        if self._has_terminal and not os.isatty(_STDERR):
            self._stopping.set()
        elif self._reload is None or self._reload.done():
            self._reload = asyncio.ensure_future(self._reload_for_signal())
        else:  # it may have read the file before this wish
            self._reload.add_done_callback(lambda _: self.hang_up())

    async def _reload_for_signal(self) -> None:
        try:
            found = await self.reload()
        except (ConfigError, ControlError) as error:
            logs.get().warning("config.not_reloaded", reason=str(error))
        else:
            if self._store is not None:  # by the endpoint it is written down there, with who asked
                await note(self._store, Change("config.reloaded", "config", after=msgspec.json.encode(found)), SYSTEM)

    async def reload(self) -> ReloadedBody:
        """Read the configuration again. Raises `ConfigError`, `ControlError`; then all is as before."""
        if self._reloader is None:
            raise ControlError("it is still starting, and reads its configuration for that")
        found = await self._reloader.reload()
        logs.configure(self._reloader.settings.telemetry.log_level, "supervisor")
        logs.get().info("config.reloaded", changed=found.changed, needs_restart=found.needs_restart)
        return ReloadedBody(found.changed, found.needs_restart)

    async def run(self) -> None:
        """Run until told to stop. Raises `SupervisorError`, `PortUnusable`, `StoreError`, `HomeError`."""
        with self._signals(), _shared_port(self._launch) as planned, planned.home.sockets() as folder:
            gateway, handed = planned.settings.gateway, folder / HANDED_NAME
            launch = replace(planned, config=handed)
            async with (
                opened(launch.settings.store, launch.home.path, audit_keep(launch.settings.admin)) as store,
                opened_ledger(launch.settings, launch.home.path) as ledger,
                keeping(ledger, launch.home.path / FOLDER, retention_of(launch.settings.ledger)) as (kept, keeper),
                _children(launch, folder, self._fail) as children,
                people_of(launch.settings.admin) as people,
            ):
                self._store = store
                names = frozenset(worker.name for worker in launch.workers)
                tell = children.control.set_settings
                reloader = self._reloader = Reloader(self._launch.settings, self._reread, tell, handed, workers=names)
                key = await demo_key(store, str(launch.home.read_demo().get("key", "")), time.time())
                uses = KeyUses(store)
                remedy = "--admin-port or WARMLANE_ADMIN_PORT"
                listener = listen_on(gateway.admin_host, gateway.admin_port, remedy=remedy)
                admin_url = reachable_url(gateway.admin_host, listener.getsockname()[1])
                app = create_admin_app(
                    store,
                    children.control,
                    launch.admin_token,
                    config=lambda: reloader.settings.model_dump(mode="json"),
                    usage=Usage(ledger, retention_of(launch.settings.ledger)),
                    reload=self.reload,
                    people=people,
                    on_key_used=uses.note,
                    counted=(kept, reloader),
                )
                async with (
                    serving(app, listener) as admin,
                    following(uses) as telling,
                    children.running(self._force) as tasks,
                ):
                    await self._watch([admin, keeper, telling, *tasks], self._say_ready(children, key, admin_url))

    async def _watch(self, parts: list[asyncio.Task[None]], ready: Coroutine[Any, Any, None]) -> None:
        """Wait for the order to stop; raise what ended a part that should have gone on."""
        announcing = asyncio.ensure_future(ready)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            ends: list[asyncio.Future[Any]] = [stopping, self._failed, *parts]
            await _first([*ends, announcing])
            if announcing.done():
                announcing.result()
                await _first(ends)
            if stopping.done():
                return
            if self._failed.done():
                raise SupervisorError(self._failed.result())
            for part in parts:
                if part.done():
                    part.result()
                    raise SupervisorError(f"the supervisor's part {part.get_name()!r} ended by itself")
        finally:
            announcing.cancel()
            stopping.cancel()
            await asyncio.wait({announcing, stopping})

    async def _say_ready(self, children: Children, key: str, admin_url: str) -> None:
        """Announce once every process is ready and the gateway has seen every worker ready."""
        await children.fleet.until_current(children.worker_names)
        deadline = time.monotonic() + _SEEN_READY_S
        while not (children.are_gateways_ready and children.worker_names <= await _seen_ready(children)):
            if time.monotonic() > deadline:
                raise SupervisorError(f"after {_SEEN_READY_S} s the gateway does not see its workers as ready")
            await asyncio.sleep(_POLL_S)
        url = reachable_url(self._launch.settings.gateway.host, children.gateway_port) + "/v1"
        children.has_started = True
        self._announce(Readiness(url, key, self._launch.model, admin_url, self._launch.admin_token))

    def _fail(self, sentence: str) -> None:
        if not self._failed.done():
            self._failed.set_result(sentence)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.hang_up)
        try:
            yield
        finally:
            for number in (*STOP_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # all is ended: one more Ctrl-C must not spoil the exit status


class _Replica(msgspec.Struct):
    name: str
    state: str


class _Replicas(msgspec.Struct):
    data: list[_Replica]


async def _seen_ready(children: Children) -> frozenset[str]:
    """The replicas that every gateway would send a request to now."""
    try:
        seen = await children.control.replicas_of_each()
    except ControlError:
        return frozenset()  # one was restarted just now
    ready = [
        frozenset(one.name for one in msgspec.json.decode(replicas, type=_Replicas).data if one.state == "ready")
        for replicas in seen
    ]
    return frozenset.intersection(*ready)


@contextlib.contextmanager
def _shared_port(launch: Launch) -> Iterator[Launch]:
    """The run with one port for all its gateways, kept for them inside the block. Raises `PortUnusable`."""
    gateway = launch.settings.gateway
    if gateway.processes == 1:
        yield launch
        return
    with contextlib.closing(reserve(gateway.host, gateway.port, remedy="--port or WARMLANE_PORT")) as kept:
        on_port = gateway.model_copy(update={"port": kept.getsockname()[1]})
        yield replace(launch, settings=launch.settings.model_copy(update={"gateway": on_port}))


@contextlib.asynccontextmanager
async def _children(launch: Launch, sockets: Path, on_failure: Callable[[str], None]) -> AsyncIterator[Children]:
    """The children to run, and what the gateways among them held given back after their death."""
    if not launch.settings.store.is_shared:
        yield Children(launch, sockets, on_failure)
        return
    from gateway.redis_peers import Burials

    burials = Burials(launch.settings.store.url)
    try:
        yield Children(launch, sockets, on_failure, burials.died)
    finally:
        await burials.close()


async def _first(futures: Iterable[asyncio.Future[Any]]) -> None:
    await asyncio.wait(set(futures), return_when=asyncio.FIRST_COMPLETED)
