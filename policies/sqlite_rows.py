"""How organisations, projects and keys stand in the rows of the SQLite store. Knows no connection."""

from collections.abc import Callable
from typing import Any

from policies.lane import Lane
from policies.store import Key, Organization, Project
from policies.tenant import Role

Row = tuple[Any, ...]

TABLES: dict[type, str] = {Organization: "organizations", Project: "projects", Key: "keys"}
COLUMNS: dict[type, str] = {
    Organization: "id, name, created_at, limits",
    Project: "id, organization_id, name, created_at, limits",
    Key: (
        "id, project_id, name, prefix, roles, max_lane, default_lane, created_at, expires_at, revoked_at, "
        "(SELECT last_used_at FROM key_uses WHERE key_id = keys.id)"
    ),
}
_ROLES = {role.value: role for role in Role}


def _organization(row: Row) -> Organization:
    item_id, name, created_at, limits = row
    return Organization(item_id, name, created_at, limits.encode())


def _project(row: Row) -> Project:
    item_id, organization_id, name, created_at, limits = row
    return Project(item_id, organization_id, name, created_at, limits.encode())


def _key(row: Row) -> Key:
    item_id, project_id, name, prefix, roles, max_lane, default_lane, created_at, expires_at, revoked_at, used_at = row
    return Key(
        id=item_id,
        project_id=project_id,
        name=name,
        prefix=prefix,
        roles=frozenset(_ROLES[role] for role in roles.split(",") if role in _ROLES),  # an unknown one gives no right
        max_lane=None if max_lane is None else Lane(max_lane),
        default_lane=None if default_lane is None else Lane(default_lane),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=used_at,
    )


ITEMS: dict[type, Callable[[Row], Any]] = {Organization: _organization, Project: _project, Key: _key}
