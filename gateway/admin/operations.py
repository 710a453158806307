"""What the gateways know and do, over HTTP: replicas, requests, receipts, queue, statistics, configuration, metrics."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.control_client import GatewayControl
from gateway.admin.endpoints import Endpoint, read_bounded, reply
from gateway.admin.wire import ErrorBody
from gateway.errors import ClientError

NO_RELOAD = "this version reads its configuration at start only; end it kindly (SIGTERM) and start it again"
REDACTED = "***"
_SECRET_NAME = re.compile(r"(^|_)(secret|token|password|api_key|key|authorization|credentials?)$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")

Config = Callable[[], Mapping[str, Any]]


class Operations:
    """The endpoints of what runs. `config`: the settings in force as plain values, asked at every request."""

    def __init__(self, control: GatewayControl, config: Config) -> None:
        self._control = control
        self._config = config

    async def replicas(self, _: Request) -> Response:
        """GET /replicas."""
        return reply(await self._control.replicas())

    async def drain(self, request: Request) -> Response:
        """POST /replicas/{name}/drain."""
        name = request.path_params["name"]
        return _found(await self._control.drain(name), "replica", name)

    async def resume(self, request: Request) -> Response:
        """POST /replicas/{name}/resume."""
        name = request.path_params["name"]
        return _found(await self._control.resume(name), "replica", name)

    async def request(self, request: Request) -> Response:
        """GET /requests/{id}."""
        request_id = request.path_params["id"]
        return _found(await self._control.request(request_id), "request", request_id)

    async def receipt(self, request: Request) -> Response:
        """GET /requests/{id}/receipt."""
        request_id = request.path_params["id"]
        return _found(await self._control.receipt(request_id), "request", request_id)

    async def explain(self, request: Request) -> Response:
        """POST /routes/explain."""
        status, answer = await self._control.explain(await read_bounded(request))
        return reply(answer, status)

    async def queue(self, _: Request) -> Response:
        """GET /queue."""
        return reply(await self._control.queue())

    async def statistics(self, _: Request) -> Response:
        """GET /statistics."""
        return reply(await self._control.statistics())

    async def config(self, _: Request) -> Response:
        """GET /config."""
        return reply(redacted(self._config()))

    async def reload_config(self, _: Request) -> Response:
        """POST /config/reload."""
        raise ClientError(NO_RELOAD, status=501, code="not_implemented")

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        return Response(await self._control.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (
            Endpoint("GET", "/replicas", "List the replicas and their state", self.replicas),
            Endpoint("POST", "/replicas/{name:path}/drain", "Send a replica no new work", self.drain),
            Endpoint("POST", "/replicas/{name:path}/resume", "Send a drained replica work again", self.resume),
            Endpoint("GET", "/requests/{id}", "Read the record of a recent request", self.request),
            Endpoint("GET", "/requests/{id}/receipt", "Read why a recent request went where it went", self.receipt),
            Endpoint(
                "POST",
                "/routes/explain",
                "Where would this request go now? Nothing is sent",
                self.explain,
                body=dict[str, Any],
            ),
            Endpoint("GET", "/queue", "Read what waits in the lanes", self.queue),
            Endpoint("GET", "/statistics", "Read what is in flight; all zero when quiescent", self.statistics),
            Endpoint("GET", "/config", "Read the settings in force, secrets left out", self.config),
            Endpoint(
                "POST",
                "/config/reload",
                "Read the configuration again: not in this version, 501",
                self.reload_config,
                status=501,
                answer=ErrorBody,
            ),
        )


def redacted(value: Any) -> Any:
    """Plain values with every secret replaced: by the name it stands under, and credentials inside URLs."""
    if isinstance(value, Mapping):
        return {
            name: REDACTED if inner and _SECRET_NAME.search(str(name)) else redacted(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted(inner) for inner in value]
    return _USER_IN_URL.sub(REDACTED, value) if isinstance(value, str) else value


def _found(answer: bytes | None, kind: str, name: str) -> Response:
    if answer is None:
        raise ClientError(f"no gateway knows the {kind} {name!r}", status=404, code=f"unknown_{kind}")
    return reply(answer)
