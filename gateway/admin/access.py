"""Who is calling the admin plane, and whether they may do what they ask for: settled before an endpoint runs.

Three may come in: whoever has the admin token, a key with an admin role, a person with a token of the OpenID provider.
What is outside of a caller's organisations and projects does not exist for them (404); what their role does not allow
is refused (403). An endpoint that says nothing of its access is for platform admins.
"""

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from starlette.requests import Request

from gateway.admin.jwks import IssuerUnreachable
from gateway.admin.oidc import MAX_TOKEN_BYTES, Claimed, People, TokenRefused, is_token
from gateway.errors import ClientError, Problem
from policies.audit import ActorKind, Author
from policies.keys import CredentialFault, digest, read_credential
from policies.roles import EVERYWHERE, Action, Grant, Place, grants_of_key, may, may_hand_out, may_somewhere, widest
from policies.store import Key, Store, StoreError, StoreLost, UnknownId
from policies.tenant import Role

CALLER = "warmlane.caller"  # where the ASGI scope has it


class Subject(Enum):
    """What an endpoint's path names, so that its place can be found; or that the endpoint looks itself."""

    INSTALLATION = "installation"
    ORGANIZATION = "organization"
    PROJECT = "project"
    KEY = "key"
    ITS_OWN_CARE = "its_own_care"  # a list, or a body that names the place: the endpoint narrows or refuses


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they may do. `request_id`: of this asking, for the audit log and the answer."""

    kind: ActorKind
    subject: str
    grants: tuple[Grant, ...]
    request_id: str

    @property
    def author(self) -> Author:
        """As the audit log names them."""
        return Author(self.kind, self.subject, self.request_id)

    def may(self, action: Action, place: Place) -> bool:
        """Whether the action is theirs at this place."""
        return may(self.grants, action, place)

    @property
    def readable(self) -> tuple[Place, ...]:
        """Where they may look, places within others left out."""
        return widest(self.grants, Action.READ)


class Door:
    """Tells who is calling. `people`: None where no OpenID provider is configured. `clock`: Unix seconds."""

    def __init__(
        self,
        store: Store,
        admin_token: str,
        people: People | None = None,
        clock: Callable[[], float] = time.time,
        on_key_used: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_key_used = on_key_used
        self._store = store
        self._digest = hashlib.sha256(admin_token.encode()).digest()
        self._people = people
        self._clock = clock

    async def caller(self, headers: list[tuple[bytes, bytes]]) -> Caller | Problem:
        """Who sent these headers, or why nobody who may come in."""
        most_bytes = MAX_TOKEN_BYTES if self._people is not None else None
        found = read_credential((one for one in headers if one[0] == b"authorization"), most_bytes)
        if isinstance(found, CredentialFault):
            return NOBODY
        request_id = f"adm_{secrets.token_hex(12)}"
        hashed = digest(found)
        if hmac.compare_digest(hashed, self._digest):
            grants = (Grant(Role.PLATFORM_ADMIN, EVERYWHERE),)
            return Caller(ActorKind.ADMIN_TOKEN, "", grants, request_id)
        if is_token(found):
            return await self._person(found, request_id)
        return await self._key(hashed, request_id) if found.startswith(b"wl-") else NOBODY

    async def close(self) -> None:
        """Harmless the second time."""
        if self._people is not None:
            await self._people.close()

    async def _person(self, token: bytes, request_id: str) -> Caller | Problem:
        if self._people is None:
            return NOBODY
        try:
            person = await self._people.person(token)
        except TokenRefused as refused:
            return Problem(401, str(refused), "authentication_error", "invalid_token")
        except IssuerUnreachable as away:
            return Problem(503, str(away), "service_unavailable_error", "issuer_unavailable", retry_after_s=10)
        try:
            claimed = () if person.claimed is None else await self._grants_of(person.claimed)
        except StoreError as error:
            return store_problem(error)
        grants = person.grants + claimed
        if not grants:
            message = "the token gives its owner no role here: see oidc_role_claim, and the claims of what it is for"
            return Problem(403, message, "permission_error", "no_role")
        return Caller(ActorKind.PERSON, person.subject, grants, request_id)

    async def _grants_of(self, claimed: Claimed) -> tuple[Grant, ...]:
        """What a token gives in the projects that it names; one that there is not gives nothing."""
        grants: tuple[Grant, ...] = ()
        for project_id in claimed.projects:
            with contextlib.suppress(UnknownId):
                project = await self._store.project(project_id)
                grants += claimed.grants_at(Place(project.organization_id, project.id))
        return grants

    async def _key(self, hashed: bytes, request_id: str) -> Caller | Problem:
        try:
            opened = await self._store.opened_by(hashed)
        except StoreError as error:
            return store_problem(error)
        if opened is None or (opened.expires_at is not None and opened.expires_at <= self._clock()):
            return NOBODY
        place = Place(opened.project.organization_id, opened.project.id)
        grants = grants_of_key(opened.key.roles - {Role.SERVICE}, place)
        if not grants:
            return NOBODY
        self._on_key_used(opened.key.id)
        return Caller(ActorKind.KEY, opened.key.id, grants, request_id)


class Places:
    """Where the objects of the store are, and what a caller may do there."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check(self, request: Request, action: Action, subject: Subject) -> None:
        """Return if the caller may have this done to what the path names.

        Raises `ClientError` (403) and `UnknownId`, also for what exists where the caller may not look.
        """
        caller = caller_of(request)
        if not may_somewhere(caller.grants, action):
            raise not_allowed(action)
        if subject is Subject.ITS_OWN_CARE:
            return
        if subject is Subject.INSTALLATION:
            if not caller.may(action, EVERYWHERE):
                raise not_allowed(action)
            return
        item_id = request.path_params["id"]
        check_place(caller, action, await self._place(subject, item_id), UnknownId(subject.value, item_id))

    async def of_project(self, project_id: str) -> Place:
        """Where a project is. Raises `UnknownId`."""
        return Place((await self._store.project(project_id)).organization_id, project_id)

    async def of_key(self, key: Key) -> Place:
        """Where a key is."""
        return await self.of_project(key.project_id)

    async def _place(self, subject: Subject, item_id: str) -> Place:
        if subject is Subject.ORGANIZATION:
            return Place((await self._store.organization(item_id)).id)
        if subject is Subject.PROJECT:
            return await self.of_project(item_id)
        return await self.of_key(await self._store.key(item_id))


