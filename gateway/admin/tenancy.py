"""Organisations, projects, keys and limits over HTTP. Each change is written first and then told to the gateways."""

import time
from collections.abc import Callable

import structlog
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.control_client import ControlError, GatewayControl
from gateway.admin.endpoints import Endpoint, read_bounded, read_page, reply
from gateway.admin.wire import (
    KeyBody,
    KeyList,
    KeyWithSecretBody,
    NewKeyBody,
    NewOrganizationBody,
    NewProjectBody,
    OrganizationBody,
    OrganizationList,
    ProjectBody,
    ProjectList,
    RotationBody,
    key_body,
    key_with_secret,
    read_body,
)
from gateway.errors import ClientError
from policies.limits import LimitsDocument, LimitsError, encode_limits, parse_limits
from policies.store import KeyEnded, Level, NewKey, Store, UnknownId

APPLIED_HEADER = "x-warmlane-applied"

log = structlog.get_logger()


class Tenancy:
    """The endpoints of who may use the gateway, and how much of it.

    The answer to a change carries `x-warmlane-applied`: `true` when every gateway process has confirmed it, `false`
    when one did not: it will follow by itself, within half a second of being well again. `clock`: Unix seconds.
    """

    def __init__(self, store: Store, control: GatewayControl, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._control = control
        self._clock = clock

    async def create_organization(self, request: Request) -> Response:
        """POST /organizations."""
        body = read_body(await read_bounded(request), NewOrganizationBody)
        made = await self._store.create_organization(body.name)
        return await self._changed("organization.created", made.id, OrganizationBody.of(made), 201)

    async def organization(self, request: Request) -> Response:
        """GET /organizations/{id}."""
        return reply(OrganizationBody.of(await self._store.organization(request.path_params["id"])))

    async def organizations(self, request: Request) -> Response:
        """GET /organizations."""
        wanted = read_page(request)
        try:
            page = await self._store.organizations(limit=wanted.limit, after=wanted.after)
        except UnknownId as error:
            raise _unknown("after", error) from error
        return reply(OrganizationList([OrganizationBody.of(one) for one in page.items], page.next_after))

    async def create_project(self, request: Request) -> Response:
        """POST /projects."""
        body = read_body(await read_bounded(request), NewProjectBody)
        try:
            made = await self._store.create_project(body.name, body.organization_id)
        except UnknownId as error:
            raise _unknown("organization_id", error) from error
        return await self._changed("project.created", made.id, ProjectBody.of(made), 201)

    async def project(self, request: Request) -> Response:
        """GET /projects/{id}."""
        return reply(ProjectBody.of(await self._store.project(request.path_params["id"])))

    async def projects(self, request: Request) -> Response:
        """GET /projects."""
        wanted = read_page(request, "organization_id")
        of = wanted.filters.get("organization_id")
        try:
            page = await self._store.projects(organization_id=of, limit=wanted.limit, after=wanted.after)
        except UnknownId as error:
            raise _unknown("after", error) from error
        return reply(ProjectList([ProjectBody.of(one) for one in page.items], page.next_after))

    async def create_key(self, request: Request) -> Response:
        """POST /keys."""
        body = read_body(await read_bounded(request), NewKeyBody)
        if body.expires_at is not None and body.expires_at <= self._clock():
            raise ClientError("expires_at is in the past", param="expires_at", code="invalid_body")
        if body.max_lane and body.default_lane and not body.default_lane.is_within(body.max_lane):
            raise ClientError("default_lane is above max_lane", param="default_lane", code="invalid_body")
        new = NewKey(body.project_id, body.name, body.roles, body.max_lane, body.default_lane, body.expires_at)
        try:
            key, secret = await self._store.create_key(new)
        except UnknownId as error:
            raise _unknown("project_id", error) from error
        return await self._changed("key.created", key.id, key_with_secret(key, secret.text), 201)

    async def key(self, request: Request) -> Response:
        """GET /keys/{id}."""
        return reply(key_body(await self._store.key(request.path_params["id"])))

    async def keys(self, request: Request) -> Response:
        """GET /keys."""
        wanted = read_page(request, "project_id")
        of = wanted.filters.get("project_id")
        try:
            page = await self._store.keys(project_id=of, limit=wanted.limit, after=wanted.after)
        except UnknownId as error:
            raise _unknown("after", error) from error
        return reply(KeyList([key_body(one) for one in page.items], page.next_after))

    async def revoke_key(self, request: Request) -> Response:
        """DELETE /keys/{id}: when this has answered with `x-warmlane-applied: true`, the key is refused everywhere."""
        key = await self._store.revoke_key(request.path_params["id"])
        return await self._changed("key.revoked", key.id, key_body(key))

    async def rotate_key(self, request: Request) -> Response:
        """POST /keys/{id}/rotate."""
        body = read_body(await read_bounded(request) or b"{}", RotationBody)
        try:
            key, secret = await self._store.rotate_key(request.path_params["id"], body.overlap_s)
        except KeyEnded as error:
            raise ClientError(str(error), status=409, code="key_ended") from error
        return await self._changed("key.rotated", key.id, key_with_secret(key, secret.text))

    async def organization_limits(self, request: Request) -> Response:
        """GET /organizations/{id}/limits."""
        return reply(await self._store.limits(Level.ORGANIZATION, request.path_params["id"]))

    async def project_limits(self, request: Request) -> Response:
        """GET /projects/{id}/limits."""
        return reply(await self._store.limits(Level.PROJECT, request.path_params["id"]))

    async def set_organization_limits(self, request: Request) -> Response:
        """PUT /organizations/{id}/limits."""
        return await self._set_limits(Level.ORGANIZATION, request)

    async def set_project_limits(self, request: Request) -> Response:
        """PUT /projects/{id}/limits."""
        return await self._set_limits(Level.PROJECT, request)

    async def _set_limits(self, level: Level, request: Request) -> Response:
        try:
            document = encode_limits(parse_limits(await read_bounded(request)))
        except LimitsError as error:
            raise ClientError(str(error), param=error.field, code="invalid_limits") from error
        of = request.path_params["id"]
        await self._store.set_limits(level, of, document)
        return await self._changed("limits.set", of, document)

    async def _changed(self, event: str, subject: str, content: object, status: int = 200) -> Response:
        """The answer to a change that is written, once the gateways know of it or have been given up on."""
        applied = "true"
        try:
            await self._control.refresh_directories()
        except ControlError as error:
            applied = "false"
            log.warning("admin.change_not_confirmed", subject=subject, error=str(error))
        log.info("admin.changed", change=event, subject=subject)
        return reply(content, status, {APPLIED_HEADER: applied})

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        keys = ("project_id",)
        return (
            Endpoint(
                "POST",
                "/organizations",
                "Create an organisation",
                self.create_organization,
                body=NewOrganizationBody,
                answer=OrganizationBody,
                status=201,
            ),
            Endpoint(
                "GET", "/organizations", "List organisations", self.organizations, answer=OrganizationList, is_list=True
            ),
            Endpoint("GET", "/organizations/{id}", "Read an organisation", self.organization, answer=OrganizationBody),
            Endpoint(
                "GET",
                "/organizations/{id}/limits",
                "Read an organisation's limits",
                self.organization_limits,
                answer=LimitsDocument,
            ),
            Endpoint(
                "PUT",
                "/organizations/{id}/limits",
                "Set what all projects of an organisation may use together",
                self.set_organization_limits,
                body=LimitsDocument,
                answer=LimitsDocument,
            ),
            Endpoint(
                "POST",
                "/projects",
                "Create a project",
                self.create_project,
                body=NewProjectBody,
                answer=ProjectBody,
                status=201,
            ),
            Endpoint(
                "GET",
                "/projects",
                "List projects",
                self.projects,
                answer=ProjectList,
                is_list=True,
                filters=("organization_id",),
            ),
            Endpoint("GET", "/projects/{id}", "Read a project", self.project, answer=ProjectBody),
            Endpoint(
                "GET", "/projects/{id}/limits", "Read a project's limits", self.project_limits, answer=LimitsDocument
            ),
            Endpoint(
                "PUT",
                "/projects/{id}/limits",
                "Set a project's limits",
                self.set_project_limits,
                body=LimitsDocument,
                answer=LimitsDocument,
            ),
            Endpoint(
                "POST",
                "/keys",
                "Create a key; its secret is shown this once",
                self.create_key,
                body=NewKeyBody,
                answer=KeyWithSecretBody,
                status=201,
            ),
            Endpoint("GET", "/keys", "List keys", self.keys, answer=KeyList, is_list=True, filters=keys),
            Endpoint("GET", "/keys/{id}", "Read a key", self.key, answer=KeyBody),
            Endpoint("DELETE", "/keys/{id}", "Revoke a key at once", self.revoke_key, answer=KeyBody),
            Endpoint(
                "POST",
                "/keys/{id}/rotate",
                "Give a key a new secret",
                self.rotate_key,
                body=RotationBody,
                is_body_optional=True,
                answer=KeyWithSecretBody,
            ),
        )


def _unknown(param: str, error: UnknownId) -> ClientError:
    return ClientError(str(error), param=param, code=f"unknown_{error.kind}")
