"""Which of our workers live and what is drained, told to the gateways at every change until they have heard it.

A drain is an operator's wish: it outlives the gateway that was told and the worker that it was about.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from engines.launch.supervised import Started
from engines.launch.worker_command import WorkerSpec
from gateway.admin.control_client import ControlError

_RETRY_S = 0.2  # chosen: a gateway that starts is ready within about a second


class FleetPublisher:
    """The live workers, and whether the gateways know them. `send`: PUT /fleet at every gateway process.

    `run` it as a task; the other methods never wait.
    """

    def __init__(
        self,
        specs: tuple[WorkerSpec, ...],
        send: Callable[[bytes], Awaitable[None]],
        on_refusal: Callable[[ControlError], None],
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._send = send
        self._on_refusal = on_refusal
        self._live: dict[str, Started] = {}
        self._drained: set[str] = set()
        self._gateways = 0
        self._change = 0
        self._told = 0
        self._news = asyncio.Condition()
        self._wake = asyncio.Event()

    def __repr__(self) -> str:
        return f"FleetPublisher(live={sorted(self._live)}, gateways={self._gateways}, is_current={self.is_current})"

    @property
    def live(self) -> frozenset[str]:
        """Names of the workers that are ready."""
        return frozenset(self._live)

    @property
    def is_current(self) -> bool:
        """Whether every gateway process knows the present fleet."""
        return self._gateways > 0 and self._told == self._change

    def worker_started(self, event: Started) -> None:
        """A worker is ready, at a new address."""
        self._live[event.name] = event
        self._changed()

    def worker_lost(self, name: str) -> None:
        """A worker ended. One that was not ready changes nothing."""
        if self._live.pop(name, None) is not None:
            self._changed()

    def drained(self, name: str) -> None:
        """An operator wants a replica, a worker or a configured one, to get nothing new, until `resumed`."""
        if name not in self._drained:
            self._drained.add(name)
            self._changed()

    def resumed(self, name: str) -> None:
        """It may get work again."""
        if name in self._drained:
            self._drained.discard(name)
            self._changed()

    def gateway_started(self) -> None:
        """A gateway process is ready and knows nothing yet."""
        self._gateways += 1
        self._changed()

    def gateway_lost(self) -> None:
        """A gateway process that was ready ended."""
        self._gateways -= 1
        self._changed()

    def document(self) -> bytes:
        """The fleet as JSON, workers in the order of the plan, and all that an operator has drained."""
        replicas = [self._replica(name) for name in self._specs if name in self._live]
        return msgspec.json.encode({"replicas": replicas, "draining": sorted(self._drained)})

    async def until_current(self, names: frozenset[str]) -> None:
        """Return once the gateways know a fleet with all of `names` in it."""
        async with self._news:
            await self._news.wait_for(lambda: self.is_current and names <= self._live.keys())

    async def run(self) -> None:
        """Send the fleet after every change; an order that does not arrive is repeated. Ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._gateways == 0:
                continue
            change = self._change
            try:
                await self._send(self.document())
            except ControlError as error:
                self._on_refusal(error)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()
                continue
            async with self._news:
                self._told = change
                self._news.notify_all()

    def _changed(self) -> None:
        self._change += 1
        self._wake.set()

    def _replica(self, name: str) -> dict[str, Any]:
        spec, started = self._specs[name], self._live[name]
        return {
            "name": name,
            "model": spec.model,
            "engine": "warmlane",
            "url": started.url,
            "upstream_model": spec.model,
            "seats": spec.max_seqs,
            "bulk_seats": spec.max_seqs,  # the worker keeps as many of bulk resident and leaves them out of steps
            "kv_tokens": spec.kv_tokens,
            "labels": dict(spec.labels),
            "generation": started.generation,
            "tokenizer": str(spec.path) if spec.path is not None else spec.engine,
        }
