"""The worker as one ASGI application: which path is answered by what, and errors in OpenAI's shape everywhere."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engines.worker.embeddings import VectorEndpoint, embed, rerank, score
from engines.worker.errors import ApiError
from engines.worker.generate import GenerateEndpoint
from engines.worker.service import Service
from engines.worker.status import status_routes
from engines.worker.tokenize import TextEndpoint, detokenize, tokenize


def build_app(service: Service) -> Starlette:
    """The application around one service. Neither starts nor ends it."""
    posts: dict[str, ASGIApp] = {
        "/v1/chat/completions": GenerateEndpoint(service, service.chat),
        "/v1/completions": GenerateEndpoint(service, service.completions),
        "/v1/embeddings": VectorEndpoint(service, "embeddings", embed),
        **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), VectorEndpoint(service, "rerank", rerank)),
        **dict.fromkeys(("/v1/score", "/score"), VectorEndpoint(service, "score", score)),
        "/tokenize": TextEndpoint(service, tokenize),
        "/detokenize": TextEndpoint(service, detokenize),
    }
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
    return Starlette(
        routes=[*routes, *status_routes(service)],
        exception_handlers={HTTPException: _http_error, Exception: _bug},
    )


async def _http_error(_request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException), "registered for nothing else"
    messages = {404: "there is no such route", 405: "this route does not take that method"}
    answer = ApiError(error.status_code, messages.get(error.status_code, error.detail))
    return _response(answer, dict(error.headers or {}))


async def _bug(_request: Request, _error: Exception) -> Response:
    """A fault of ours. Starlette raises it again, so that the server logs its trace."""
    return _response(ApiError(500, "the worker failed", code="internal_error"), {})


def _response(error: ApiError, headers: dict[str, str]) -> Response:
    return Response(error.body(), error.status, headers, media_type="application/json")
