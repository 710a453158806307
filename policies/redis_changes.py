"""Every change to the Redis store: what it reads, and the commands that write it. Each is one transaction's work."""

from dataclasses import replace

import msgspec

from policies.audit import SYSTEM, Author, Change, facts, limits_change, with_field
from policies.keys import Secret, new_id, new_secret
from policies.redis_audit import AuditStream
from policies.redis_rows import Names, encode, encode_digest
from policies.redis_transactions import Commands, Reader, Work
from policies.store import (
    MAX_SECRETS,
    Deleted,
    Key,
    KeyDigest,
    KeyEnded,
    NewKey,
    NotEmpty,
    Organization,
    Project,
)


class Changes:
    """Works for `Transactions.change`. `now`: Unix seconds. `audit`: where each is written down with what it does."""

    def __init__(self, names: Names, audit: AuditStream) -> None:
        self._names = names
        self._audit = audit

    def create_organization(self, name: str, now: float, by: Author = SYSTEM) -> Work[Organization]:
        """A new organisation."""
        made = Organization(new_id("org"), name, int(now))

        async def work(reader: Reader) -> tuple[Organization, Commands]:
            change = Change("organization.created", made.id, made.id, after=facts(made))
            return made, self._add(made, await reader.next_position()) + self._audit.entry(change, by, now)

        return work

    def create_project(self, name: str, organization_id: str, now: float, by: Author = SYSTEM) -> Work[Project]:
        """A new project of an organisation that must exist."""
        made = Project(new_id("proj"), organization_id, name, int(now))

        async def work(reader: Reader) -> tuple[Project, Commands]:
            await reader.one(Organization, organization_id)
            added = self._add(made, await reader.next_position(), organization_id)
            change = Change("project.created", made.id, organization_id, made.id, after=facts(made))
            return made, added + self._audit.entry(change, by, now)

        return work

    def create_key(self, new: NewKey, now: float, by: Author = SYSTEM) -> Work[tuple[Key, Secret]]:
        """A new key of a project that must exist, with one secret."""
        key_id = new_id("key")
        secret = new_secret(key_id)
        made = Key(
            id=key_id,
            project_id=new.project_id,
            name=new.name,
            prefix=secret.prefix,
            roles=new.roles,
            max_lane=new.max_lane,
            default_lane=new.default_lane,
            created_at=int(now),
            expires_at=new.expires_at,
            revoked_at=None,
        )

        async def work(reader: Reader) -> tuple[tuple[Key, Secret], Commands]:
            project = await reader.one(Project, new.project_id)
            added = self._add(made, await reader.next_position(), new.project_id)
            added += self._put_digest(KeyDigest(secret.digest, key_id, None))
            change = Change("key.created", key_id, project.organization_id, project.id, after=facts(made))
            return (made, secret), added + self._audit.entry(change, by, now)

        return work

    def revoke_key(self, key_id: str, now: float, by: Author = SYSTEM) -> Work[Key]:
        """The key without secrets; one that is revoked already stays as it is."""

        async def work(reader: Reader) -> tuple[Key, Commands]:
            key = await reader.one(Key, key_id)
            if key.revoked_at is not None:
                return key, []
            revoked = replace(key, revoked_at=int(now))
            change = await _key_change(reader, "key.revoked", key, facts(revoked))
            commands = self._put(revoked) + self._drop(await reader.digests_of(key_id))
            return revoked, commands + self._audit.entry(change, by, now)

        return work

    def rotate_key(self, key_id: str, overlap_s: float, now: float, by: Author = SYSTEM) -> Work[tuple[Key, Secret]]:
        """The key with one more secret; the older ones end after the overlap, or go at once if there is none."""
        secret = new_secret(key_id)

        async def work(reader: Reader) -> tuple[tuple[Key, Secret], Commands]:
            key = await reader.one(Key, key_id)
            if (ended := key.ended(now)) is not None:
                raise KeyEnded(f"the key {key_id} is {ended}")
            older = await reader.digests_of(key_id)
            kept = _kept(older, now + overlap_s, now)
            dropped = [one for one in older if one.digest not in {other.digest for other in kept}]
            commands = self._drop(dropped)
            for one in (*kept, KeyDigest(secret.digest, key_id, None)):
                commands += self._put_digest(one)
            told = with_field(facts(key), "old_secrets_end_at", int(now + overlap_s))
            change = await _key_change(reader, "key.rotated", key, told)
            return (key, secret), commands + self._audit.entry(change, by, now)

        return work

    def set_limits(
        self, kind: type[Organization] | type[Project], of: str, document: bytes, now: float, by: Author = SYSTEM
    ) -> Work[None]:
        """Another limits document."""

        async def work(reader: Reader) -> tuple[None, Commands]:
            item: Organization | Project = await reader.one(kind, of)
            commands = self._put(replace(item, limits=document))
            return None, commands + self._audit.entry(limits_change(item, document), by, now)

        return work

    def delete_project(self, project_id: str, now: float, *, cascade: bool, by: Author = SYSTEM) -> Work[Deleted]:
        """The project, its keys and their digests gone."""

        async def work(reader: Reader) -> tuple[Deleted, Commands]:
            keys, commands = await self._without(reader, await reader.one(Project, project_id), now, cascade, by)
            return Deleted((), (project_id,), keys), commands

        return work

    def delete_organization(
        self, organization_id: str, now: float, *, cascade: bool, by: Author = SYSTEM
    ) -> Work[Deleted]:
        """The organisation gone, with all its projects."""

        async def work(reader: Reader) -> tuple[Deleted, Commands]:
            organization = await reader.one(Organization, organization_id)
            projects = await reader.within(Project, organization_id)
            if projects and not cascade:
                raise NotEmpty(f"the organisation {organization_id} has {len(projects)} projects")
            commands: Commands = []
            keys: tuple[str, ...] = ()
            for project in projects:
                gone, more = await self._without(reader, project, now, cascade, by)
                keys, commands = keys + gone, commands + more
            change = Change("organization.deleted", organization_id, organization_id, before=facts(organization))
            commands += self._remove(organization) + self._audit.entry(change, by, now)
            return Deleted((organization_id,), tuple(one.id for one in projects), keys), commands

        return work

    def note_change(self, change: Change, now: float, by: Author) -> Work[None]:
        """An entry of the audit log and nothing else."""

        async def work(_: Reader) -> tuple[None, Commands]:
            return None, self._audit.entry(change, by, now)

        return work

    async def _without(
        self, reader: Reader, project: Project, now: float, cascade: bool, by: Author
    ) -> tuple[tuple[str, ...], Commands]:
        """What deletes a project: the ids of its keys that could still be used, and the commands."""
        keys = await reader.within(Key, project.id)
        usable = [key for key in keys if key.revoked_at is None]
        if usable and not cascade:
            raise NotEmpty(f"the project {project.id} has {len(usable)} keys that are not revoked")
        commands: Commands = []
        for key in keys:
            commands += self._drop(await reader.digests_of(key.id)) + self._remove(key, project.id)
            commands.append(("HDEL", self._names.key_uses, key.id))
        kept = await reader.responses_of(project.id)
        names = [self._names.response(project.id, one) for one in kept]
        commands.append(
            ("UNLINK", *names, self._names.responses_of(project.id), self._names.response_sizes(project.id))
        )
        for key in usable:
            gone = Change("key.deleted", key.id, project.organization_id, project.id, before=facts(key))
            commands += self._audit.entry(gone, by, now)
        before = with_field(facts(project), "limits", msgspec.Raw(project.limits))
        change = Change("project.deleted", project.id, project.organization_id, project.id, before=before)
        commands += self._remove(project, project.organization_id) + self._audit.entry(change, by, now)
        return tuple(key.id for key in usable), commands

    def _remove(self, item: Organization | Project | Key, within: str | None = None) -> Commands:
        """An item, out of every order it is in."""
        kind = type(item)
        orders = [self._names.order(kind)] + ([] if within is None else [self._names.order(kind, within)])
        return [("HDEL", self._names.items(kind), item.id), *(("ZREM", order, item.id) for order in orders)]

    def _add(self, item: Organization | Project | Key, position: int, within: str | None = None) -> Commands:
        """A new item, in the order of all and of its parent."""
        kind = type(item)
        orders = [self._names.order(kind)] + ([] if within is None else [self._names.order(kind, within)])
        return [
            *self._put(item),
            *(("ZADD", order, position, item.id) for order in orders),
            ("HSET", self._names.meta, "position", position),
        ]

    def _put(self, item: Organization | Project | Key) -> Commands:
        return [("HSET", self._names.items(type(item)), item.id, encode(item))]

    def _put_digest(self, one: KeyDigest) -> Commands:
        digest = one.digest.hex()
        return [
            ("HSET", self._names.digests, digest, encode_digest(one)),
            ("SADD", self._names.digests_of(one.key_id), digest),
        ]

    def _drop(self, gone: list[KeyDigest]) -> Commands:
        commands: Commands = []
        for one in gone:
            commands.append(("HDEL", self._names.digests, one.digest.hex()))
            commands.append(("SREM", self._names.digests_of(one.key_id), one.digest.hex()))
        return commands


def _kept(older: list[KeyDigest], ends_at: float, now: float) -> list[KeyDigest]:
    """The secrets that go on for a while beside a new one: at most all but one, those that last longest."""
    ending = [
        replace(one, expires_at=ends_at if one.expires_at is None else min(one.expires_at, ends_at)) for one in older
    ]
    open_ones = [one for one in ending if one.expires_at is not None and one.expires_at > now]
    open_ones.sort(key=lambda one: one.expires_at or 0, reverse=True)
    return open_ones[: MAX_SECRETS - 1]


async def _key_change(reader: Reader, action: str, key: Key, after: bytes) -> Change:
    project = await reader.one(Project, key.project_id)
    return Change(action, key.id, project.organization_id, project.id, before=facts(key), after=after)
