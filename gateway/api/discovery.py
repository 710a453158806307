"""GET /v1/models, and the two questions a load balancer asks."""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.anthropic_api.errors import ANTHROPIC
from gateway.anthropic_api.models import VERSION_HEADER, told_model, told_models
from gateway.auth import AuthFailure, Directory
from gateway.errors import Problem
from gateway.language import OPENAI, Language
from gateway.models import ModelTable, ServedModel
from gateway.outcome import Outcome

_JSON = "application/json"
# Whoever asks has shown no key: where things lie on this machine is for the log and the admin plane.
_STORE_LOST = "store lost: the log says which file, restore it or restart"
_NOT_WRITTEN = "requests cannot be written down: the log says why"


class Discovery:
    """Tells models and how the gateway stands.

    `is_ready`: whether a request could be served now; `is_degraded`: with less than usual; `unix`: Unix seconds.
    `fault`: what an operator must mend, None if nothing. `is_draining`: whether it stops, and only open streams go on.
    """

    def __init__(
        self,
        directory: Directory,
        models: ModelTable,
        is_ready: Callable[[], bool],
        unix: Callable[[], float],
        is_degraded: Callable[[], bool] = lambda: False,
        *,
        is_draining: Callable[[], bool] = lambda: False,
        fault: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._models = models
        self._is_ready = is_ready
        self._is_degraded = is_degraded
        self._is_draining = is_draining
        self._fault = fault
        self._unix = unix
        self._started_at = int(unix())

    def routes(self) -> list[Route]:
        """The routes of this surface."""
        return [
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", self.one_model, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/health/ready", self.ready, methods=["GET"]),
        ]

    async def list_models(self, request: Request) -> Response:
        """The models the caller may use."""
        visible = self._visible(request)
        if isinstance(visible, Response):
            return visible
        if _is_anthropic(request):
            return _json(told_models(visible, self._started_at))
        return _json({"object": "list", "data": [self._entry(model) for model in visible]})

    async def one_model(self, request: Request) -> Response:
        """One of them, by name or alias."""
        visible = self._visible(request)
        if isinstance(visible, Response):
            return visible
        name = request.path_params["name"]
        for model in visible:
            if name == model.name or name in model.aliases:
                is_anthropic = _is_anthropic(request)
                return _json(told_model(model, self._started_at) if is_anthropic else self._entry(model))
        gone = Problem(404, f"the model {name[:128]!r} does not exist", "not_found_error", "model_not_found", "model")
        return problem_response(gone, _language(request))

    async def live(self, _request: Request) -> Response:
        """200 while the process runs."""
        return _json({"status": "live"})

    async def ready(self, _request: Request) -> Response:
        """200 while requests can be served, 503 while starting, stopping (`draining`) or without a ready replica.

        `degraded` is a 200: the shared store is away, and every gateway serves with its part of the seats; or the file
        of the store is lost (`reason`), and known keys are served; or the ledger takes nothing (`reason`), and requests
        are refused until it does.
        """
        if not self._is_ready():
            return _json({"status": "draining" if self._is_draining() else "not ready"}, 503)
        if self._directory.store_lost:
            return _json({"status": "degraded", "reason": _STORE_LOST})
        if self._fault():
            return _json({"status": "degraded", "reason": _NOT_WRITTEN})
        return _json({"status": "degraded" if self._is_degraded() else "ready"})

    def _visible(self, request: Request) -> list[ServedModel] | Response:
        headers = [(bytes(name), bytes(value)) for name, value in request.scope["headers"]]
        principal = self._directory.authenticate(headers, self._unix())
        if isinstance(principal, AuthFailure):
            failure = Problem(
                401, principal.message, "authentication_error", principal.code, outcome=Outcome.UNAUTHENTICATED
            )
            return problem_response(failure, _language(request))
        return self._models.visible(principal.tenant)

    def _entry(self, model: ServedModel) -> dict[str, object]:
        entry: dict[str, object] = {
            "id": model.name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "warmlane",
        }
        if model.aliases:
            entry["aliases"] = model.aliases
        if model.context_tokens is not None:
            entry["max_model_len"] = model.context_tokens
        if model.tasks is not None:
            entry["tasks"] = model.tasks
        return entry


def _is_anthropic(request: Request) -> bool:
    """Anthropic and OpenAI list models at the same path; the one's clients always say which version they speak."""
    return VERSION_HEADER in request.headers


def _language(request: Request) -> Language:
    return ANTHROPIC if _is_anthropic(request) else OPENAI


def problem_response(problem: Problem, language: Language = OPENAI) -> Response:
    """A problem as a Starlette response."""
    headers = {name.decode(): value.decode() for name, value in problem.headers()}
    return Response(language.problem(problem, ""), problem.status, headers, _JSON)


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=_JSON)
