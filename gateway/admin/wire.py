"""The bodies of the admin plane, and how one is read: strictly, with the bad field named.

Times are Unix seconds. A lane of null follows the project's limits.
"""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from gateway.errors import ClientError
from policies.json_fault import plainly
from policies.lane import Lane
from policies.limits import bad_field
from policies.store import Deleted, Key, Organization, Project
from policies.tenant import Role

MAX_BODY_BYTES = 1024 * 1024
MAX_OVERLAP_S = 30 * 86400  # chosen: an old secret that lives longer than a month is a second key
YEAR_9999 = 253_402_300_799

Name = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+(?!\n)$")
]  # $ alone allows a line end
Id = Annotated[str, Meta(min_length=1, max_length=64)]
UnixSeconds = Annotated[int, Meta(ge=0, le=YEAR_9999)]

T = TypeVar("T")


class NewOrganizationBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What POST /organizations takes."""

    name: Name


class NewProjectBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What POST /projects takes."""

    name: Name
    organization_id: Id


class NewKeyBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What POST /keys takes."""

    name: Name
    project_id: Id
    roles: Annotated[frozenset[Role], Meta(min_length=1)] = frozenset({Role.SERVICE})
    max_lane: Lane | None = None
    default_lane: Lane | None = None
    expires_at: UnixSeconds | None = None


class RotationBody(Struct, frozen=True, forbid_unknown_fields=True):
    """What POST /keys/{id}/rotate takes. `overlap_s`: how long the old secret goes on working."""

    overlap_s: Annotated[float, Meta(ge=0, le=MAX_OVERLAP_S)] = 0.0


class OrganizationBody(Struct, frozen=True):
    """An organisation."""

    id: str
    name: str
    created_at: int

    @classmethod
    def of(cls, organization: Organization) -> "OrganizationBody":
        """The body of a stored organisation."""
        return cls(organization.id, organization.name, organization.created_at)


class ProjectBody(Struct, frozen=True):
    """A project."""

    id: str
    name: str
    created_at: int
    organization_id: str

    @classmethod
    def of(cls, project: Project) -> "ProjectBody":
        """The body of a stored project."""
        return cls(project.id, project.name, project.created_at, project.organization_id)


class KeyBody(Struct, frozen=True, kw_only=True):
    """A key without its secret. `last_used_at`: told about once a minute."""

    id: str
    name: str
    created_at: int
    project_id: str
    prefix: str
    roles: list[Role]
    max_lane: Lane | None
    default_lane: Lane | None
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None


class DeletedBody(Struct, frozen=True):
    """What went, by id. `keys`: those that could still be used, and are refused now."""

    organizations: tuple[str, ...]
    projects: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, deleted: Deleted) -> "DeletedBody":
        """The body of what a store deleted."""
        return cls(deleted.organizations, deleted.projects, deleted.keys)


class KeyWithSecretBody(KeyBody, frozen=True, kw_only=True):
    """A key with its new secret, which is shown this once."""

    secret: str


class OrganizationList(Struct, frozen=True):
    """A page of organisations; `next_cursor` is the next `after`."""

    data: list[OrganizationBody]
    next_cursor: str | None


class ProjectList(Struct, frozen=True):
    """A page of projects; `next_cursor` is the next `after`."""

    data: list[ProjectBody]
    next_cursor: str | None


class KeyList(Struct, frozen=True):
    """A page of keys; `next_cursor` is the next `after`."""

    data: list[KeyBody]
    next_cursor: str | None


class ReloadedBody(Struct, frozen=True):
    """What a reload found: keys as in the file. `changed`: in force now; `needs_restart`: as they were until then."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


class ErrorDetail(Struct, frozen=True):
    """What went wrong. `param`: the field or query parameter; `code`: for scripts."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct, frozen=True):
    """OpenAI's error shape."""

    error: ErrorDetail


def key_body(key: Key) -> KeyBody:
    """The body of a stored key."""
    return KeyBody(**_key_fields(key))


def key_with_secret(key: Key, secret: str) -> KeyWithSecretBody:
    """The body that shows a new secret."""
    return KeyWithSecretBody(**_key_fields(key), secret=secret)


def _key_fields(key: Key) -> dict[str, Any]:
    fields = {name: getattr(key, name) for name in KeyBody.__struct_fields__}
    return fields | {"roles": sorted(key.roles, key=lambda role: role.value)}


def read_body(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`. Raises `ClientError` (400) that names the bad field in `param`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        param = bad_field(str(error), body)
        message = f"the body cannot be used: {plainly(str(error), param)}"
        raise ClientError(message, param=param, code="invalid_body") from error
