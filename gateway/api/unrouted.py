"""What is told whoever asks for a path or a method that is not there, in the language of what lies nearest."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.discovery import problem_response
from gateway.errors import BUG, Problem
from gateway.languages import language_near


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this class"
    path = request.url.path
    problem = Problem(error.status_code, error.detail, "invalid_request_error")
    if error.status_code == 404:
        problem = Problem(404, f"there is no {path[:128]} here", "not_found_error", "route_not_found")
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {path[:128]}"
        problem = Problem(405, message, "invalid_request_error", "method_not_allowed")
    response = problem_response(problem, language_near(path))
    if error.status_code == 405:
        response.headers.update(error.headers or {})  # `Allow`
    return response


async def _bug(_request: Request, _error: Exception) -> Response:
    return problem_response(BUG)


UNROUTED: Mapping[Any, Callable[[Request, Exception], Coroutine[Any, Any, Response]]] = {
    HTTPException: _http_error,
    Exception: _bug,
}
