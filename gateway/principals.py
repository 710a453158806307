"""From what the store holds to who may call: one `Principal` for each secret, with its project's limits and salt.

A limits document that cannot be read closes its project, or every project of its organisation: a bad value must never
open a door.
"""

from dataclasses import dataclass

from policies.keys import cache_salt
from policies.lane import Lane
from policies.limits import CLOSED, LimitsDocument, LimitsError, effective, parse_limits
from policies.store import Key, KeyDigest, Snapshot
from policies.tenant import Limits, Principal, Role, Tenant, cache_domain

Principals = dict[bytes, Principal]


@dataclass(frozen=True, slots=True)
class Built:
    """`tenants`: by project id, those with a secret. `closed`: (id, fault) of every limits document that is no use."""

    principals: Principals
    tenants: dict[str, Tenant]
    closed: tuple[tuple[str, str], ...]


def principals_of(snapshot: Snapshot) -> Built:
    """Every secret's SHA-256 and the principal it stands for."""
    faults: list[tuple[str, str]] = []
    documents = {one.id: _document(one.id, one.limits, faults) for one in snapshot.organizations}
    tenants: dict[str, Tenant] = {}
    for project in snapshot.projects:
        above = documents.get(project.organization_id)
        own = _document(project.id, project.limits, faults)
        limits = CLOSED if above is None or own is None else effective(above, own)
        domain = cache_domain(project.id, project.organization_id, limits)
        tenants[project.id] = Tenant(
            project_id=project.id,
            organization_id=project.organization_id,
            cache_salt=cache_salt(snapshot.server_secret, domain),
            limits=limits,
            organization_limits=CLOSED if above is None else effective(above),
        )
    keys = {key.id: key for key in snapshot.keys}
    principals = {
        one.digest: _principal(tenants[keys[one.key_id].project_id], keys[one.key_id], one)
        for one in snapshot.digests
        if Role.SERVICE in keys[one.key_id].roles  # the others open the admin plane alone
    }
    callers = {one.tenant.project_id: one.tenant for one in principals.values()}
    return Built(principals, callers, tuple(faults))


def _document(subject: str, document: bytes, faults: list[tuple[str, str]]) -> LimitsDocument | None:
    try:
        return parse_limits(document)
    except LimitsError as error:
        faults.append((subject, str(error)))
        return None


def _principal(tenant: Tenant, key: Key, secret: KeyDigest) -> Principal:
    max_lane, default_lane = _lanes(tenant.limits, key)
    ends = [end for end in (key.expires_at, secret.expires_at) if end is not None]
    return Principal(
        tenant=tenant,
        key_id=key.id,
        key_name=key.name,
        roles=key.roles,
        max_lane=max_lane,
        default_lane=default_lane,
        expires_at=min(ends, default=None),
    )


def _lanes(limits: Limits, key: Key) -> tuple[Lane, Lane]:
    """(`max_lane`, `default_lane`): a key may narrow its project's lanes, never widen them."""
    max_lane = max(limits.max_lane, key.max_lane or limits.max_lane, key=lambda lane: lane.rank)
    default_lane = key.default_lane or limits.default_lane
    return max_lane, max(default_lane, max_lane, key=lambda lane: lane.rank)
