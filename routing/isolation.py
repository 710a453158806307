"""Which tenants may meet on a replica whose engine knows no cache salt. Pure.

Such an engine finds a prompt's beginning in its cache whoever sent it, and response times tell who did. So it belongs
to one cache domain (a project, or a sharing group), unless its operator accepts that tenants share it. Its cache
outlives every request, so what it belongs to does, too: only an operator ends that (`forget`).
"""

from enum import Enum

from routing.replica import ReplicaSpec


class Separation(Enum):
    """What keeps the tenants of a replica from finding each other's prompts in its cache."""

    SALT = "salt"  # the engine separates them
    OWNER = "owner"  # one cache domain uses it and no other
    NONE = "none"  # nothing: the operator accepts it


def separation_of(spec: ReplicaSpec) -> Separation:
    """How the replica's tenants are kept apart."""
    if spec.capabilities.cache_salt:
        return Separation.SALT
    return Separation.NONE if spec.is_cache_shared else Separation.OWNER


class CacheOwners:
    """What this gateway knows of who owns which engine, by the engine's URL: two replicas there have one cache.

    At most one entry for each URL that was ever asked about.
    """

    def __init__(self) -> None:
        self._domains: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<CacheOwners {self._domains}>"

    def owner(self, url: str) -> str | None:
        """The cache domain that owns the engine, None if it is not known to have one."""
        return self._domains.get(url)

    def may_use(self, domain: str, spec: ReplicaSpec) -> bool:
        """Whether prompts of the domain may be sent to the replica. One without an owner must be claimed first."""
        return separation_of(spec) is not Separation.OWNER or self._domains.get(spec.url) == domain

    def learn(self, url: str, domain: str) -> None:
        """The engine belongs to the domain."""
        self._domains[url] = domain

    def replace(self, owners: dict[str, str]) -> None:
        """Exactly these are the owners."""
        self._domains = dict(owners)

    def forget(self, url: str) -> None:
        """The engine's cache is known to be empty: it belongs to nobody."""
        self._domains.pop(url, None)
