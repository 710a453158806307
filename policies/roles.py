"""Who may do what on the admin plane: role x action x place. Pure; everything that is not said here is denied.

A grant is a role at a place: the installation, an organisation or a project. It holds there and in all that lies
within, never beside or above. Two rules follow from the places alone: an organisation's own limits are set from above
it, and so are a project's, so nobody widens what binds them; and nobody hands out a role that can do what they cannot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from policies.tenant import Role


class Action(Enum):
    """What can be done on the admin plane; each endpoint names one."""

    READ = "read"  # organisations, projects, keys without secrets, limits, records of requests, usage
    READ_AUDIT = "read_audit"
    MANAGE_KEYS = "manage_keys"
    MANAGE_PROJECTS = "manage_projects"  # create, set limits, delete
    MANAGE_ORGANIZATIONS = "manage_organizations"  # create, set limits, delete
    OPERATE = "operate"  # what runs: replicas, queue, settings, metrics; of no tenant


ACTIONS: dict[Role, frozenset[Action]] = {
    Role.PLATFORM_ADMIN: frozenset(Action),
    Role.ORGANIZATION_ADMIN: frozenset(
        {Action.READ, Action.READ_AUDIT, Action.MANAGE_KEYS, Action.MANAGE_PROJECTS},
    ),
    Role.PROJECT_ADMIN: frozenset({Action.READ, Action.MANAGE_KEYS}),
    Role.VIEWER: frozenset({Action.READ}),
    Role.SERVICE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is. Both None: the installation. A project is always given with its organisation, if known."""

    organization_id: str | None = None
    project_id: str | None = None

    def holds(self, other: "Place") -> bool:
        """Whether the other is this place or lies within it."""
        if self.project_id is not None:
            return other.project_id == self.project_id
        return self.organization_id in (None, other.organization_id)


EVERYWHERE = Place()


@dataclass(frozen=True, slots=True)
class Grant:
    """One role, and where it holds."""

    role: Role
    place: Place


def may(grants: Iterable[Grant], action: Action, place: Place) -> bool:
    """Whether one of the grants allows this action at this place."""
    return any(action in ACTIONS[grant.role] and grant.place.holds(place) for grant in grants)


def may_somewhere(grants: Iterable[Grant], action: Action) -> bool:
    """Whether there could be a place for it: without one, nothing needs to be looked up."""
    return any(action in ACTIONS[grant.role] for grant in grants)


def may_hand_out(grants: Iterable[Grant], roles: Iterable[Role], place: Place) -> bool:
    """Whether these roles of a key at this project can do nothing that the grants cannot.

    Also for a new secret of a key that exists: whoever gets the secret gets the roles.
    """
    given = tuple(grants)
    return all(
        may(given, action, grant.place) for grant in grants_of_key(roles, place) for action in ACTIONS[grant.role]
    )


def grants_of_key(roles: Iterable[Role], place: Place) -> tuple[Grant, ...]:
    """What a key of the project at `place` may do on the admin plane, by its roles."""
    return tuple(Grant(role, _reach(role, place)) for role in sorted(roles, key=lambda role: role.value))


def _reach(role: Role, place: Place) -> Place:
    if role is Role.PLATFORM_ADMIN:
        return EVERYWHERE
    return Place(place.organization_id) if role is Role.ORGANIZATION_ADMIN else place


def widest(grants: Iterable[Grant], action: Action) -> tuple[Place, ...]:
    """Where the action is allowed, places within others left out; empty: nowhere."""
    places = {grant.place for grant in grants if action in ACTIONS[grant.role]}
    kept = (one for one in places if not any(other != one and other.holds(one) for other in places))
    return tuple(sorted(kept, key=lambda one: (one.organization_id or "", one.project_id or "")))
