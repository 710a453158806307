"""Keys over HTTP: made, read, rotated, revoked. Whoever gets a secret gets its roles, so those must be the caller's."""

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.access import Caller, Places, Subject, caller_of, check_hand_out, check_place
from gateway.admin.applied import Applied
from gateway.admin.endpoints import Endpoint, read_bounded, read_page, reply
from gateway.admin.own_pages import own_page, unknown
from gateway.admin.wire import (
    KeyBody,
    KeyList,
    KeyWithSecretBody,
    NewKeyBody,
    RotationBody,
    key_body,
    key_with_secret,
    read_body,
)
from gateway.errors import ClientError
from policies.roles import EVERYWHERE, Action
from policies.store import MAX_PAGE, Key, KeyEnded, NewKey, Page, Store, UnknownId


class Keys:
    """The endpoints of keys. `clock`: Unix seconds."""

    def __init__(self, store: Store, places: Places, applied: Applied, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._places = places
        self._applied = applied
        self._clock = clock

    async def create_key(self, request: Request) -> Response:
        """POST /keys."""
        new = self._read(await read_bounded(request))
        caller = caller_of(request)
        try:
            place = await self._places.of_project(new.project_id)
            check_place(caller, Action.MANAGE_KEYS, place, UnknownId("project", new.project_id))
            check_hand_out(caller, new.roles, place)
            key, secret = await self._store.create_key(new, by=caller.author)
        except UnknownId as error:
            raise unknown("project_id", error) from error
        return await self._applied.answer("key.created", key.id, key_with_secret(key, secret.text), 201)

    async def key(self, request: Request) -> Response:
        """GET /keys/{id}."""
        return reply(key_body(await self._store.key(request.path_params["id"])))

    async def keys(self, request: Request) -> Response:
        """GET /keys."""
        wanted = read_page(request, "project_id")
        of, own = wanted.filters.get("project_id"), await self._own_projects(caller_of(request))

        def fetch(limit: int, after: str | None) -> Awaitable[Page[Key]]:
            return self._store.keys(project_id=of, limit=limit, after=after)

        def is_own(one: Key) -> bool:
            return own is None or one.project_id in own

        page = await own_page(wanted, fetch, self._store.key, None if own is None else is_own)
        return reply(KeyList([key_body(one) for one in page.items], page.next_after))

    async def revoke_key(self, request: Request) -> Response:
        """DELETE /keys/{id}: when this has answered with `x-warmlane-applied: true`, the key is refused everywhere."""
        key_id, caller = await self._checked(request), caller_of(request)
        key = await self._store.revoke_key(key_id, by=caller.author)
        return await self._applied.answer("key.revoked", key.id, key_body(key))

    async def rotate_key(self, request: Request) -> Response:
        """POST /keys/{id}/rotate."""
        body = read_body(await read_bounded(request) or b"{}", RotationBody)
        key_id, caller = await self._checked(request), caller_of(request)
        try:
            key, secret = await self._store.rotate_key(key_id, body.overlap_s, by=caller.author)
        except KeyEnded as error:
            raise ClientError(str(error), status=409, code="key_ended") from error
        return await self._applied.answer("key.rotated", key.id, key_with_secret(key, secret.text))

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The rows of this part of the admin plane."""
        return (
            *self._changes(),
            Endpoint(
                "GET",
                "/keys",
                "List keys",
                self.keys,
                answer=KeyList,
                is_list=True,
                filters=("project_id",),
                action=Action.READ,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "GET",
                "/keys/{id}",
                "Read a key",
                self.key,
                answer=KeyBody,
                action=Action.READ,
                subject=Subject.KEY,
            ),
        )

    def _changes(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                "/keys",
                "Create a key; its secret is shown this once",
                self.create_key,
                body=NewKeyBody,
                answer=KeyWithSecretBody,
                status=201,
                action=Action.MANAGE_KEYS,
                subject=Subject.ITS_OWN_CARE,
            ),
            Endpoint(
                "DELETE",
                "/keys/{id}",
                "Revoke a key at once",
                self.revoke_key,
                answer=KeyBody,
                action=Action.MANAGE_KEYS,
                subject=Subject.KEY,
            ),
            Endpoint(
                "POST",
                "/keys/{id}/rotate",
                "Give a key a new secret",
                self.rotate_key,
                body=RotationBody,
                is_body_optional=True,
                answer=KeyWithSecretBody,
                action=Action.MANAGE_KEYS,
                subject=Subject.KEY,
            ),
        )

    def _read(self, body: bytes) -> NewKey:
        wanted = read_body(body, NewKeyBody)
        if wanted.expires_at is not None and wanted.expires_at <= self._clock():
            raise ClientError("expires_at is in the past", param="expires_at", code="invalid_body")
        if wanted.max_lane and wanted.default_lane and not wanted.default_lane.is_within(wanted.max_lane):
            raise ClientError("default_lane is above max_lane", param="default_lane", code="invalid_body")
        return NewKey(
            wanted.project_id, wanted.name, wanted.roles, wanted.max_lane, wanted.default_lane, wanted.expires_at
        )

    async def _checked(self, request: Request) -> str:
        """The key's id, where its roles are the caller's to give and take. Raises `ClientError`, `UnknownId`."""
        key = await self._store.key(request.path_params["id"])
        check_hand_out(caller_of(request), key.roles, await self._places.of_key(key))
        return key.id

    async def _own_projects(self, caller: Caller) -> frozenset[str] | None:
        """The projects that the caller may look into; None: all."""
        places = caller.readable
        if EVERYWHERE in places:
            return None
        found = {place.project_id for place in places if place.project_id is not None}
        for organization_id in [place.organization_id for place in places if place.project_id is None]:
            after: str | None = None
            while True:
                page = await self._store.projects(organization_id=organization_id, limit=MAX_PAGE, after=after)
                found.update(one.id for one in page.items)
                if (after := page.next_after) is None:
                    break
        return frozenset(found)
