"""The store of many nodes: organisations, projects and keys in Redis. Holds no rule.

Redis must keep what it is given (`appendonly yes`, `maxmemory-policy noeviction`): the tenants live here. If an empty
Redis takes its place, every call says so instead of answering that nobody exists.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Self, TypeVar

from policies.audit import SYSTEM, AuditEntry, AuditKeep, AuditWanted, Author, Change
from policies.kept_responses import KeptBound, KeptResponse
from policies.keys import Secret
from policies.redis_audit import AuditStream
from policies.redis_changes import Changes
from policies.redis_install import install, together
from policies.redis_link import RedisLink
from policies.redis_notes import Notes
from policies.redis_nudges import nudges
from policies.redis_responses import Responses
from policies.redis_rows import Names, T, decode, decode_digest
from policies.redis_transactions import Transactions, Work
from policies.store import (
    MAX_PAGE,
    Deleted,
    Key,
    Level,
    NewKey,
    OpenedKey,
    Organization,
    Page,
    Project,
    Snapshot,
    StoreError,
    UnknownId,
)

R = TypeVar("R")

SNAPSHOT_S = 5.0  # everything at once; off every request's path
_LEVELS: dict[Level, type[Organization] | type[Project]] = {Level.ORGANIZATION: Organization, Level.PROJECT: Project}


class RedisStore:
    """`policies.store.Store` in Redis. Made with `open`. For one event loop."""

    def __init__(
        self, link: RedisLink, names: Names, secret: bytes, clock: Callable[[], float], audit: AuditStream
    ) -> None:
        self._link = link
        self._names = names
        self._clock = clock
        self._transactions = Transactions(link, names, secret)
        self._audit = audit
        self._notes = Notes(link, names)
        self._responses = Responses(link, names)
        self._changes = Changes(names, audit)
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Callable[[], float] = time.time,
        *,
        prefix: str = "warmlane",
        keep: AuditKeep = AuditKeep(),  # noqa: B008  # frozen
    ) -> Self:
        """The store at `url`, made at the first start. Raises `StoreError`. `clock`: Unix seconds."""
        link, names = RedisLink(url), Names(prefix)
        try:
            await link.check()
            secret = await link.call(
                lambda redis: install(redis, names, link.name), timeout_s=SNAPSHOT_S, key=names.meta
            )
        except BaseException:
            await link.close()
            raise
        return cls(link, names, secret, clock, AuditStream(names.audit, keep))

    async def create_organization(self, name: str, *, by: Author = SYSTEM) -> Organization:
        """A new organisation."""
        return await self._change(self._changes.create_organization(name, self._clock(), by))

    async def organization(self, organization_id: str) -> Organization:
        """One organisation. Raises `UnknownId`."""
        return await self._one(Organization, organization_id)

    async def organizations(self, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[Organization]:
        """Organisations in order of creation."""
        return await self._page(Organization, limit, after)

    async def create_project(self, name: str, organization_id: str, *, by: Author = SYSTEM) -> Project:
        """A new project. Raises `UnknownId` for the organisation."""
        return await self._change(self._changes.create_project(name, organization_id, self._clock(), by))

    async def project(self, project_id: str) -> Project:
        """One project. Raises `UnknownId`."""
        return await self._one(Project, project_id)

    async def projects(
        self, *, organization_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Project]:
        """Projects in order of creation."""
        return await self._page(Project, limit, after, organization_id)

    async def create_key(self, new: NewKey, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """A new key and its secret. Raises `UnknownId` for the project."""
        return await self._change(self._changes.create_key(new, self._clock(), by))

    async def key(self, key_id: str) -> Key:
        """One key, revoked or not. Raises `UnknownId`."""
        row, used_at = await self._read(
            [("HGET", self._names.items(Key), key_id), ("HGET", self._names.key_uses, key_id)]
        )
        if row is None:
            raise UnknownId("key", key_id)
        return _with_use(decode(Key, row), used_at)

    async def keys(
        self, *, project_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Key]:
        """Keys in order of creation, revoked ones too."""
        page = await self._page(Key, limit, after, project_id)
        if not page.items:
            return page
        (used,) = await self._read([("HMGET", self._names.key_uses, *(one.id for one in page.items))])
        return Page(tuple(map(_with_use, page.items, used)), page.next_after)

    async def revoke_key(self, key_id: str, *, by: Author = SYSTEM) -> Key:
        """The key, now revoked. Raises `UnknownId`."""
        return await self._change(self._changes.revoke_key(key_id, self._clock(), by))

    async def rotate_key(self, key_id: str, overlap_s: float = 0.0, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """The key with a new secret. Raises `UnknownId`, `KeyEnded`."""
        return await self._change(self._changes.rotate_key(key_id, overlap_s, self._clock(), by))

    async def opened_by(self, digest: bytes) -> OpenedKey | None:
        """What a secret opens."""
        (row,) = await self._read([("HGET", self._names.digests, digest.hex())])
        if row is None:
            return None
        opened = decode_digest(digest.hex().encode(), row)
        try:
            key = await self.key(opened.key_id)
            project = await self.project(key.project_id)
        except UnknownId:  # deleted in between
            return None
        ends = [end for end in (key.expires_at, opened.expires_at) if end is not None]
        return None if key.revoked_at is not None else OpenedKey(key, project, min(ends, default=None))

    async def delete_project(self, project_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete a project and its keys. Raises `UnknownId`, `NotEmpty`."""
        return await self._change(self._changes.delete_project(project_id, self._clock(), cascade=cascade, by=by))

    async def delete_organization(self, organization_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete an organisation and its projects. Raises `UnknownId`, `NotEmpty`."""
        work = self._changes.delete_organization(organization_id, self._clock(), cascade=cascade, by=by)
        return await self._change(work)

    async def note_uses(self, used_at: dict[str, int]) -> None:
        """When keys were last used."""
        self._refuse_if_closed()
        await self._notes.uses(used_at)

    async def claim_alert(self, alert_id: str, until: float) -> bool:
        """Whether the alert is the caller's to tell until then."""
        self._refuse_if_closed()
        return await self._notes.claim(alert_id, until - self._clock())

    async def settle_alert(self, alert_id: str, until: float) -> None:
        """The alert was told."""
        self._refuse_if_closed()
        await self._notes.settle(alert_id, until - self._clock())

    async def keep_responses(self, responses: Sequence[KeptResponse], bound: KeptBound) -> None:
        """Keep these; the oldest of a project go."""
        self._refuse_if_closed()
        await self._responses.keep(responses, bound, self._clock())

    async def kept_response(self, project_id: str, response_id: str) -> bytes | None:
        """Its content, None if there is none."""
        self._refuse_if_closed()
        return await self._responses.content(project_id, response_id, self._clock())

    async def drop_response(self, project_id: str, response_id: str) -> bool:
        """Whether there was one."""
        self._refuse_if_closed()
        return await self._responses.drop(project_id, response_id, self._clock())

    async def expire_responses(self) -> None:
        """Nothing: in Redis each ends by itself."""

    async def note_change(self, change: Change, *, by: Author) -> None:
        """One entry of the audit log for a change elsewhere."""
        await self._change(self._changes.note_change(change, self._clock(), by))

    async def audit(self, wanted: AuditWanted, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[AuditEntry]:
        """Entries of the audit log, the newest first. Raises `ValueError` for `after`."""
        return await self._audit.page(self._read, wanted, limit, after)

    async def limits(self, level: Level, of: str) -> bytes:
        """A limits document. Raises `UnknownId`."""
        item: Organization | Project = await self._one(_LEVELS[level], of)
        return item.limits

    async def set_limits(self, level: Level, of: str, document: bytes, *, by: Author = SYSTEM) -> None:
        """Replace a limits document. Raises `UnknownId`."""
        await self._change(self._changes.set_limits(_LEVELS[level], of, document, self._clock(), by))

    async def revision(self) -> int:
        """A number that every change raises."""
        (revision,) = await self._read([("HGET", self._names.meta, "revision")])
        return int(revision)

    async def snapshot(self) -> Snapshot:
        """Everything as of one moment."""
        names = self._names
        kinds = (Organization, Project, Key)
        commands: list[tuple[Any, ...]] = [("HMGET", names.meta, "revision", "server_secret")]
        commands += [("ZRANGE", names.order(kind), 0, -1) for kind in kinds]
        commands += [("HGETALL", names.items(kind)) for kind in kinds]
        found = await self._read([*commands, ("HGETALL", names.digests)], timeout_s=SNAPSHOT_S)
        (revision, secret), orders, items, digests = found[0], found[1:4], found[4:7], found[7]
        return Snapshot(
            revision=int(revision),
            server_secret=secret,
            organizations=_decoded(Organization, orders[0], items[0]),
            projects=_decoded(Project, orders[1], items[1]),
            keys=tuple(key for key in _decoded(Key, orders[2], items[2]) if key.revoked_at is None),
            digests=tuple(decode_digest(digest, row) for digest, row in digests.items()),
        )

    async def changes(self) -> AsyncGenerator[None, None]:
        """An item at once, then whenever the store may have changed; for a directory that refreshes then.

        Best effort: a directory polls `revision` too. Ends only when it is closed.
        """
        async with aclosing(nudges(self._link, self._names.changed)) as messages:
            async for _ in messages:
                yield None

    async def close(self) -> None:
        """Let go of Redis. Harmless the second time."""
        self._is_closed = True
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<RedisStore {self._link.name} {'closed' if self._is_closed else 'open'}>"

    async def _change(self, work: Work[R]) -> R:
        self._refuse_if_closed()
        return await self._transactions.change(work)

    async def _one(self, kind: type[T], item_id: str) -> T:
        (row,) = await self._read([("HGET", self._names.items(kind), item_id)])
        if row is None:
            raise UnknownId(kind.__name__.lower(), item_id)
        return decode(kind, row)

    async def _page(self, kind: type[T], limit: int, after: str | None, within: str | None = None) -> Page[T]:
        limit = max(1, min(limit, MAX_PAGE))
        position = b"-inf"
        if after is not None:
            (found,) = await self._read([("ZSCORE", self._names.order(kind), after)])
            if found is None:
                raise UnknownId(kind.__name__.lower(), after)
            position = b"(%d" % int(found)
        order = self._names.order(kind, within)
        (ids,) = await self._read([("ZRANGEBYSCORE", order, position, "+inf", "LIMIT", 0, limit + 1)])
        if not ids:
            return Page((), None)
        (rows,) = await self._read([("HMGET", self._names.items(kind), *ids[:limit])])
        items = tuple(decode(kind, row) for row in rows)
        return Page(items, items[-1].id if len(ids) > limit else None)

    async def _read(self, commands: list[tuple[Any, ...]], timeout_s: float | None = None) -> list[Any]:
        """The answers, all as of one moment, from the installation that was opened."""
        self._refuse_if_closed()
        secret, *answers = await self._link.call(
            lambda redis: together(redis, [("HGET", self._names.meta, "server_secret"), *commands]),
            timeout_s=timeout_s,
            key=self._names.meta,
        )
        self._transactions.check(secret)
        return answers

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreError(f"the store {self._link.name} is closed")


def _decoded(kind: type[T], order: list[bytes], items: dict[bytes, bytes]) -> tuple[T, ...]:
    return tuple(decode(kind, items[item_id]) for item_id in order)


def _with_use(key: Key, used_at: bytes | None) -> Key:
    return key if used_at is None else replace(key, last_used_at=int(used_at))
