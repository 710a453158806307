"""Prefixes: where a project's successive prompts first differ, and one warmed on replicas before it is asked for.

Differences are those that all gateways of this node have seen; warming is done by one of them.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Subject, caller_of
from gateway.admin.control_client import GatewayControl
from gateway.admin.endpoints import Endpoint, read_bounded, read_page, reply
from gateway.admin.operations import note
from gateway.admin.wire import read_body
from gateway.errors import ClientError
from gateway.prefix_report import PrefixList, summed_rows
from gateway.warm_wire import WarmBody, WarmedBody
from policies.audit import Change
from policies.roles import Action, Place
from policies.store import Store

_WHOSE = ("organization_id", "project_id")


class Prefixes:
    """The endpoints of prefixes. `store`: has the audit log."""

    def __init__(self, control: GatewayControl, store: Store) -> None:
        self._control = control
        self._store = store

    async def prefixes(self, request: Request) -> Response:
        """GET /prefixes: of the projects that the caller may read, others do not exist."""
        page, caller = read_page(request, *_WHOSE), caller_of(request)
        rows = [
            row
            for row in summed_rows(await self._control.prefixes())
            if caller.may(Action.READ, Place(row.organization_id, row.project_id))
            and all(getattr(row, name) == value for name, value in page.filters.items())
            and (page.after is None or row.id > page.after)
        ]
        cursor = rows[page.limit - 1].id if len(rows) > page.limit else None
        return reply(PrefixList(rows[: page.limit], cursor))

    async def warm_prefix(self, request: Request) -> Response:
        """POST /replicas/warm: answered when every replica has read it, or was given up."""
        body = await read_bounded(request)
        asked = read_body(body, WarmBody)
        if asked.replicas and asked.count != 1:
            raise ClientError("give count or replicas, not both", param="count", code="invalid_body")
        status, answer = await self._control.warm(body, asked.timeout_s)
        if status >= 400:
            return reply(answer, status)
        told = msgspec.json.decode(answer, type=WarmedBody)
        change = Change("prefix.warmed", told.model, told.organization_id, told.project_id, after=answer)
        await note(self._store, change, caller_of(request).author)
        return reply(answer)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (
            Endpoint(
                "GET",
                "/prefixes",
                "Read where projects' successive prompts first differ, and what that costs",
                self.prefixes,
                answer=PrefixList,
                is_list=True,
                filters=_WHOSE,
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "POST",
                "/replicas/warm",
                "Have replicas read a prefix in the name of a project, before it is asked for",
                self.warm_prefix,
                body=WarmBody,
                answer=WarmedBody,
            ),
        )
