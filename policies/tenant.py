"""Who is asking. A leaf: every package may import it, it imports nothing of ours but the lane.

The tenant is the project: salt, flow, weight and caps are its. A caller never chooses any of it.
"""

from dataclasses import dataclass
from enum import Enum

from policies.lane import Lane


class Role(Enum):
    """What a caller may do. `SERVICE` is of the data plane and the others of the admin plane (policies/roles.py)."""

    PLATFORM_ADMIN = "platform_admin"
    ORGANIZATION_ADMIN = "organization_admin"
    PROJECT_ADMIN = "project_admin"
    VIEWER = "viewer"
    SERVICE = "service"


class ResponseCaching(Enum):
    """Which of a project's requests may be answered with what an equal one was told before."""

    OFF = "off"
    REPEATABLE = "repeatable"  # that ask for the same answer every time: greedy ones, and those with a seed
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a project may use, after inheritance. `None` means no limit, 0 means none allowed.

    `rpm`: requests admitted a minute. `concurrency`: requests in flight (queued ones count), by lane. `batch_cap`:
    seats in one replica's batch, by lane. `weight`: the share of service when others wait too, above 0. `tpm`,
    `tokens_per_day`: charged tokens; `cached_token_discount` (0..1) of a cached one is not charged. `time_zone`: whose
    days and months count. `shadow`: refuse nothing, only tell what rpm, tpm, concurrency, tokens and money would have.
    `sharing_group`: projects of the organisation that name the same one share their cache. `models`, `surfaces`: what
    may be asked for, None for all; a surface is the path of its route. `response_cache`: see there.
    """

    rpm: int | None = None
    tpm: int | None = None
    tokens_per_day: int | None = None
    usd_per_month: float | None = None
    time_zone: str = "UTC"
    cached_token_discount: float = 0.0
    shadow: bool = False
    sharing_group: str | None = None
    concurrency: dict[Lane, int] | None = None
    batch_cap: dict[Lane, int] | None = None
    weight: float = 1.0
    models: frozenset[str] | None = None
    surfaces: frozenset[str] | None = None
    max_lane: Lane = Lane.INTERACTIVE
    default_lane: Lane = Lane.INTERACTIVE
    response_cache: ResponseCaching = ResponseCaching.OFF


def cache_domain(project_id: str, organization_id: str, limits: Limits) -> str:
    """Whose prompts may meet in one cache: the project's alone, or those of a sharing group of its organisation.

    Not a secret. Ids hold no slash, so a group is never taken for a project, nor for one of another organisation.
    """
    group = limits.sharing_group
    return project_id if group is None else f"{organization_id}/{group}"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who pays, what they may use, and the secret that separates their cache from everybody else's.

    `cache_salt`: 32 hex digits, derived from the server's secret and the cache domain; valid for every engine.
    `organization_limits`: what all projects of the organisation may use together, with its own `shadow`.
    """

    project_id: str
    organization_id: str
    cache_salt: str
    limits: Limits
    organization_limits: Limits = Limits()

    @property
    def cache_domain(self) -> str:
        """Whose prompts may meet in one cache with this project's."""
        return cache_domain(self.project_id, self.organization_id, self.limits)


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `expires_at`: Unix seconds, or None for never."""

    tenant: Tenant
    key_id: str
    key_name: str
    roles: frozenset[Role]
    max_lane: Lane
    default_lane: Lane
    expires_at: float | None = None
