"""What is kept of organisations, projects and keys, and the contract of every store that keeps it.

Async because a store may be across a network. The records are frozen; a store answers with copies of what it holds.
No store ever holds a key's secret, only its hash.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from policies.audit import SYSTEM, AuditEntry, AuditWanted, Author, Change
from policies.kept_responses import KeptResponses
from policies.keys import Secret
from policies.lane import Lane
from policies.tenant import Role

T = TypeVar("T")

MAX_PAGE = 1000
MAX_SECRETS = 8  # of one key at a time; one more rotation ends the one that would end first


class StoreError(Exception):
    """The store cannot be used, or failed; the message says which store and why."""


class StoreLost(StoreError):
    """What was open is not there any more, or can no longer be written; the message says what to do about it."""


class Level(Enum):
    """What a limits document can belong to."""

    ORGANIZATION = "organization"
    PROJECT = "project"


class UnknownId(Exception):
    """There is no such organisation, project or key. `kind` is one of those words."""

    def __init__(self, kind: str, unknown_id: str) -> None:
        super().__init__(f"there is no {kind} {unknown_id!r}")
        self.kind = kind


class KeyEnded(Exception):
    """The key is revoked or expired, so it cannot be rotated."""


class NotEmpty(Exception):
    """There is something in it, so it is not deleted unless all of that shall go too."""


@dataclass(frozen=True, slots=True)
class Organization:
    """`limits`: its limits document, JSON as it was set. Times are Unix seconds."""

    id: str
    name: str
    created_at: int
    limits: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class Project:
    """`limits`: its limits document, JSON as it was set. Times are Unix seconds."""

    id: str
    organization_id: str
    name: str
    created_at: int
    limits: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a new key shall be. Lanes of None follow the project's limits. `expires_at`: Unix seconds, None: never."""

    project_id: str
    name: str
    roles: frozenset[Role] = frozenset({Role.SERVICE})
    max_lane: Lane | None = None
    default_lane: Lane | None = None
    expires_at: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret. `prefix`: how its current secret begins. Times are Unix seconds, None: not.

    `last_used_at`: of a request that was let in, told about once a minute; no part of a snapshot.
    """

    id: str
    project_id: str
    name: str
    prefix: str
    roles: frozenset[Role]
    max_lane: Lane | None
    default_lane: Lane | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None = None

    def ended(self, now: float) -> str | None:
        """`revoked` or `expired` at Unix second `now`; None while it opens."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else None


@dataclass(frozen=True, slots=True)
class OpenedKey:
    """What a secret opens. `expires_at`: when that ends, of secret and key the earlier one; None: never."""

    key: Key
    project: Project
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went, by id; `keys` are those that could still be used."""

    organizations: tuple[str, ...]
    projects: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyDigest:
    """A secret that opens a key. `expires_at`: when it alone ends (the old one of a rotation), None: with its key."""

    digest: bytes
    key_id: str
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items in order of creation. `next_after`: pass it as `after` to go on, None at the end."""

    items: tuple[T, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a directory needs, as of one revision. Revoked keys and their digests are not in it."""

    revision: int
    server_secret: bytes
    organizations: tuple[Organization, ...]
    projects: tuple[Project, ...]
    keys: tuple[Key, ...]
    digests: tuple[KeyDigest, ...]


class Store(KeptResponses, Protocol):
    """Every change raises `revision` and is written to the audit log, as `by`, in the same transaction.

    Any method may raise `StoreError`.
    """

    async def create_organization(self, name: str, *, by: Author = SYSTEM) -> Organization:
        """A new organisation."""
        ...

    async def organization(self, organization_id: str) -> Organization:
        """One organisation. Raises `UnknownId`."""
        ...

    async def organizations(self, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[Organization]:
        """Organisations that were made later than `after`. Raises `UnknownId` if that one does not exist."""
        ...

    async def create_project(self, name: str, organization_id: str, *, by: Author = SYSTEM) -> Project:
        """A new project. Raises `UnknownId` for the organisation."""
        ...

    async def project(self, project_id: str) -> Project:
        """One project. Raises `UnknownId`."""
        ...

    async def projects(
        self, *, organization_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Project]:
        """Projects, of one organisation or all. Raises `UnknownId` for `after`."""
        ...

    async def create_key(self, new: NewKey, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """A new key and its secret, which cannot be had again. Raises `UnknownId` for the project."""
        ...

    async def key(self, key_id: str) -> Key:
        """One key, revoked or not. Raises `UnknownId`."""
        ...

    async def keys(
        self, *, project_id: str | None = None, limit: int = MAX_PAGE, after: str | None = None
    ) -> Page[Key]:
        """Keys, of one project or all, revoked ones too. Raises `UnknownId` for `after`."""
        ...

    async def revoke_key(self, key_id: str, *, by: Author = SYSTEM) -> Key:
        """The key, now revoked; once revoked it keeps its first `revoked_at`. Raises `UnknownId`."""
        ...

    async def rotate_key(self, key_id: str, overlap_s: float = 0.0, *, by: Author = SYSTEM) -> tuple[Key, Secret]:
        """The key with a new secret; older secrets end in `overlap_s` seconds. Raises `UnknownId`, `KeyEnded`."""
        ...

    async def opened_by(self, digest: bytes) -> OpenedKey | None:
        """What the secret with this SHA-256 opens, None if nothing; the caller looks at `expires_at`."""
        ...

    async def delete_project(self, project_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete a project and its keys, which are refused from then on.

        Raises `UnknownId`, and without `cascade` `NotEmpty` while it has a key that is not revoked.
        """
        ...

    async def delete_organization(self, organization_id: str, *, cascade: bool, by: Author = SYSTEM) -> Deleted:
        """Delete an organisation. Raises `UnknownId`, and without `cascade` `NotEmpty` while it has a project."""
        ...

    async def note_uses(self, used_at: dict[str, int]) -> None:
        """When keys (by id) were last used, Unix seconds; a later time that is known stays. Raises no revision."""
        ...

    async def claim_alert(self, alert_id: str, until: float) -> bool:
        """Whether the alert is the caller's to tell until this Unix second: nobody else has it or told it."""
        ...

    async def settle_alert(self, alert_id: str, until: float) -> None:
        """The alert was told: nobody gets it until this Unix second."""
        ...

    async def note_change(self, change: Change, *, by: Author) -> None:
        """Write to the audit log what was changed outside of the store."""
        ...

    async def audit(self, wanted: AuditWanted, *, limit: int = MAX_PAGE, after: str | None = None) -> Page[AuditEntry]:
        """Entries of the audit log, the newest first. A page may be short, even empty, before the last one.

        Raises `ValueError` for an `after` that is not where a page ended.
        """
        ...

    async def limits(self, level: Level, of: str) -> bytes:
        """The limits document of an organisation or project, JSON. Raises `UnknownId`."""
        ...

    async def set_limits(self, level: Level, of: str, document: bytes, *, by: Author = SYSTEM) -> None:
        """Replace a limits document; the caller has validated it (policies/limits.py). Raises `UnknownId`."""
        ...

    async def revision(self) -> int:
        """A number that every change raises; cheap."""
        ...

    async def snapshot(self) -> Snapshot:
        """Everything as of one moment."""
        ...

    def changes(self) -> AsyncGenerator[None, None]:
        """An item whenever the store may have changed, as far as it can tell; close it. Poll `revision` all the same.

        Ends at once where nobody but the supervisor writes, who tells its gateways himself.
        """
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of the store. Harmless the second time."""
        ...
