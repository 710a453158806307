"""The audit log over HTTP: who changed what, the newest first."""

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Subject, narrowed
from gateway.admin.endpoints import Endpoint, read_page, reply
from gateway.errors import ClientError
from gateway.usage_wire import read_moment
from policies.audit import ActorKind, AuditEntry, AuditWanted
from policies.roles import Action
from policies.store import Store

_EQUAL = ("actor", "action", "subject_id", "organization_id", "project_id", "request_id")
_PERIOD = ("from", "to")


class AuditBody(Struct, frozen=True, kw_only=True):
    """One change. `at`: Unix seconds. `actor`: a key's id or a person's subject; empty for token and system.

    `before`, `after`: what it was and is, null where there was nothing. Never a secret.
    """

    id: str
    at: float
    actor_kind: ActorKind
    actor: str
    action: str
    subject_id: str
    organization_id: str | None
    project_id: str | None
    request_id: str
    before: msgspec.Raw | None
    after: msgspec.Raw | None


class AuditList(Struct, frozen=True):
    """A page of changes; `next_cursor` is the next `after`. A page may be short before the last one."""

    data: list[AuditBody]
    next_cursor: str | None


class Audit:
    """The endpoint of the audit log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def audit(self, request: Request) -> Response:
        """GET /audit."""
        page = read_page(request, *_EQUAL, *_PERIOD)
        filters = narrowed(request, page.filters, Action.READ_AUDIT)
        times = {name: read_moment(filters[name], name) for name in _PERIOD if name in filters}
        wanted = AuditWanted(
            starts_at=times.get("from"),
            ends_at=times.get("to"),
            **{name: filters[name] for name in _EQUAL if name in filters},
        )
        try:
            found = await self._store.audit(wanted, limit=page.limit, after=page.after)
        except ValueError as error:
            raise ClientError("after is not where a page ended", param="after", code="invalid_query") from error
        return reply(AuditList([_body(one) for one in found.items], found.next_after))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The row of this part of the admin plane."""
        return (
            Endpoint(
                "GET",
                "/audit",
                "Read who changed what, the newest first",
                self.audit,
                answer=AuditList,
                is_list=True,
                filters=(*_EQUAL, *_PERIOD),
                action=Action.READ_AUDIT,
                subject=Subject.ITS_OWN_CARE,
            ),
        )


def _body(entry: AuditEntry) -> AuditBody:
    change, author = entry.change, entry.author
    return AuditBody(
        id=entry.id,
        at=entry.at,
        actor_kind=author.kind,
        actor=author.subject,
        action=change.action,
        subject_id=change.subject_id,
        organization_id=change.organization_id,
        project_id=change.project_id,
        request_id=author.request_id,
        before=None if change.before is None else msgspec.Raw(change.before),
        after=None if change.after is None else msgspec.Raw(change.after),
    )
