"""What can be done with a response that was told: read it, read what it was asked with, delete it.

POST /v1/responses itself is a hot path. Another project's responses do not exist here.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.discovery import problem_response
from gateway.auth import AuthFailure, Directory
from gateway.conversations import Conversations, not_there
from gateway.errors import ClientError, Problem, Refused
from gateway.outcome import Outcome
from gateway.responses_api.paths import RESPONSES
from gateway.responses_api.state import Kept, id_of
from policies.tenant import Tenant

DEFAULT_PAGE, MAX_PAGE = 20, 100  # OpenAI's

Answer = Callable[[Request, str, str], Awaitable[Any]]


class Responses:
    """`unix`: Unix seconds."""

    def __init__(self, directory: Directory, conversations: Conversations, unix: Callable[[], float]) -> None:
        self._directory = directory
        self._conversations = conversations
        self._unix = unix

    def routes(self) -> list[Route]:
        """The routes of this surface."""
        one = RESPONSES + "/{id}"
        return [
            Route(one, self._for_caller(self.retrieve), methods=["GET"]),
            Route(one, self._for_caller(self.delete), methods=["DELETE"]),
            Route(one + "/cancel", self._for_caller(self.cancel), methods=["POST"]),
            Route(one + "/input_items", self._for_caller(self.input_items), methods=["GET"]),
        ]

    async def retrieve(self, request: Request, project_id: str, response_id: str) -> Raw:
        """The response as it was told, whole."""
        query = request.query_params
        for name in ("stream", "starting_after"):
            if query.get(name, "false") not in ("false", ""):
                raise ClientError("a response that was told is not streamed again", param=name, code="invalid_query")
        return (await self._kept(project_id, response_id)).response

    async def delete(self, _request: Request, project_id: str, response_id: str) -> dict[str, Any]:
        """It is gone; what went on from it stays."""
        if not await self._conversations.drop(project_id, response_id):
            raise not_there(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    async def cancel(self, _request: Request, project_id: str, response_id: str) -> Any:
        """Nothing that was told can be cancelled, and nothing runs in the background."""
        await self._kept(project_id, response_id)
        message = "only a response in the background can be cancelled, and this one is told already"
        raise ClientError(message, param="id", code="not_in_background")

    async def input_items(self, request: Request, project_id: str, response_id: str) -> dict[str, Any]:
        """All that came before its output, earlier turns included."""
        items = (await self._kept(project_id, response_id)).items
        query = request.query_params
        limit, order = query.get("limit", str(DEFAULT_PAGE)), query.get("order", "desc")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= MAX_PAGE):
            raise ClientError(f"limit is a whole number from 1 to {MAX_PAGE}", param="limit", code="invalid_query")
        if order not in ("asc", "desc"):
            raise ClientError("order is asc or desc", param="order", code="invalid_query")
        if order == "desc":
            items = items[::-1]
        ids = [id_of(item) for item in items]
        start = 0
        if (after := query.get("after")) is not None:
            if after not in ids:
                raise ClientError("after is not the id of an item here", param="after", code="invalid_query")
            start = ids.index(after) + 1
        end = start + int(limit)
        shown = ids[start:end]
        return {
            "object": "list",
            "data": items[start:end],
            "first_id": shown[0] if shown else "",  # OpenAI's schema has no null here
            "last_id": shown[-1] if shown else "",
            "has_more": end < len(items),
        }

    async def _kept(self, project_id: str, response_id: str) -> Kept:
        found = await self._conversations.find(project_id, response_id)
        if found is None:
            raise not_there(response_id)
        return found

    def _for_caller(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """The answer for whoever has a key, or what is wrong."""

        async def respond(request: Request) -> Response:
            headers = [(bytes(name), bytes(value)) for name, value in request.scope["headers"]]
            principal = self._directory.authenticate(headers, self._unix())
            if isinstance(principal, AuthFailure):
                return problem_response(Problem(401, principal.message, "authentication_error", principal.code))
            tenant = self._directory.tenant(principal.tenant.project_id) or principal.tenant
            try:
                _refuse_surface(tenant)
                told = await answer(request, tenant.project_id, request.path_params["id"])
            except (ClientError, Refused) as error:
                return problem_response(error.problem)
            return Response(msgspec.json.encode(told), media_type="application/json")

        return respond


def _refuse_surface(tenant: Tenant) -> None:
    if tenant.limits.surfaces is not None and RESPONSES not in tenant.limits.surfaces:
        message = f"this project may not use {RESPONSES}"
        raise ClientError(message, status=403, code="surface_not_allowed", outcome=Outcome.FORBIDDEN)
