"""The supervisor's children: gateways and workers, their events, and the order of their end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from engines.launch.supervised import ChildState, Event, Failing, Lost, Started, Supervised
from gateway.admin.control_client import ControlError, GatewayControl
from gateway.fleet_publisher import FleetPublisher
from gateway.launch_plan import Launch
from gateway.ports import announced_port
from observability import logs

_LAST_WORDS_S = 2.0  # chosen: a gateway needs `server.LAST_WORDS_S` and a moment to end


class Children:
    """All child processes of one run.

    `on_failure`: called with a sentence when a first start is hopeless. `on_death`: called with the id of its leases
    when a gateway that had some has ended.
    """

    def __init__(
        self,
        launch: Launch,
        sockets: Path,
        on_failure: Callable[[str], None],
        on_death: Callable[[str], None] = lambda _gateway: None,
    ) -> None:
        self._log = logs.get()
        self._on_failure = on_failure
        self._on_death = on_death
        self._models = {worker.name: worker.model for worker in launch.workers}
        self._gateways: dict[Path, Supervised] = {}
        for number in range(1, launch.settings.gateway.processes + 1):
            socket = sockets / f"gateway-{number}.sock"
            spec = launch.gateway(number, socket, self._fleet_now)
            self._gateways[socket] = Supervised(spec, self._on_gateway)
        self._workers = [Supervised(launch.worker(worker), self._on_worker) for worker in launch.workers]
        self.control = GatewayControl(self._ready_sockets, on_drain=self._on_drain)
        self.fleet = FleetPublisher(launch.workers, self.control.set_fleet, self._on_refusal)
        self.has_started = False  # set by the supervisor once all was ready: from then on failures are only retried

    def __repr__(self) -> str:
        return f"Children({', '.join(map(repr, self._all()))})"

    @property
    def gateway_port(self) -> int:
        """The port that the gateways announced, 0 before any was ready."""
        ready = next(iter(self._gateways.values())).last_ready
        return announced_port(ready) if ready is not None else 0

    @property
    def are_gateways_ready(self) -> bool:
        """Whether every gateway process is."""
        return all(gateway.state is ChildState.READY for gateway in self._gateways.values())

    @property
    def worker_names(self) -> frozenset[str]:
        """All workers of the run, ready or not."""
        return frozenset(self._models)

    @contextlib.asynccontextmanager
    async def running(self, force: asyncio.Event) -> AsyncIterator[list[asyncio.Task[None]]]:
        """All children run inside the block. Leaving it, the gateways drain first, then the workers end.

        `force`: once set, what is left ends at once, open streams with an error event. The tasks end early only by a
        bug of ours.
        """
        tasks = [asyncio.create_task(child.run(), name=child.spec.name) for child in self._all()]
        tasks.append(asyncio.create_task(self.fleet.run(), name="fleet"))
        try:
            yield tasks
        finally:
            kindly = asyncio.ensure_future(self._end_in_order())
            forced = asyncio.ensure_future(force.wait())
            await asyncio.wait({kindly, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not kindly.done():
                await self._end_at_once()
            forced.cancel()
            await kindly
            tasks[-1].cancel()
            await asyncio.wait(tasks)

    def _fleet_now(self) -> bytes:
        return self.fleet.document()

    async def _end_in_order(self) -> None:
        await asyncio.gather(*(gateway.stop() for gateway in self._gateways.values()))
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def _end_at_once(self) -> None:
        # A gateway that hears its second SIGTERM ends every open stream with an error event; nobody else is waited for.
        await asyncio.gather(*(gateway.stop(_LAST_WORDS_S) for gateway in self._gateways.values()))
        await asyncio.gather(*(worker.stop(0) for worker in self._workers))

    def _all(self) -> list[Supervised]:
        return [*self._gateways.values(), *self._workers]

    def _ready_sockets(self) -> list[Path]:
        return [socket for socket, gateway in self._gateways.items() if gateway.state is ChildState.READY]

    def _on_gateway(self, event: Event) -> None:
        match event:
            case Started():
                self.fleet.gateway_started()
            case Lost(was_ready=True):
                self.fleet.gateway_lost()
                self._tell_of_death(event.name)
            case Lost(reason=reason) if not self.has_started:
                self._on_failure(f"the gateway does not start: {reason}")
            case _:
                pass
        self._record("gateway", event)

    def _tell_of_death(self, name: str) -> None:
        dead = next(gateway for gateway in self._gateways.values() if gateway.spec.name == name)
        if dead.last_ready is not None and (leases := dead.last_ready.get("gateway")):
            self._on_death(leases)

    def _on_worker(self, event: Event) -> None:
        match event:
            case Started():
                self.fleet.worker_started(event)
            case Lost():
                self.fleet.worker_lost(event.name)
            case Failing() if not self.has_started:
                why = event.reason.removeprefix("warmlane worker: ")
                self._on_failure(f"{event.name} (model {self._models[event.name]}) does not start: {why}")
            case _:
                pass
        self._record("worker", event)

    def _on_drain(self, name: str, is_drained: bool) -> None:
        self.fleet.drained(name) if is_drained else self.fleet.resumed(name)
        self._log.info("replica.drained" if is_drained else "replica.resumed", replica=name)

    def _on_refusal(self, error: ControlError) -> None:
        self._log.warning("fleet.failed", reason=str(error))

    def _record(self, kind: str, event: Event) -> None:
        """One log line an event: a loss is a warning, a child that cannot start an error."""
        match event:
            case Started(name, url, generation, _):
                # The first start of all is told by the ready line; one after a loss is news.
                log = self._log.debug if generation == 1 else self._log.info
                log(f"{kind}.started", name=name, url=url, generation=generation)
            case Lost(name, generation, _, code, reason, retry_in_s):
                fields = {"exit_status": code, "reason": reason, "retry_in_s": retry_in_s}
                self._log.warning(f"{kind}.lost", name=name, generation=generation, **fields)
            case Failing(name, attempts, reason, tail):
                self._log.error(f"{kind}.failing", name=name, attempts=attempts, reason=reason, stderr=tail)
