"""The audit log: who changed what, when, what it was before and what it is since. Knows no store and no clock.

An entry is only ever added, in the same transaction as its change, and goes when it is too old or one too many. What
is told of a key is what may be shown: never a secret nor its hash.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from policies.store import Key, Organization, Project

MAX_SCANNED = 10_000  # entries looked at for one page; a filter that finds none is told to go on from there


class ActorKind(Enum):
    """How whoever changed something came in."""

    SYSTEM = "system"  # Warmlane itself, at its start
    ADMIN_TOKEN = "admin_token"  # noqa: S105  # a kind, no secret
    KEY = "key"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks for a change. `subject`: a key's id, or issuer and subject of a person. `request_id`: of the asking."""

    kind: ActorKind
    subject: str = ""
    request_id: str = ""


SYSTEM = Author(ActorKind.SYSTEM)


@dataclass(frozen=True, slots=True)
class Change:
    """What was done. `action`: `key.created` and the like. `before`, `after`: JSON, None where there was nothing."""

    action: str
    subject_id: str
    organization_id: str | None = None
    project_id: str | None = None
    before: bytes | None = None
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change, as kept. `id`: grows with time. `at`: Unix seconds."""

    id: str
    at: float
    author: Author
    change: Change


@dataclass(frozen=True, slots=True)
class AuditWanted:
    """Which entries are asked for; None: all. `starts_at` (in), `ends_at` (out): Unix seconds."""

    starts_at: float | None = None
    ends_at: float | None = None
    actor: str | None = None
    action: str | None = None
    subject_id: str | None = None
    organization_id: str | None = None
    project_id: str | None = None
    request_id: str | None = None

    def takes(self, entry: AuditEntry) -> bool:
        """Whether the entry is among them."""
        change, author = entry.change, entry.author
        pairs = (
            (self.actor, author.subject or author.kind.value),
            (self.action, change.action),
            (self.subject_id, change.subject_id),
            (self.organization_id, change.organization_id),
            (self.project_id, change.project_id),
            (self.request_id, author.request_id),
        )
        is_in_time = (self.starts_at is None or entry.at >= self.starts_at) and (
            self.ends_at is None or entry.at < self.ends_at
        )
        return is_in_time and all(wanted is None or wanted == found for wanted, found in pairs)


@dataclass(frozen=True, slots=True)
class AuditKeep:
    """How long and how many: what is older, or one too many, goes with the next change."""

    days: int = 400
    entries: int = 100_000

    def __post_init__(self) -> None:
        if self.days < 1 or self.entries < 1:
            raise ValueError("an audit log keeps at least one entry of at least one day")

    def oldest(self, now: float) -> float:
        """What began before this Unix second goes."""
        return now - self.days * 86400


def facts(item: "Organization | Project | Key") -> bytes:
    """An organisation, project or key as the log shows it, JSON."""
    shown = {name: getattr(item, name) for name in item.__slots__ if name not in ("limits", "last_used_at")}
    if isinstance(roles := shown.get("roles"), frozenset):
        shown["roles"] = sorted(role.value for role in roles)
    return msgspec.json.encode(shown)


def with_field(content: bytes, name: str, value: object) -> bytes:
    """The same JSON object with one more field."""
    return msgspec.json.encode(msgspec.json.decode(content, type=dict[str, object]) | {name: value})


def limits_change(item: "Organization | Project", document: bytes) -> Change:
    """What setting another limits document changes; before and after are the documents."""
    organization_id = getattr(item, "organization_id", item.id)
    project_id = item.id if hasattr(item, "organization_id") else None
    return Change("limits.set", item.id, organization_id, project_id, item.limits, document)
