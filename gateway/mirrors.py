"""Copies of requests for a model that is to be tried out: sent besides, whose answers nobody gets.

A copy takes a seat that nobody waits for, as bulk work would, or is left out. It is counted for the operator, charged
to nobody, and never tried again. Bounded in number; those under way are cancelled when the gateway stops.
"""

import asyncio
from dataclasses import replace

from engines.contract import ReplicaError, Steering
from gateway.answer import ClientAnswer
from gateway.errors import Refused
from gateway.nowhere import Nowhere
from gateway.parts import Call, Parts
from gateway.relay import Relay
from gateway.request import InferenceRequest
from gateway.route_key import route_key
from gateway.turn import Turn, Waiting
from observability import logs
from policies.entry import Entry
from policies.lane import Lane
from policies.tenant import Tenant
from routing.query import RouteQuery

MAX_COPIES = 64  # chosen: at a time; more than a trial needs
FLOW = "mirror:"  # whose turns they are, in the queue's eyes: no project has such an id
_OF_STREAMS = frozenset({"stream", "stream_options"})


class Mirrors:
    """Sends copies. `len`: those under way."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._copies: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._copies)

    def note(self, call: Call, query: RouteQuery) -> None:
        """A request is about to be sent: copy it, if it is one of those that are to be."""
        request, principal = call.story.request, call.story.principal
        assert request is not None, "just read"
        model = self._parts.traffic.mirror(query.model, request)
        if model is None:
            return
        assert principal is not None, "only authenticated requests are read"
        if len(self._copies) >= MAX_COPIES:
            self._parts.traffic.count_copy(model, "left_out")
            return
        work = self._copy(model, request, query, principal.tenant, call.story.request_id)
        copy = asyncio.create_task(work, name="mirror")
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)

    def stop(self) -> None:
        """Cancel what is under way."""
        for copy in self._copies:
            copy.cancel()

    async def _copy(
        self, model: str, request: InferenceRequest, query: RouteQuery, tenant: Tenant, request_id: str
    ) -> None:
        """One copy, from its seat to its end; its outcome is counted."""
        outcome = "failed"
        try:
            outcome = await self._sent(model, request, query, tenant, request_id)
        except ReplicaError as error:
            logs.get().info("mirror.failed", request_id=request_id, model=model, fault=error.fault.value)
        except Exception:  # noqa: BLE001  # a bug must not end in a task that nobody looks at
            logs.get().exception("mirror.failed", request_id=request_id, model=model)
        self._parts.traffic.count_copy(model, outcome)

    async def _sent(
        self, model: str, request: InferenceRequest, query: RouteQuery, tenant: Tenant, request_id: str
    ) -> str:
        parts = self._parts
        needs = parts.fleet.surfaces.needs(model, request.surface.value)
        if model not in parts.fleet.models() or needs is None:
            return "left_out"
        key = route_key(model, tenant.cache_salt, request, parts.router.ratios)
        query = replace(query, model=model, key=key, lane=Lane.BULK, labels=frozenset(), needs=needs, tokens=None)
        entry = Entry(
            FLOW, Lane.BULK, Waiting(query), output_tokens=query.max_output_tokens, deadline=parts.clock() + 1.0
        )
        try:
            granted = parts.dispatch.enter(entry)
        except Refused:
            return "left_out"
        if not granted.done():  # a copy waits for nobody, and nobody for it
            parts.dispatch.leave(entry, granted)
            return "left_out"
        try:
            turn = granted.result()
        except Refused:
            return "left_out"
        finally:
            entry.request.ticket = None
        try:
            await self._relayed(turn, request, tenant, request_id)
        finally:
            parts.dispatch.end(turn)
        return "finished"

    async def _relayed(self, turn: Turn, request: InferenceRequest, tenant: Tenant, request_id: str) -> None:
        parts, chosen = self._parts, turn.decision.chosen
        replica = parts.fleet.connection(chosen)
        steering = Steering(
            model=replica.upstream_model,
            lane=Lane.BULK,
            cache_salt=tenant.cache_salt,
            attempt_id=f"{request_id}-m",
            is_streaming=False,
        )
        fields = {name: value for name, value in request.fields.items() if name not in _OF_STREAMS}
        timeouts, sink = parts.settings.timeouts, Nowhere()
        relay = _Unread(ClientAnswer(sink, [], timeouts.keepalive_s), sink, timeouts, timeouts.total_s)
        body = replica.adapter.body(fields, steering)
        headers = replica.adapter.headers(steering, replica.api_key)
        replica.relays.add(relay)
        try:
            await relay.run(replica.upstream.send(request.surface.value, headers, body, relay))
        except ReplicaError as error:
            parts.router.observe_failure(turn.lease, error.fault, parts.clock(), retry_after_s=error.retry_after_s)
            raise
        finally:
            replica.ended(relay)


class _Unread(Relay):
    """Waits for the end of an answer that nobody reads."""

    def on_flush(self) -> None:
        """Nobody is told."""

    def _take(self, data: bytes) -> None:
        """Thrown away."""

    def _complete(self) -> None:
        """That it ended is enough."""
