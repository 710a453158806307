"""Every change to the Redis store: what it reads, and the commands that write it. Each is one transaction's work."""

from dataclasses import replace

from policies.keys import Secret, new_id, new_secret
from policies.redis_rows import Names, encode, encode_digest
from policies.redis_transactions import Commands, Reader, Work
from policies.store import MAX_SECRETS, Key, KeyDigest, KeyEnded, NewKey, Organization, Project


class Changes:
    """Works for `Transactions.change`. `now`: Unix seconds."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def create_organization(self, name: str, now: float) -> Work[Organization]:
        """A new organisation."""
        made = Organization(new_id("org"), name, int(now))

        async def work(reader: Reader) -> tuple[Organization, Commands]:
            return made, self._add(made, await reader.next_position())

        return work

    def create_project(self, name: str, organization_id: str, now: float) -> Work[Project]:
        """A new project of an organisation that must exist."""
        made = Project(new_id("proj"), organization_id, name, int(now))

        async def work(reader: Reader) -> tuple[Project, Commands]:
            await reader.one(Organization, organization_id)
            return made, self._add(made, await reader.next_position(), organization_id)

        return work

    def create_key(self, new: NewKey, now: float) -> Work[tuple[Key, Secret]]:
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
            await reader.one(Project, new.project_id)
            added = self._add(made, await reader.next_position(), new.project_id)
            return (made, secret), added + self._put_digest(KeyDigest(secret.digest, key_id, None))

        return work

    def revoke_key(self, key_id: str, now: float) -> Work[Key]:
        """The key without secrets; one that is revoked already stays as it is."""

        async def work(reader: Reader) -> tuple[Key, Commands]:
            key = await reader.one(Key, key_id)
            if key.revoked_at is not None:
                return key, []
            revoked = replace(key, revoked_at=int(now))
            return revoked, self._put(revoked) + self._drop(await reader.digests_of(key_id))

        return work

    def rotate_key(self, key_id: str, overlap_s: float, now: float) -> Work[tuple[Key, Secret]]:
        """The key with one more secret; the older ones end after the overlap, or go at once if there is none."""
        secret = new_secret(key_id)

        async def work(reader: Reader) -> tuple[tuple[Key, Secret], Commands]:
            key = await reader.one(Key, key_id)
            if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
                raise KeyEnded(f"the key {key_id} is {'expired' if key.revoked_at is None else 'revoked'}")
            older = await reader.digests_of(key_id)
            kept = _kept(older, now + overlap_s, now)
            dropped = [one for one in older if one.digest not in {other.digest for other in kept}]
            commands = self._drop(dropped)
            for one in (*kept, KeyDigest(secret.digest, key_id, None)):
                commands += self._put_digest(one)
            return (key, secret), commands

        return work

    def set_limits(self, kind: type[Organization] | type[Project], of: str, document: bytes) -> Work[None]:
        """Another limits document."""

        async def work(reader: Reader) -> tuple[None, Commands]:
            item: Organization | Project = await reader.one(kind, of)
            return None, self._put(replace(item, limits=document))

        return work

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
