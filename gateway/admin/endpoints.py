"""One row for each admin endpoint: its route, its bodies and what it does, from which routes and OpenAPI are made."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway.admin.access import Subject
from gateway.admin.wire import MAX_BODY_BYTES
from gateway.errors import ClientError
from policies.roles import Action
from policies.store import MAX_PAGE

PREFIX = "/admin/v1"
DEFAULT_PAGE = 100

Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`body`, `answer`: the types of the JSON bodies; None: no body, or an object that a gateway process defines.

    `filters`: query parameters of a list besides `limit` and `after`. `flags`: those that are true or false. `status`:
    of a success. `action`, `subject`: what a caller must be allowed, and where; platform admins alone if it says none.
    """

    method: str
    path: str
    summary: str
    respond: Answer
    body: Any = None
    is_body_optional: bool = False
    answer: Any = None
    status: int = 200
    is_list: bool = False
    filters: tuple[str, ...] = field(default=())
    is_public: bool = False
    is_text: bool = False
    flags: tuple[str, ...] = ()
    action: Action = Action.OPERATE
    subject: Subject = Subject.INSTALLATION


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which part of a list is wanted."""

    limit: int
    after: str | None
    filters: dict[str, str]


def read_page(request: Request, *filters: str) -> PageRequest:
    """The query of a list endpoint. Raises `ClientError` for an unknown, repeated or bad parameter."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in ("limit", "after", *filters) or name in query:
            how = "is repeated" if name in query else "is not known here"
            raise ClientError(f"the query parameter {name!r} {how}", param=name, code="invalid_query")
        query[name] = value
    limit = query.pop("limit", str(DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MAX_PAGE):
        raise ClientError(f"limit is a whole number from 1 to {MAX_PAGE}", param="limit", code="invalid_query")
    return PageRequest(int(limit), query.pop("after", None), query)


def read_flag(request: Request, name: str) -> bool:
    """The one query parameter of an endpoint, `true` or `false`; absent: false. Raises `ClientError`."""
    query = request.query_params.multi_items()
    if not query:
        return False
    if len(query) > 1 or query[0][0] != name or query[0][1] not in ("true", "false"):
        raise ClientError(f"the query may only be {name}=true or {name}=false", param=name, code="invalid_query")
    return query[0][1] == "true"


async def read_bounded(request: Request) -> bytes:
    """The request's body. Raises `ClientError` (413) beyond 1 MiB, before it has been taken into memory."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise ClientError(f"a body here has at most {MAX_BODY_BYTES} bytes", status=413, code="body_too_large")
    except ClientDisconnect as error:
        raise ClientError("the body ended early", code="invalid_body") from error
    return bytes(body)


def reply(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer from a struct, a dict, or JSON bytes."""
    body = content if isinstance(content, bytes) else msgspec.json.encode(content)
    return Response(body, status, headers, media_type="application/json")