def check_place(caller: Caller, action: Action, place: Place, unknown: UnknownId) -> None:
    """Return if the action is the caller's there. Raises `unknown` where they may not even look, else 403."""
    if caller.may(action, place):
        return
    raise not_allowed(action) if caller.may(Action.READ, place) else unknown


def check_hand_out(caller: Caller, roles: frozenset[Role], place: Place) -> None:
    """Return if a secret with these roles gives nobody more than the caller has. Raises `ClientError` (403)."""
    if not may_hand_out(caller.grants, roles, place):
        message = "a role that can do more than your own is not yours to give, renew or revoke"
        raise ClientError(message, status=403, param="roles", code="role_not_yours")


def caller_of(request: Request) -> Caller:
    """Who asks; the door put it there before anything else ran."""
    caller: Caller = request.scope[CALLER]
    return caller


def not_allowed(action: Action) -> ClientError:
    """A 403 for what the caller's role does not have."""
    return ClientError(f"your role does not allow this ({action.value})", status=403, code="not_allowed")


def narrowed(request: Request, filters: Mapping[str, str], action: Action = Action.READ) -> dict[str, str]:
    """The filters of a list of things that belong to organisations and projects, kept to what the caller may see.

    Raises `UnknownId` for a foreign organisation or project, and `ClientError` where the caller has several to choose.
    """
    places = widest(caller_of(request).grants, action)
    if EVERYWHERE in places:
        return dict(filters)
    organization_id, project_id = filters.get("organization_id"), filters.get("project_id")
    fitting = [
        one
        for one in places
        if organization_id in (None, one.organization_id)
        and (not one.project_id or project_id in (None, one.project_id))
    ]
    if not fitting:
        kind, asked = ("organization", organization_id) if organization_id else ("project", project_id)
        raise UnknownId(kind, asked or "")
    if len(fitting) > 1:
        message = "you may see several organisations or projects: say which one"
        raise ClientError(message, param="organization_id", code="invalid_query")
    own = {"organization_id": fitting[0].organization_id, "project_id": fitting[0].project_id}
    return dict(filters) | {name: value for name, value in own.items() if value is not None}


def store_problem(error: StoreError) -> Problem:
    """What a caller is told of a store that failed: no inner words, but what to do where it is gone."""
    message = str(error) if isinstance(error, StoreLost) else "the store failed; its log line says why"
    return Problem(503, message, "service_unavailable_error", "store_unavailable")


NOBODY = Problem(
    401,
    "give the admin token, a key with an admin role or a token of your OpenID provider: Authorization: Bearer …",
    "authentication_error",
    "invalid_admin_token",
)
