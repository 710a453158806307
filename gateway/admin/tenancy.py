"""Organisations, projects and their limits over HTTP. Each change is written first and then told to the gateways."""

from collections.abc import Awaitable

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Caller, Subject, caller_of, check_hand_out, check_place
from gateway.admin.applied import APPLIED_HEADER, Applied
from gateway.admin.endpoints import Endpoint, read_bounded, read_flag, read_page, reply
from gateway.admin.own_pages import own_page, unknown
from gateway.admin.wire import (
    DeletedBody,
    NewOrganizationBody,
    NewProjectBody,
    OrganizationBody,
    OrganizationList,
    ProjectBody,
    ProjectList,
    read_body,
)
from gateway.errors import ClientError
from policies.limits import LimitsDocument, LimitsError, encode_limits, parse_limits
from policies.roles import EVERYWHERE, Action, Place
from policies.store import MAX_PAGE, Deleted, Level, NotEmpty, Organization, Page, Project, Store, UnknownId

__all__ = ["APPLIED_HEADER", "Tenancy"]


class Tenancy:
    """The endpoints of who may use the gateway, and how much of it."""

    def __init__(self, store: Store, applied: Applied) -> None:
        self._store = store
        self._applied = applied

    async def create_organization(self, request: Request) -> Response:
        """POST /organizations."""
        body = read_body(await read_bounded(request), NewOrganizationBody)
        made = await self._store.create_organization(body.name, by=caller_of(request).author)
        return await self._applied.answer("organization.created", made.id, OrganizationBody.of(made), 201)

    async def organization(self, request: Request) -> Response:
        """GET /organizations/{id}."""
        return reply(OrganizationBody.of(await self._store.organization(request.path_params["id"])))

    async def organizations(self, request: Request) -> Response:
        """GET /organizations."""
        places = caller_of(request).readable

        def fetch(limit: int, after: str | None) -> Awaitable[Page[Organization]]:
            return self._store.organizations(limit=limit, after=after)

        def is_own(one: Organization) -> bool:
            return any(place.holds(Place(one.id)) for place in places)

        own = None if EVERYWHERE in places else is_own
        page = await own_page(read_page(request), fetch, self._store.organization, own)
        return reply(OrganizationList([OrganizationBody.of(one) for one in page.items], page.next_after))

    async def delete_organization(self, request: Request) -> Response:
        """DELETE /organizations/{id}."""
        cascade, organization_id = read_flag(request, "cascade"), request.path_params["id"]
        by = caller_of(request).author
        deleted = await _deleted(self._store.delete_organization(organization_id, cascade=cascade, by=by))
        return await self._applied.answer("organization.deleted", organization_id, DeletedBody.of(deleted))

    async def create_project(self, request: Request) -> Response:
        """POST /projects."""
        body = read_body(await read_bounded(request), NewProjectBody)
        caller, of = caller_of(request), body.organization_id
        try:
            check_place(caller, Action.MANAGE_PROJECTS, Place(of), UnknownId("organization", of))
            made = await self._store.create_project(body.name, of, by=caller.author)
        except UnknownId as error:
            raise unknown("organization_id", error) from error
        return await self._applied.answer("project.created", made.id, ProjectBody.of(made), 201)

    async def project(self, request: Request) -> Response:
        """GET /projects/{id}."""
        return reply(ProjectBody.of(await self._store.project(request.path_params["id"])))

    async def projects(self, request: Request) -> Response:
        """GET /projects."""
        wanted = read_page(request, "organization_id")
        of, places = wanted.filters.get("organization_id"), caller_of(request).readable

        def fetch(limit: int, after: str | None) -> Awaitable[Page[Project]]:
            return self._store.projects(organization_id=of, limit=limit, after=after)

        def is_own(one: Project) -> bool:
            return any(place.holds(Place(one.organization_id, one.id)) for place in places)

        own = None if EVERYWHERE in places else is_own
        page = await own_page(wanted, fetch, self._store.project, own)
        return reply(ProjectList([ProjectBody.of(one) for one in page.items], page.next_after))

    async def delete_project(self, request: Request) -> Response:
        """DELETE /projects/{id}: its keys are refused at once, what they have in flight ends as it would have."""
        cascade, project_id = read_flag(request, "cascade"), request.path_params["id"]
        caller = caller_of(request)
        if cascade:
            await self._check_keys(caller, project_id)
        deleted = await _deleted(self._store.delete_project(project_id, cascade=cascade, by=caller.author))
        return await self._applied.answer("project.deleted", project_id, DeletedBody.of(deleted))

    async def _check_keys(self, caller: Caller, project_id: str) -> None:
        """Return if the caller may revoke every key of the project, which goes with it. Raises `ClientError` (403)."""
        if caller.may(Action.MANAGE_ORGANIZATIONS, EVERYWHERE):
            return
        place = Place((await self._store.project(project_id)).organization_id, project_id)
        after: str | None = None
        while True:
            page = await self._store.keys(project_id=project_id, limit=MAX_PAGE, after=after)
            for key in page.items:
                if key.revoked_at is None:
                    check_hand_out(caller, key.roles, place)
            if (after := page.next_after) is None:
                return

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
        await self._store.set_limits(level, of, document, by=caller_of(request).author)
        return await self._applied.answer("limits.set", of, document)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (*self._of_organizations(), *self._of_projects(), *self._of_limits())

    def _of_organizations(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/organizations",
                "Create an organisation",
                self.create_organization,
                body=NewOrganizationBody,
                answer=OrganizationBody,
                status=201,
                action=Action.MANAGE_ORGANIZATIONS,
            ),
            Endpoint(
                "GET",
                "/organizations",
                "List organisations",
                self.organizations,
                answer=OrganizationList,
                is_list=True,
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/organizations/{id}",
                "Read an organisation",
                self.organization,
                answer=OrganizationBody,
                action=Action.READ,
                subject=Subject.ORGANIZATION,
            ),
            Endpoint(
                "DELETE",
                "/organizations/{id}",
                "Delete an organisation without projects, or with all of them",
                self.delete_organization,
                answer=DeletedBody,
                flags=("cascade",),
                action=Action.MANAGE_ORGANIZATIONS,
                subject=Subject.ORGANIZATION,
            ),
        )

    def _of_projects(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/projects",
                "Create a project",
                self.create_project,
                body=NewProjectBody,
                answer=ProjectBody,
                status=201,
                action=Action.MANAGE_PROJECTS,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/projects",
                "List projects",
                self.projects,
                answer=ProjectList,
                is_list=True,
                filters=("organization_id",),
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/projects/{id}",
                "Read a project",
                self.project,
                answer=ProjectBody,
                action=Action.READ,
                subject=Subject.PROJECT,
            ),
            Endpoint(
                "DELETE",
                "/projects/{id}",
                "Delete a project without usable keys, or with all of them",
                self.delete_project,
                answer=DeletedBody,
                flags=("cascade",),
                action=Action.MANAGE_PROJECTS,
                subject=Subject.PROJECT,
            ),
        )

    def _of_limits(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "GET",
                "/organizations/{id}/limits",
                "Read an organisation's limits",
                self.organization_limits,
                answer=LimitsDocument,
                action=Action.READ,
                subject=Subject.ORGANIZATION,
            ),
            Endpoint(
                "PUT",
                "/organizations/{id}/limits",
                "Set what all projects of an organisation may use together",
                self.set_organization_limits,
                body=LimitsDocument,
                answer=LimitsDocument,
                action=Action.MANAGE_ORGANIZATIONS,
                subject=Subject.ORGANIZATION,
            ),
            Endpoint(
                "GET",
                "/projects/{id}/limits",
                "Read a project's limits",
                self.project_limits,
                answer=LimitsDocument,
                action=Action.READ,
                subject=Subject.PROJECT,
            ),
            Endpoint(
                "PUT",
                "/projects/{id}/limits",
                "Set a project's limits",
                self.set_project_limits,
                body=LimitsDocument,
                answer=LimitsDocument,
                action=Action.MANAGE_PROJECTS,
                subject=Subject.PROJECT,
            ),
        )


async def _deleted(deletion: Awaitable[Deleted]) -> Deleted:
    try:
        return await deletion
    except NotEmpty as error:
        message = f"{error}: cascade=true (in the shell --cascade) deletes them too"
        raise ClientError(message, status=409, code="not_empty") from error
