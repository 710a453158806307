"""How organisations, projects and keys are written in Redis, under which names, and read again. Knows no connection."""

from typing import Any, TypeVar

import msgspec

from policies.lane import Lane
from policies.store import Key, KeyDigest, Organization, Project, StoreError
from policies.tenant import Role

R = TypeVar("R")
T = TypeVar("T", bound=Organization | Project | Key)

VERSION = 1
ROOTS: dict[type, str] = {Organization: "organizations", Project: "projects", Key: "keys"}
_ROLES = {role.value: role for role in Role}


class _KeyRow(msgspec.Struct):
    """A key as written; roles are names, because one that this version does not know gives no right."""

    id: str
    project_id: str
    name: str
    prefix: str
    roles: list[str]
    max_lane: Lane | None
    default_lane: Lane | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None


class _DigestRow(msgspec.Struct, array_like=True):
    key_id: str
    expires_at: float | None


class Names:
    """The names of one store in Redis; one hash tag, so that they share a slot on a Cluster."""

    def __init__(self, prefix: str) -> None:
        self._root = f"{prefix}:{{store}}:"
        self.meta = self._root + "meta"  # hash: version, server_secret, revision, position
        self.changed = self._root + "changed"  # channel
        self.digests = self._root + "digests"  # hash: SHA-256 in hex -> whose it is
        self.audit = self._root + "audit"  # stream: one entry a change
        self.key_uses = self._root + "key_uses"  # hash: key id -> Unix seconds

    def alert(self, alert_id: str) -> str:
        """There while an alert is being told, or was."""
        return f"{self._root}alert:{alert_id}"

    def response(self, project_id: str, response_id: str) -> str:
        """What is kept of one answer; ends by itself."""
        return f"{self._root}response:{project_id}:{response_id}"

    def responses_of(self, project_id: str) -> str:
        """Sorted set: the ids of what is kept of a project, the oldest first."""
        return f"{self._root}responses:of:{project_id}"

    def response_sizes(self, project_id: str) -> str:
        """Hash: id -> bytes; of the empty id -> all of the project's."""
        return f"{self._root}responses:sizes:{project_id}"

    def items(self, kind: type) -> str:
        """Hash: id -> the item."""
        return self._root + ROOTS[kind]

    def order(self, kind: type, within: str | None = None) -> str:
        """Sorted set: ids by position, of all or of one parent."""
        return f"{self._root}{ROOTS[kind]}:{'all' if within is None else 'of:' + within}"

    def digests_of(self, key_id: str) -> str:
        """Set: the digests of one key, in hex."""
        return f"{self._root}digests:of:{key_id}"


def encode(item: Organization | Project | Key) -> bytes:
    """One item as JSON."""
    if isinstance(item, Key):
        values = {name: getattr(item, name) for name in _KeyRow.__struct_fields__ if name != "roles"}
        return msgspec.json.encode(_KeyRow(roles=sorted(role.value for role in item.roles), **values))
    return msgspec.json.encode(item)


def decode(kind: type[T], row: bytes) -> T:
    """The item of this kind. Raises `StoreError` for anything else."""
    if kind is not Key:
        return _parsed(row, kind)
    found = _parsed(row, _KeyRow)
    values: dict[str, Any] = {name: getattr(found, name) for name in _KeyRow.__struct_fields__}
    values["roles"] = frozenset(_ROLES[role] for role in found.roles if role in _ROLES)
    return kind(**values)


def encode_digest(one: KeyDigest) -> bytes:
    """Whose a digest is and until when."""
    return msgspec.json.encode(_DigestRow(one.key_id, one.expires_at))


def decode_digest(digest: bytes, row: bytes) -> KeyDigest:
    """The digest (in hex) with what `encode_digest` wrote."""
    found = _parsed(row, _DigestRow)
    return KeyDigest(bytes.fromhex(digest.decode()), found.key_id, found.expires_at)


def _parsed(row: bytes, kind: type[R]) -> R:
    try:
        return msgspec.json.decode(row, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"something in the store is not what it should be: {error}") from error
