"""The admin plane: a Starlette app of its own, on its own listener, closed to everybody who is not known (access.py).

Who calls is asked before any routing, so no spelling of a path can come in beside it; only /health/live is open. What
they may do is asked before an endpoint runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.access import CALLER, Door, Places, Subject, store_problem
from gateway.admin.applied import Applied
from gateway.admin.audit import Audit
from gateway.admin.control_client import ControlError, GatewayControl
from gateway.admin.endpoints import PREFIX, Endpoint, reply
from gateway.admin.keys import Keys
from gateway.admin.oidc import People
from gateway.admin.openapi import openapi
from gateway.admin.operations import Config, Counted, Operations, Reload, nothing_to_reload
from gateway.admin.prefixes import Prefixes
from gateway.admin.tenancy import Tenancy
from gateway.admin.usage import Usage
from gateway.errors import ClientError, Problem
from policies.keys import read_credential
from policies.roles import Action
from policies.store import Store, StoreError, UnknownId

LIVE_PATH = "/health/live"

log = structlog.get_logger()


def create_admin_app(
    store: Store,
    control: GatewayControl,
    admin_token: str,
    *,
    config: Config = dict[str, Any],
    clock: Callable[[], float] = time.time,
    usage: Usage | None = None,
    reload: Reload = nothing_to_reload,
    people: People | None = None,
    on_key_used: Callable[[str], None] = lambda _: None,
    counted: Sequence[Counted] = (),
) -> Starlette:
    """The admin plane. `config`: the settings in force as plain values, for GET /config. `clock`: Unix seconds.

    `reload`: reads them again. `usage`: what the ledger tells; None where there is none. `people`: those of the OpenID
    provider, None where there is none; the caller closes it. `on_key_used`: told the id of a key that came in.
    `counted`: what the supervisor counts.

    Raises `ValueError` for a token that no request could carry: empty, too long, or not visible ASCII.
    """
    if read_credential([(b"x-api-key", admin_token.encode())]) != admin_token.encode():
        raise ValueError("the admin token must have 1 to 512 visible ASCII characters")
    endpoints = admin_endpoints(store, control, config, clock, usage, reload=reload, counted=counted)
    app = Starlette(
        routes=_routes(endpoints, Places(store)),
        middleware=[Middleware(CallerRequired, door=Door(store, admin_token, people, clock, on_key_used))],
        exception_handlers=_EXCEPTIONS,
    )
    # /health/live and /health/live/ are different paths: a redirect would answer before the method is known.
    app.router.redirect_slashes = False
    return app


def admin_endpoints(
    store: Store,
    control: GatewayControl,
    config: Config = dict[str, Any],
    clock: Callable[[], float] = time.time,
    usage: Usage | None = None,
    *,
    reload: Reload = nothing_to_reload,
    counted: Sequence[Counted] = (),
) -> tuple[Endpoint, ...]:
    """Every row of the admin plane with its full path: the routes, the OpenAPI document and the tests follow it."""
    operations, applied = Operations(control, config, reload, store, counted), Applied(control)
    versioned = (
        *Tenancy(store, applied).endpoints(),
        *Keys(store, Places(store), applied, clock).endpoints(),
        *Audit(store).endpoints(),
        *operations.endpoints(),
        *Prefixes(control, store).endpoints(),
    )
    if usage is not None:
        versioned += usage.endpoints()
    rows = [replace(one, path=PREFIX + one.path) for one in versioned]

    async def openapi_document(_: Request) -> Response:
        return reply(openapi(rows, _version()))

    rows += [
        Endpoint(
            "GET",
            f"{PREFIX}/openapi.json",
            "Read this document",
            openapi_document,
            action=Action.READ,
            subject=Subject.ITS_OWN_CARE,
        ),
        Endpoint("GET", "/metrics", "Read the metrics as Prometheus text", operations.metrics, is_text=True),
        Endpoint("GET", LIVE_PATH, "Is the supervisor alive?", _live, is_public=True),
    ]
    return tuple(rows)


class CallerRequired:
    """Plain ASGI middleware: whoever is not known is turned away before anything else is looked at.

    Every answer to those who are carries `x-request-id`, under which the audit log has what they changed.
    """

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == LIVE_PATH):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            caller = await self._door.caller(list(scope["headers"]))
            if isinstance(caller, Problem):
                await _reply_problem(caller)(scope, receive, send)
                return
            scope[CALLER] = caller
            await self._app(scope, receive, _with_id(send, caller.request_id))
        else:
            await send({"type": "websocket.close", "code": 1008})


def _with_id(send: Send, request_id: str) -> Send:
    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
        await send(message)

    return send_with_id


def _routes(endpoints: tuple[Endpoint, ...], places: Places) -> list[Route]:
    """One route for each path, so that a wrong method is told which are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _dispatcher(methods, places), methods=list(methods)) for path, methods in by_path.items()]


def _dispatcher(methods: Mapping[str, Endpoint], places: Places) -> Callable[[Request], Any]:
    async def dispatch(request: Request) -> Response:
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        if not endpoint.is_public:
            await places.check(request, endpoint.action, endpoint.subject)
        return await endpoint.respond(request)

    return dispatch


async def _live(_: Request) -> Response:
    return reply({"status": "alive"})


def _reply_problem(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    response = reply(problem.body(), problem.status, dict(headers or {}))
    response.raw_headers.extend(problem.headers())
    return response


async def _on_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: "there is no such route", 405: "this route does not take this method"}.get(error.status_code)
    problem = Problem(error.status_code, message or error.detail, "invalid_request_error", "unknown_route")
    return _reply_problem(problem, error.headers)


async def _on_client(_: Request, error: Exception) -> Response:
    assert isinstance(error, ClientError)
    return _reply_problem(error.problem)


async def _on_unknown(_: Request, error: Exception) -> Response:
    assert isinstance(error, UnknownId)
    return _reply_problem(Problem(404, str(error), "not_found_error", f"unknown_{error.kind}"))


async def _on_control(_: Request, error: Exception) -> Response:
    problem = Problem(503, str(error), "service_unavailable_error", "gateway_unavailable", retry_after_s=1)
    return _reply_problem(problem)


async def _on_store(_: Request, error: Exception) -> Response:
    log.error("admin.store_failed", error=str(error))
    assert isinstance(error, StoreError)
    return _reply_problem(store_problem(error))


async def _on_bug(_: Request, __: Exception) -> Response:
    return _reply_problem(
        Problem(500, "the admin plane failed; the error is in its log", "server_error", "internal_error")
    )


_EXCEPTIONS: dict[Any, Any] = {
    HTTPException: _on_http,
    ClientError: _on_client,
    UnknownId: _on_unknown,
    ControlError: _on_control,
    StoreError: _on_store,
    Exception: _on_bug,
}


def _version() -> str:
    try:
        return version("warmlane")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0"
