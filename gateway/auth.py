"""Who is calling: an in-memory directory from a key's hash to its `Principal`, which follows the store.

Authenticating reads one map and never waits. A change reaches the directory when the control socket nudges it or the
store tells of it (Redis does), and without either within one poll (0.5 s by default). While the store cannot be read
the last directory stays in force, for as long as that lasts: a revocation made meanwhile could not have been written
either. `age_s` says how old it is.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import structlog

from cache_affinity.gossip_notes import installation_digest
from gateway.principals import Principals, principals_of
from policies.keys import CredentialFault, digest, read_credential
from policies.store import Store, StoreError, StoreLost
from policies.tenant import Principal, Tenant

POLL_S = 0.5
NEWS_GAP_S = 0.1  # chosen: a directory reads the whole store; so soon it does again, however fast changes come

log = structlog.get_logger()


class AuthFailureKind(Enum):
    """Why a caller is not known. Revoked keys are `UNKNOWN`, so that nobody learns they once existed."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    EXPIRED = "expired"
    AMBIGUOUS = "ambiguous"
    MALFORMED = "malformed"


_MESSAGES = {
    AuthFailureKind.MISSING: "give an API key: Authorization: Bearer wl-… or x-api-key: wl-…",
    AuthFailureKind.UNKNOWN: "this API key is not known",
    AuthFailureKind.EXPIRED: "this API key has expired",
    AuthFailureKind.AMBIGUOUS: "more than one API key was sent; send one",
    AuthFailureKind.MALFORMED: "the API key cannot be read; send Authorization: Bearer wl-… or x-api-key: wl-…",
}


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """A 401. `message` is a fixed text; `code` is for scripts. Neither has any part of what was sent."""

    kind: AuthFailureKind

    @property
    def message(self) -> str:
        """What the caller is told."""
        return _MESSAGES[self.kind]

    @property
    def code(self) -> str:
        """`missing_api_key`, or `invalid_api_key` for everything else, as OpenAI has it."""
        return "missing_api_key" if self.kind is AuthFailureKind.MISSING else "invalid_api_key"


_FAILURES = {kind: AuthFailure(kind) for kind in AuthFailureKind}
_FAULTS = {fault: _FAILURES[AuthFailureKind(fault.value)] for fault in CredentialFault}


class Directory:
    """Every key that may call, as of the last refresh. Empty, so that nobody is let in, until the first `refresh`.

    `on_change`: called when what the store holds has changed and is in force. `on_deleted`: with the ids of projects
    that were there and are not any more.
    """

    def __init__(
        self,
        store: Store,
        on_change: Callable[[], None] = lambda: None,
        on_deleted: Callable[[frozenset[str]], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._on_deleted = on_deleted
        self._projects: frozenset[str] = frozenset()
        self._principals: Principals = {}
        self._tenants: dict[str, Tenant] = {}
        self._revision: int | None = None
        self._read_at = float("-inf")
        self._refreshing = asyncio.Lock()
        self._is_failing = False
        self.installation = 0  # digest of the store's secret, see `gossip_notes`; 0 before the first refresh
        self.store_lost = ""  # the sentence of a store that is not there any more; empty while it is

    @property
    def revision(self) -> int | None:
        """The store's revision that is in force; None before the first refresh."""
        return self._revision

    @property
    def num_keys(self) -> int:
        """How many secrets open a door."""
        return len(self._principals)

    def age_s(self, now: float) -> float:
        """Seconds since the store was last read, at monotonic `now`: about one poll when all is well."""
        return now - self._read_at

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]], unix_now: float) -> Principal | AuthFailure:
        """Who sent these headers (names in lower case). `unix_now`: Unix seconds, for keys that expire."""
        credential = read_credential(headers)
        if isinstance(credential, CredentialFault):
            return _FAULTS[credential]
        principal = self._principals.get(digest(credential))
        if principal is None:
            return _FAILURES[AuthFailureKind.UNKNOWN]
        if principal.expires_at is not None and unix_now >= principal.expires_at:
            return _FAILURES[AuthFailureKind.EXPIRED]
        return principal

    def tenant(self, project_id: str) -> Tenant | None:
        """The project as a tenant, if it has a key that may call."""
        return self._tenants.get(project_id)

    def tenants(self) -> tuple[Tenant, ...]:
        """Every project that has a key that may call."""
        return tuple(self._tenants.values())

    async def refresh(self) -> bool:
        """Whether the store had changed; what changed before this call is in force when it returns.

        Raises `StoreError`; the last directory stays in force then.
        """
        async with self._refreshing:
            # After an outage it may be another store, with the same number by chance.
            changed = await self._store.revision() != self._revision or self._is_failing
            if changed:
                snapshot = await self._store.snapshot()
                # Building takes long for many keys, and the event loop has streams to serve.
                built = await asyncio.to_thread(principals_of, snapshot)
                for subject, fault in built.closed:
                    log.error("directory.limits_unusable", subject=subject, fault=fault)
                self._principals, self._revision = built.principals, snapshot.revision
                self._tenants = built.tenants
                self.installation = installation_digest(snapshot.server_secret)
                before, self._projects = self._projects, frozenset(one.id for one in snapshot.projects)
                self._on_change()
                if gone := before - self._projects:
                    self._on_deleted(gone)
            self._read_at = time.monotonic()
            return changed

    async def follow(self, poll_s: float = POLL_S) -> None:
        """Refresh for ever, until cancelled: when the store tells of a change, and every `poll_s` seconds.

        An unreadable store is logged once per outage.
        """
        news = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(news))
            while True:
                news.clear()
                await self._try_refresh()
                await asyncio.sleep(min(NEWS_GAP_S, poll_s))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, poll_s - NEWS_GAP_S)):
                        await news.wait()

    async def _listen(self, news: asyncio.Event) -> None:
        async with contextlib.aclosing(self._store.changes()) as changes:
            async for _ in changes:
                news.set()

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except StoreError as error:
            if not self._is_failing:
                log.warning("directory.refresh_failed", error=str(error))
            self._is_failing = True
            self.store_lost = str(error) if isinstance(error, StoreLost) else ""
        else:
            if self._is_failing:
                log.info("directory.refresh_recovered", revision=self._revision)
            self._is_failing = False
            self.store_lost = ""

    def __repr__(self) -> str:
        return f"<Directory revision={self._revision} keys={self.num_keys}>"
