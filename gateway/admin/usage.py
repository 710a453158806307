"""What was used, from the ledger: totals by group, and the requests themselves."""

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Subject, caller_of, narrowed
from gateway.admin.endpoints import Endpoint, PageRequest, read_page, reply
from gateway.errors import ClientError
from gateway.usage_wire import (
    RequestRowBody,
    RequestRowList,
    UsageList,
    read_group,
    read_period,
    request_list,
    request_row,
    usage_list,
)
from policies.ledger import Group, Ledger, Retention, Wanted
from policies.ledger_totals import widened
from policies.roles import Action, Place

_PERIOD = ("from", "to")
_WHOSE = ("organization_id", "project_id", "key_id", "model", "lane")


class Usage:
    """The endpoints of the ledger. `keep`: how long it keeps what. `clock`: Unix seconds."""

    def __init__(self, ledger: Ledger, keep: Retention, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._keep = keep
        self._clock = clock

    async def usage(self, request: Request) -> Response:
        """GET /usage. The period is widened to whole hours, and to whole days where it is long ago."""
        wanted = read_page(request, "group_by", *_PERIOD, *_WHOSE)
        group_by = read_group(wanted.filters, Group.PROJECT)
        period = widened(self._wanted(request, wanted), self._clock(), self._keep)
        try:
            page = await self._ledger.usage(period, group_by, limit=wanted.limit, after=wanted.after)
        except ValueError as error:
            raise _no_cursor() from error
        return reply(usage_list(page))

    async def requests(self, request: Request) -> Response:
        """GET /usage/requests."""
        wanted = read_page(request, *_PERIOD, *_WHOSE)
        try:
            page = await self._ledger.rows(self._wanted(request, wanted), limit=wanted.limit, after=wanted.after)
        except ValueError as error:
            raise _no_cursor() from error
        return reply(request_list(page))

    async def request(self, request: Request) -> Response:
        """GET /usage/requests/{id}."""
        request_id = request.path_params["id"]
        row = await self._ledger.row(request_id)
        if row is None or not caller_of(request).may(Action.READ, Place(row.organization, row.project)):
            raise ClientError(f"the ledger has no request {request_id!r}", status=404, code="unknown_request")
        return reply(request_row(row))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (
            Endpoint(
                "GET",
                "/usage",
                "Read what was used, by organisation, project, key, model, lane or day",
                self.usage,
                answer=UsageList,
                is_list=True,
                filters=("group_by", *_PERIOD, *_WHOSE),
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/usage/requests",
                "Read the requests of a period, one row each",
                self.requests,
                answer=RequestRowList,
                is_list=True,
                filters=(*_PERIOD, *_WHOSE),
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/usage/requests/{id}",
                "Read the row of one request",
                self.request,
                answer=RequestRowBody,
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
        )

    def _wanted(self, request: Request, page: PageRequest) -> Wanted:
        """What is asked for, of what the caller may see."""
        starts_at, ends_at = read_period(page.filters, self._clock())
        filters = narrowed(request, page.filters)
        whose = {name.removesuffix("_id"): filters[name] for name in _WHOSE if name in filters}
        return Wanted(starts_at, ends_at, **whose)


def _no_cursor() -> ClientError:
    return ClientError("after is not where a page ended", param="after", code="invalid_query")
