"""The admin plane: a Starlette app of its own, on its own listener, closed to everybody without the admin token.

The token is asked for before any routing, so no spelling of a path can come in beside it; only /health/live is open.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
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
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.control_client import ControlError, GatewayControl
from gateway.admin.endpoints import PREFIX, Endpoint, reply
from gateway.admin.openapi import openapi
from gateway.admin.operations import Config, Operations
from gateway.admin.tenancy import Tenancy
from gateway.errors import ClientError, Problem
from policies.keys import CredentialFault, read_credential
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
) -> Starlette:
    """The admin plane. `config`: the settings in force as plain values, for GET /config. `clock`: Unix seconds.

    Raises `ValueError` for a token that no request could carry: empty, too long, or not visible ASCII.
    """
    if read_credential([(b"x-api-key", admin_token.encode())]) != admin_token.encode():
        raise ValueError("the admin token must have 1 to 512 visible ASCII characters")
    endpoints = admin_endpoints(store, control, config, clock)
    app = Starlette(
        routes=_routes(endpoints),
        middleware=[Middleware(AdminTokenRequired, admin_token=admin_token)],
        exception_handlers=_EXCEPTIONS,
    )
    # /health/live and /health/live/ are different paths: a redirect would answer before the method is known.
    app.router.redirect_slashes = False
    return app


def admin_endpoints(
    store: Store, control: GatewayControl, config: Config = dict[str, Any], clock: Callable[[], float] = time.time
) -> tuple[Endpoint, ...]:
    """Every row of the admin plane with its full path: the routes, the OpenAPI document and the tests follow it."""
    operations = Operations(control, config)
    versioned = (*Tenancy(store, control, clock).endpoints(), *operations.endpoints())
    rows = [replace(one, path=PREFIX + one.path) for one in versioned]

    async def openapi_document(_: Request) -> Response:
        return reply(openapi(rows, _version()))

    rows += [
        Endpoint("GET", f"{PREFIX}/openapi.json", "Read this document", openapi_document),
        Endpoint("GET", "/metrics", "Read the metrics as Prometheus text", operations.metrics, is_text=True),
        Endpoint("GET", LIVE_PATH, "Is the supervisor alive?", _live, is_public=True),
    ]
    return tuple(rows)


class AdminTokenRequired:
    """Plain ASGI middleware: 401 for whatever does not carry the admin token, before anything else is looked at."""

    def __init__(self, app: ASGIApp, admin_token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(admin_token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._is_allowed(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            problem = Problem(401, "give the admin token: Authorization: Bearer …", "authentication_error", _CODE_401)
            response = _reply_problem(problem)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _is_allowed(self, scope: Scope) -> bool:
        if scope["path"] == LIVE_PATH:
            return True
        credential = read_credential(header for header in scope["headers"] if header[0] == b"authorization")
        if isinstance(credential, CredentialFault):
            return False
        return hmac.compare_digest(hashlib.sha256(credential).digest(), self._digest)


_CODE_401 = "invalid_admin_token"


def _routes(endpoints: tuple[Endpoint, ...]) -> list[Route]:
    """One route for each path, so that a wrong method is told which are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _dispatcher(methods), methods=list(methods)) for path, methods in by_path.items()]


def _dispatcher(methods: Mapping[str, Endpoint]) -> Callable[[Request], Any]:
    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method].respond(request)

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
    problem = Problem(503, "the store failed; its log line says why", "service_unavailable_error", "store_unavailable")
    return _reply_problem(problem)


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
