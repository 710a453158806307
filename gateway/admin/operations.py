"""What the gateways know and do, over HTTP: replicas, requests, receipts, queue, statistics, configuration, metrics."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Subject, caller_of
from gateway.admin.aggregate import summed, summed_exposition
from gateway.admin.control_client import GatewayControl
from gateway.admin.endpoints import Endpoint, read_bounded, reply
from gateway.admin.wire import ReloadedBody
from gateway.errors import ClientError
from gateway.settings import ConfigError
from observability.metrics import GaugeRows, exposition
from policies.audit import Author, Change
from policies.roles import EVERYWHERE, Action, Place
from policies.store import Store, StoreError

log = structlog.get_logger()

REDACTED = "***"
_SECRET_NAME = re.compile(r"(^|_)(secret|token|password|api_key|key|authorization|credentials?)$", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")

Config = Callable[[], Mapping[str, Any]]
Reload = Callable[[], Awaitable[ReloadedBody]]


class Counted(Protocol):
    """A part of the supervisor that counts: whoever keeps the ledger, or the settings."""

    def statistics(self) -> dict[str, Any]:
        """What goes into the statistics, under a name of its own."""
        ...

    def metrics(self) -> GaugeRows:
        """The same as metrics."""
        ...


async def nothing_to_reload() -> ReloadedBody:
    """For settings that came from no file: they are as they were."""
    return ReloadedBody()


class Operations:
    """The endpoints of what runs. `config`: the settings in force as plain values, asked at every request."""

    def __init__(
        self, control: GatewayControl, config: Config, reload: Reload, store: Store, counted: Sequence[Counted] = ()
    ) -> None:
        """`reload`: raises `ConfigError` for a configuration that cannot be used. `store`: has the audit log.

        `counted`: what the supervisor counts beside the gateways.
        """
        self._counted = counted
        self._store = store
        self._control = control
        self._config = config
        self._reload = reload

    async def replicas(self, _: Request) -> Response:
        """GET /replicas."""
        return reply(await self._control.replicas())

    async def drain(self, request: Request) -> Response:
        """POST /replicas/{name}/drain."""
        name = request.path_params["name"]
        return await self._changed(request, "replica.drained", _found(await self._control.drain(name), "replica", name))

    async def resume(self, request: Request) -> Response:
        """POST /replicas/{name}/resume."""
        name = request.path_params["name"]
        resumed = _found(await self._control.resume(name), "replica", name)
        return await self._changed(request, "replica.resumed", resumed)

    async def release(self, request: Request) -> Response:
        """POST /replicas/{name}/release."""
        name = request.path_params["name"]
        status, answer = await self._control.release(name)
        if status == 404:
            return _found(None, "replica", name)
        released = reply(answer, status)
        return released if status >= 400 else await self._changed(request, "replica.released", released)

    async def request(self, request: Request) -> Response:
        """GET /requests/{id}."""
        return _found(await self._record(request), "request", request.path_params["id"])

    async def receipt(self, request: Request) -> Response:
        """GET /requests/{id}/receipt."""
        request_id = request.path_params["id"]
        is_own = EVERYWHERE in caller_of(request).readable or await self._record(request) is not None
        return _found(await self._control.receipt(request_id) if is_own else None, "request", request_id)

    async def explain(self, request: Request) -> Response:
        """POST /routes/explain."""
        status, answer = await self._control.explain(await read_bounded(request))
        return reply(answer, status)

    async def queue(self, _: Request) -> Response:
        """GET /queue."""
        return reply(await self._control.queue())

    async def statistics(self, _: Request) -> Response:
        """GET /statistics."""
        found = await self._control.statistics()
        return reply(summed([found, *(one.statistics() for one in self._counted)]))

    async def config(self, _: Request) -> Response:
        """GET /config."""
        return reply(redacted(self._config()))

    async def reload_config(self, request: Request) -> Response:
        """POST /config/reload."""
        try:
            reloaded = reply(await self._reload())
            return await self._changed(request, "config.reloaded", reloaded)
        except ConfigError as error:
            raise ClientError(str(error), code="invalid_config") from error

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        texts = [await self._control.metrics()]
        texts += [exposition(one.metrics) for one in self._counted]
        return Response(summed_exposition(texts), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _record(self, request: Request) -> bytes | None:
        """The record of the request in the path, if the caller may see it."""
        found = await self._control.request(request.path_params["id"])
        if found is None:
            return None
        whose = msgspec.json.decode(found, type=_Whose)
        return found if caller_of(request).may(Action.READ, Place(whose.organization, whose.project)) else None

    async def _changed(self, request: Request, action: str, answer: Response) -> Response:
        """The answer, once the audit log has it. What runs must be operable while the store is away."""
        change = Change(action, request.path_params.get("name", "config"), after=bytes(answer.body))
        await note(self._store, change, caller_of(request).author)
        return answer

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (
            Endpoint("GET", "/replicas", "List the replicas and their state", self.replicas),
            Endpoint("POST", "/replicas/{name:path}/drain", "Send a replica no new work", self.drain),
            Endpoint("POST", "/replicas/{name:path}/resume", "Send a drained replica work again", self.resume),
            Endpoint(
                "POST",
                "/replicas/{name:path}/release",
                "Say that a drained replica's cache was cleared: another tenant may have it",
                self.release,
            ),
            Endpoint(
                "GET",
                "/requests/{id}",
                "Read the record of a recent request",
                self.request,
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/requests/{id}/receipt",
                "Read why a recent request went where it went",
                self.receipt,
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
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
                "Read the configuration again; a bad one is refused as a whole",
                self.reload_config,
                answer=ReloadedBody,
            ),
        )


async def note(store: Store, change: Change, by: Author) -> None:
    """Write down what was done to what runs. Where the store is away the log has to do."""
    try:
        await store.note_change(change, by=by)
    except StoreError as error:
        log.warning("audit.not_written", action=change.action, error=str(error))


class _Whose(msgspec.Struct):
    organization: str = ""
    project: str = ""


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
