"""Engines without a cache salt get one tenant each: who owns which is claimed before a request may be routed there.

The rule is `routing/isolation.py`; here is what it needs from outside: the claims that all gateways share, and the
sentences for an operator. Where every engine has a salt, or sharing is accepted, no request waits for any of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.errors import Refused
from gateway.home import store_path
from gateway.outcome import Outcome
from gateway.settings import ReplicaSection, StoreSection
from observability import logs
from policies.cache_claims import CacheClaims
from policies.sqlite_claims import SqliteCacheClaims
from policies.store import StoreError
from routing.isolation import CacheOwners, Separation, separation_of
from routing.pool import ReplicaPool
from routing.query import RouteQuery
from routing.replica import Replica, ReplicaSpec, ReplicaState

FOLLOW_S = 2.0  # chosen: how soon a release on another machine is known here; that replica is drained meanwhile
MAX_HOMELESS = 1000  # chosen: tenants that wait for an engine of their own; there are fewer engines


class NotReleasable(Exception):
    """The replica's cache cannot be given free now; the message says what to do first."""


class CacheIsolation:
    """Who owns which engine, kept in step with the claims. Made before the router, which asks `owners.may_use`."""

    def __init__(self, pool: ReplicaPool, claims: CacheClaims) -> None:
        self.owners = CacheOwners()
        self._pool = pool
        self._claims = claims
        self._claiming = asyncio.Lock()
        self._is_failing = False
        self._homeless: dict[tuple[str, str], None] = {}  # (model, cache domain), the oldest first

    async def ensure_place(self, query: RouteQuery) -> None:
        """Claim an engine for the query's cache domain if all that it may use are busy and there is one to be had.

        Never one that a tenant without any has asked for in vain. Raises `Refused` (503) if the domain has none and
        the claims cannot be reached.
        """
        if self._wanted(query) is None:
            return
        # One after the other: whoever was let in before has its seat by then, so a burst claims no more than it fills.
        async with self._claiming:
            while (replica := self._wanted(query)) is not None:
                try:
                    owner = await self._claims.claim(replica.spec.url, query.cache_domain)
                except StoreError as error:
                    self._note(error)
                    if self._places(query):
                        return
                    raise _unreachable() from error
                self.owners.learn(replica.spec.url, owner)
                if owner == query.cache_domain:
                    logs.get().info("replica.claimed", replica=replica.name, owner=owner)

    async def release(self, replica: Replica) -> None:
        """The replica's engine belongs to nobody: its cache was cleared. Raises `NotReleasable`, `StoreError`."""
        if separation_of(replica.spec) is not Separation.OWNER:
            raise NotReleasable("its cache belongs to nobody: the engine has a salt, or sharing is accepted")
        at_engine = [one for one in self._pool if one.spec.url == replica.spec.url]
        if any(one.state is not ReplicaState.DRAINING or one.num_in_flight for one in at_engine):
            raise NotReleasable("drain it, wait until nothing is in flight, and clear its cache by a restart first")
        await self._claims.release(replica.spec.url)
        self.owners.forget(replica.spec.url)

    async def follow(self, every_s: float = FOLLOW_S) -> None:
        """Read the claims for ever, until cancelled, while some replica needs them. An outage is logged once."""
        while True:
            if any(separation_of(replica.spec) is Separation.OWNER for replica in self._pool):
                with contextlib.suppress(StoreError):
                    await self.refresh()
            await asyncio.sleep(every_s)

    async def refresh(self) -> None:
        """Read the claims now. Raises `StoreError`; what is known stays in force then."""
        async with self._claiming:  # or an engine that is claimed meanwhile would be forgotten
            try:
                self.owners.replace(await self._claims.owners())
            except StoreError as error:
                self._note(error)
                raise
        self._is_failing = False

    def state_of(self, spec: ReplicaSpec) -> dict[str, str | None]:
        """What the admin plane shows: `separation`, and the `owner` where there can be one."""
        separation = separation_of(spec)
        owner = self.owners.owner(spec.url) if separation is Separation.OWNER else None
        return {"separation": separation.value, "owner": owner}

    def _wanted(self, query: RouteQuery) -> Replica | None:
        """The replica to claim now: the first free one. Notes who wants one and cannot have it."""
        replicas = self._pool.of_model(query.model)
        if all(one.spec.capabilities.cache_salt or one.spec.is_cache_shared for one in replicas):
            return None  # on most fleets that is all this costs
        free = [one for one in replicas if self._is_free(one.spec) and _is_usable(one, query)]
        places, waiter = self._places(query), (query.model, query.cache_domain)
        if places:
            self._homeless.pop(waiter, None)
            num_others = sum(model == query.model for model, _ in self._homeless)
            may_grow = len(free) > num_others and all(one.num_in_flight for one in places)
            return free[0] if may_grow else None
        if free:
            return free[0]
        if not query.excluded:  # else it has one, which has just failed
            self._homeless[waiter] = None
        if len(self._homeless) > MAX_HOMELESS:
            del self._homeless[next(iter(self._homeless))]
        return None

    def _places(self, query: RouteQuery) -> list[Replica]:
        may_use, domain = self.owners.may_use, query.cache_domain
        replicas = self._pool.of_model(query.model)
        return [one for one in replicas if _is_usable(one, query) and may_use(domain, one.spec)]

    def _is_free(self, spec: ReplicaSpec) -> bool:
        return separation_of(spec) is Separation.OWNER and self.owners.owner(spec.url) is None

    def _note(self, error: StoreError) -> None:
        if not self._is_failing:
            logs.get().warning("replica.claims_unreachable", reason=str(error))
        self._is_failing = True


def _is_usable(replica: Replica, query: RouteQuery) -> bool:
    is_open = replica.state is ReplicaState.READY and replica.name not in query.excluded
    return is_open and query.labels <= replica.spec.labels.items() and replica.spec.serves(query.needs)


def _unreachable() -> Refused:
    message = "the engines of this model have one tenant each, and the store that knows whose they are does not answer"
    return Refused(message, code="isolation_unavailable", status=503, retry_after_s=1.0, outcome=Outcome.SHED)


@contextlib.asynccontextmanager
async def opened_claims(section: StoreSection, home: Path) -> AsyncIterator[CacheClaims]:
    """The claims beside the store that the configuration names. Raises `ConfigError`, `StoreError`."""
    claims: CacheClaims
    if section.is_shared:
        from policies.redis_claims import RedisCacheClaims  # loaded only where it is used
        from policies.redis_link import RedisLink

        claims = RedisCacheClaims(RedisLink(section.url))
    else:
        claims = SqliteCacheClaims(store_path(section.url, home))
    try:
        yield claims
    finally:
        await claims.close()


def separation_notes(replicas: tuple[ReplicaSection, ...]) -> list[str]:
    """A sentence for each replica whose engine cannot keep tenants apart by itself."""
    return [_note_of(one) for one in replicas if not one.has_cache_salt]


def _note_of(replica: ReplicaSection) -> str:
    engine = f"{replica.name}: {replica.engine} separates no tenants in its prefix cache"
    if replica.shares_cache:
        return f"{engine}; sharing it is accepted: response times and cached tokens tell what other tenants asked"
    return f'{engine}, so it serves the first one alone; shared_cache = "accept" lets all of them use it'
