"""The gateway process's side of its control socket: what the supervisor and the admin plane may ask and order.

Only this node's supervisor can reach it: the socket lies in a private folder.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.announced import Announcement
from gateway.cache_control import CacheControl
from gateway.errors import ClientError, Problem
from gateway.gauges import ledger_counts
from gateway.isolation import NotReleasable
from gateway.lifecycle import Lifecycle
from gateway.parts import Parts
from gateway.request import Surface, read
from gateway.route_key import route_key
from gateway.settings import ConfigError, Settings
from observability.metrics import Metrics
from observability.records import RequestRecord
from policies.lane import Lane
from routing.decision import Actual, Hedge, NoReplica, RouteDecision
from routing.query import RouteQuery
from routing.replica import Replica


class ExplainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A dry run: the request body as a client would send it, in the name of a project."""

    request: msgspec.Raw
    project_id: str
    lane: str = "interactive"
    surface: str = Surface.CHAT.value


class Control:
    """The application on the control socket."""

    def __init__(self, parts: Parts, lifecycle: Lifecycle, metrics: Metrics, apply: Callable[[Settings], None]) -> None:
        """`apply`: puts settings into force, raises `ConfigError`."""
        self._parts = parts
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._apply = apply

    def app(self) -> Starlette:
        """The routes."""
        return Starlette(
            routes=[
                Route("/statistics", self.statistics, methods=["GET"]),
                Route("/metrics", self.metrics, methods=["GET"]),
                Route("/queue", self.queue, methods=["GET"]),
                *CacheControl(self._parts, self._lifecycle).routes(),
                Route("/requests/{request_id}", self.request, methods=["GET"]),
                Route("/requests/{request_id}/receipt", self.receipt, methods=["GET"]),
                Route("/replicas", self.replicas, methods=["GET"]),
                Route("/replicas/{name:path}/drain", self.drain, methods=["POST"]),
                Route("/replicas/{name:path}/resume", self.resume, methods=["POST"]),
                Route("/replicas/{name:path}/release", self.release, methods=["POST"]),
                Route("/routes/explain", self.explain, methods=["POST"]),
                Route("/directory/refresh", self.refresh, methods=["POST"]),
                Route("/fleet", self.fleet, methods=["PUT"]),
                Route("/settings", self.settings, methods=["PUT"]),
            ]
        )

    async def statistics(self, _request: Request) -> Response:
        """Counts of now; everything under `in_flight` is zero when quiescent."""
        return _json(statistics(self._parts, self._lifecycle))

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text, finished requests included."""
        self._parts.recorder.flush()
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def queue(self, _request: Request) -> Response:
        """Requests waiting, by model and lane."""
        depths: dict[str, dict[str, int]] = {}
        for model, lane, depth in self._parts.dispatch.depths():
            depths.setdefault(model, {})[lane.value] = depth
        return _json({"waiting": depths, "total": self._parts.dispatch.num_waiting})

    async def request(self, request: Request) -> Response:
        """The record of one finished request."""
        found = self._parts.recorder.find(request.path_params["request_id"])
        return _json(found[0]) if found else _missing("no request of this id is remembered")

    async def receipt(self, request: Request) -> Response:
        """Why one request went where it went."""
        found = self._parts.recorder.find(request.path_params["request_id"])
        record, decision = found or (None, None)
        if record is None or decision is None:
            return _missing("no routed request of this id is remembered")
        receipt = decision.receipt(record.request_id, _actual(record))
        hedge = Hedge(record.hedge_replica, record.hedge) if record.hedge else None
        return _json(structs.replace(receipt, hedge=hedge))

    async def replicas(self, _request: Request) -> Response:
        """Every replica as this gateway sees it."""
        loads = dict(self._parts.fleet.loads())
        cache_of = self._parts.isolation.state_of
        data = [
            {
                **_entry(replica),
                "cache": cache_of(replica.spec),
                "kv_events": self._parts.kv_streams.state_of(replica.name),
                "load": loads.get(replica.name),
                "held_back": self._parts.router.pool.holdbacks.told(replica, self._parts.clock()),
            }
            for replica in self._parts.router.pool
        ]
        return _json({"data": data, "next_cursor": None})

    async def drain(self, request: Request) -> Response:
        """Send the replica nothing new."""
        return _replica(self._parts.fleet.drain(request.path_params["name"]))

    async def resume(self, request: Request) -> Response:
        """Send it work again."""
        return _replica(self._parts.fleet.resume(request.path_params["name"]))

    async def release(self, request: Request) -> Response:
        """The replica's cache was cleared: another tenant may have it. 409 while it is not drained."""
        replica = self._parts.router.pool.get(request.path_params["name"])
        if replica is not None:
            try:
                await self._parts.isolation.release(replica)
            except NotReleasable as error:
                return _problem(Problem(409, str(error), "invalid_request_error", "not_releasable"))
        return _replica(replica)

    async def refresh(self, _request: Request) -> Response:
        """Read the store now."""
        changed = await self._parts.directory.refresh()
        return _json({"changed": changed, "revision": self._parts.directory.revision})

    async def fleet(self, request: Request) -> Response:
        """The workers that live now."""
        try:
            self._parts.fleet.announce(msgspec.json.decode(await request.body(), type=Announcement))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _problem(Problem(400, str(error), "invalid_request_error"))
        return _json({"replicas": len(self._parts.router.pool)})

    async def settings(self, request: Request) -> Response:
        """The settings that are in force from now on."""
        try:
            self._apply(Settings(**msgspec.json.decode(await request.body(), type=dict[str, Any])))
        except (ConfigError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _problem(Problem(400, str(error), "invalid_request_error"))
        return _json({"replicas": len(self._parts.router.pool)})

    async def explain(self, request: Request) -> Response:
        """The decision this gateway would make now, as a receipt; nothing is sent or changed."""
        try:
            asked = msgspec.json.decode(await request.body(), type=ExplainRequest)
            query = await self._query(asked)
        except ClientError as error:
            return _problem(error.problem)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _problem(Problem(400, str(error), "invalid_request_error"))
        decision = self._parts.router.route(query, self._parts.clock())
        if isinstance(decision, RouteDecision):
            return _json(decision.receipt("dry-run"))
        reason = decision.sentence if isinstance(decision, NoReplica) else "every replica is full: it would wait"
        filtered = [{"replica": name, "filtered": rejection.value} for name, rejection in decision.filtered]
        return _json({"request_id": "dry-run", "chosen": None, "reason": reason, "candidates": filtered})

    async def _query(self, asked: ExplainRequest) -> RouteQuery:
        """The query this request would become. Raises `ClientError` and `ValueError`."""
        request = read(Surface(asked.surface), bytes(asked.request))
        tenant = self._parts.directory.tenant(asked.project_id)
        if tenant is None:
            raise ClientError("no project of this id has a key", param="project_id", status=404, code="not_found")
        model = self._parts.models.resolve(request.model, tenant)
        surface = request.surface.value if request.inputs is None else request.inputs.surface
        needs = self._parts.fleet.surfaces.needs(model, surface)
        key = route_key(model, tenant.cache_salt, request, self._parts.router.ratios)
        lane = Lane(asked.lane)
        labels = self._parts.settings.lanes.labels_of(lane)
        return RouteQuery(
            model,
            key,
            lane,
            tenant.project_id,
            request.max_output_tokens or 0,
            labels=labels,
            cache_domain=tenant.cache_domain,
            tokens=await self._parts.tokens.chain(model, request, tenant.cache_salt),
            needs=surface if needs is None else needs,
        )


def statistics(parts: Parts, lifecycle: Lifecycle) -> dict[str, object]:
    """What is held now. `in_flight` is all zero when the process is quiescent."""
    pool = parts.router.pool.statistics()
    leased = {"leased_units": parts.peers.statistics()["units_in_use"]} if parts.peers is not None else {}
    return {
        "in_flight": {
            **leased,
            "requests": lifecycle.num_in_flight,
            "queued": parts.dispatch.num_waiting,
            "turns": parts.dispatch.num_turns,
            "leases": pool.num_leases,
            "reservations": parts.quotas.num_reservations,
            "limit_takes": parts.quotas.meters.statistics()["takes"],
            "relaying": lifecycle.num_relaying,
            "mirrored": lifecycle.num_mirrored,
            "intents": parts.journal.num_open,
            "unwritten_responses": parts.conversations.num_pending,
            "upstream": parts.fleet.num_upstream(),
        },
        "ledger": ledger_counts(parts),
        "tasks": len(asyncio.all_tasks()),
        "replicas": len(pool.replicas),
        "keys": parts.directory.num_keys,
        "remembered": len(parts.recorder),
        "shadow_nodes": sum(replica.shadow_nodes for replica in pool.replicas),
        "exact_blocks": len(parts.kv_streams.index),
        "exact_blocks_dropped": parts.kv_streams.index.num_dropped,
    }


def _entry(replica: Replica) -> dict[str, object]:
    spec = replica.spec
    return {
        "name": spec.name,
        "model": spec.prefills_for or spec.model,
        "role": "prefill" if spec.prefills_for else "decode" if spec.is_decoder else "whole",
        "engine": spec.engine,
        "url": spec.url,
        "state": replica.state.value,
        "seats": spec.seats,
        "in_flight": {lane.value: replica.in_flight[lane.rank] for lane in Lane},
        "outstanding_tokens": replica.own_tokens,
        "labels": dict(spec.labels),
        "generation": spec.generation,
    }


def _actual(record: RequestRecord) -> Actual:
    is_reported = not record.is_estimated
    return Actual(
        ttft_ms=round(record.ttft_s * 1000, 3) if record.ttft_s is not None else None,
        hit_tokens=record.cached_tokens if is_reported else None,
        prompt_tokens=record.prompt_tokens if is_reported else None,
        outcome=record.outcome,
    )


def _replica(replica: Replica | None) -> Response:
    return _json(_entry(replica)) if replica is not None else _missing("there is no replica of this name")


def _missing(message: str) -> Response:
    return _problem(Problem(404, message, "not_found_error", "not_found"))


def _problem(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, media_type="application/json")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
