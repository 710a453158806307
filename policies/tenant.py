"""Who is asking. A leaf: every package may import it, it imports nothing of ours but the lane.

The tenant is the project: salt, flow, weight and caps are its. A caller never chooses any of it.
"""

from dataclasses import dataclass
from enum import Enum

from policies.lane import Lane


class Role(Enum):
    """What a key may do. Only `SERVICE` exists on the data plane today."""

    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a project may use, after inheritance. `None` means no limit, 0 means none allowed.

    `rpm`: requests admitted a minute. `concurrency`: requests in flight (queued ones count), by lane. `batch_cap`:
    seats in one replica's batch, by lane. `weight`: the share of service when others wait too, above 0.
    """

    rpm: int | None = None
    concurrency: dict[Lane, int] | None = None
    batch_cap: dict[Lane, int] | None = None
    weight: float = 1.0
    models: frozenset[str] | None = None
    max_lane: Lane = Lane.INTERACTIVE
    default_lane: Lane = Lane.INTERACTIVE


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who pays, what they may use, and the secret that separates their cache from everybody else's.

    `cache_salt`: 32 hex digits, derived from the server's secret and the project id; valid for every engine.
    `organization_limits`: what all projects of the organisation may use together (`rpm` and `concurrency` count).
    """

    project_id: str
    organization_id: str
    cache_salt: str
    limits: Limits
    organization_limits: Limits = Limits()


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
