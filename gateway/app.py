"""The composition root of a gateway process: every part is made here and handed to those that need it.

Importing does nothing. One process has one `Gateway`; tests make as many as they like.
"""

import asyncio
import contextlib
import time
from functools import partial

from starlette.applications import Starlette
from starlette.routing import Route

from cache_affinity.diagnosis import PrefixDiagnosis
from cache_affinity.exact import ExactIndex
from cache_affinity.ratio import TokenRatios
from engines.contract import Headers
from gateway.admission import Dispatch
from gateway.api.discovery import Discovery
from gateway.api.own import Own
from gateway.api.responses import Responses
from gateway.api.unrouted import UNROUTED
from gateway.asgi import InferenceRoute
from gateway.attempts import caps_of
from gateway.auth import AuthFailure, Directory
from gateway.body import Bodies
from gateway.budget_watch import BudgetWatch
from gateway.bulk_runs import BulkRuns
from gateway.control import Control, statistics
from gateway.conversations import Conversations
from gateway.edge import Edge
from gateway.fleet import Fleet
from gateway.gauges import gauges
from gateway.gossip import Gossip, Line
from gateway.hot import hot_protocol
from gateway.isolation import CacheIsolation
from gateway.key_uses import KeyUses
from gateway.kv_streams import KvStreams
from gateway.ledger import Books, Journal, NoJournal
from gateway.ledger_keeper import retention_of
from gateway.lifecycle import Lifecycle
from gateway.models import ModelTable
from gateway.parts import Parts
from gateway.peers import Peers
from gateway.prompt_place import part_of_chat
from gateway.prompt_tokens import PromptTokens
from gateway.recorder import Recorder
from gateway.recount import Recount
from gateway.request import Surface
from gateway.settings import Settings
from gateway.traffic import Traffic
from gateway.upkeep import Keeper, kept_up
from gateway.webhook import webhook_of
from observability import logs
from observability.metrics import Metrics
from policies.bulk_controller import BulkSettings
from policies.cache_claims import CacheClaims, MemoryCacheClaims
from policies.caps import CapLimits
from policies.lane import Lane
from policies.meters import Moment
from policies.output_estimate import OutputEstimates
from policies.quota import Quotas, Rejected
from policies.retry import RetryBudget
from policies.store import Store
from routing.pool import ReplicaPool
from routing.pool_settings import PoolSettings
from routing.replica import ReplicaState
from routing.router import Router
from routing.seat_control import SeatControl


class Gateway:
    """One gateway process's parts, its data plane app and its control app."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        peers: Peers | None = None,
        claims: CacheClaims | None = None,
        books: Books | None = None,
        *,
        line: Line | None = None,
    ) -> None:
        """`peers`, `line`: the other gateways, where there may be some; call `dispatch.recheck` when they leave more.

        `claims`: of tenants on engines without a salt; None: this process's own. `books`: None: nothing is kept.
        """
        self.settings = settings
        self._is_draining = False
        self._bodies = Bodies(int(settings.gateway.max_body_mb * 1024 * 1024))
        self._ledger = None if books is None else books.ledger
        self.metrics = Metrics(self._model_names, gauges(lambda: self.parts))
        self._key_uses = KeyUses(store)
        journal: Journal = NoJournal() if books is None else books.journal
        self.parts = self._made_parts(store, peers, claims or MemoryCacheClaims(), journal, line)
        self._budgets = self._budget_watch(store)
        self._recount = self._made_recount()
        self.lifecycle = Lifecycle(self.parts)
        self.control = Control(self.parts, self.lifecycle, self.metrics, self.apply).app()

    def _made_parts(
        self, store: Store, peers: Peers | None, claims: CacheClaims, journal: Journal, line: Line | None
    ) -> Parts:
        settings = self.settings
        router, isolation, exact = _routing(settings, claims)
        fleet = Fleet(settings, router.pool, time.monotonic, self._on_fleet_change)
        dispatch = Dispatch(router, settings.lanes, time.monotonic, holdings=peers, kv_used_ratio=fleet.kv_used_ratio)
        seats = self._seat_control(router.pool)
        models = ModelTable(settings.models, fleet.models, fleet.surfaces)
        return Parts(
            settings=settings,
            directory=Directory(store, self._on_directory_change, self._forget),
            models=models,
            traffic=Traffic(settings.models, models),
            quotas=Quotas() if peers is None else Quotas(peers.meters, holdings=peers),
            router=router,
            dispatch=dispatch,
            fleet=fleet,
            kv_streams=KvStreams(exact, fleet.kv_replicas, time.monotonic),
            tokens=PromptTokens(self._tokenizer_of),
            isolation=isolation,
            retries=RetryBudget(settings.retries.budget_ratio),
            outputs=OutputEstimates(),
            seats=seats,
            bulk_runs=BulkRuns(seats, time.monotonic),
            prefixes=PrefixDiagnosis(part_of_chat),
            recorder=Recorder(self.metrics, journal=journal, on_key_used=self._key_uses.note),
            journal=journal,
            conversations=Conversations(
                store, lambda: self.settings.responses, time.time, is_shared=settings.store.is_shared
            ),
            peers=peers,
            gossip=Gossip(line, router, time.monotonic, peers) if line is not None and peers is not None else None,
            clock=time.monotonic,
            unix=time.time,
        )

    def _model_names(self) -> frozenset[str]:
        return self.parts.models.names()

    def _seat_control(self, pool: ReplicaPool) -> SeatControl:
        bulk = BulkSettings(itl_p95_s=self.settings.lanes.interactive.itl_p95_s)
        return SeatControl(pool, time.monotonic, bulk, on_open=self._on_open)

    def _budget_watch(self, store: Store) -> BudgetWatch:
        webhook, tenants = webhook_of(self.settings.alerts), self.parts.directory.tenants
        return BudgetWatch(self.parts.quotas.meters, tenants, store, webhook, self.metrics.budget_reached)

    def _made_recount(self) -> Recount | None:
        """None without a ledger, and with peers: what several gateways count together outlives each of them."""
        if self._ledger is None or self.parts.peers is not None:
            return None
        return Recount(self.parts.quotas, self._ledger, self.parts.directory.tenants, self._moment)

    async def recount(self) -> None:
        """What was used before counts again, so that nobody gets past a limit by a restart. Raises `StoreError`."""
        if self._recount is not None:
            await self._recount.recount()

    def _on_open(self) -> None:
        """More seats than before: those who wait are asked in the next turn, when a lease that ends has ended."""
        if self.parts.dispatch.num_waiting:
            asyncio.get_running_loop().call_soon(self.parts.dispatch.wake)

    def _on_fleet_change(self) -> None:
        self.parts.kv_streams.changed()
        if self.parts.gossip is not None:
            self.parts.gossip.changed()
        for model in self.parts.fleet.models():
            self.parts.tokens.expect(model)
        self.parts.dispatch.wake()

    def _tokenizer_of(self, model: str) -> str:
        configured = (one.tokenizer for one in self.settings.models if one.name == model and one.tokenizer)
        return next(configured, "") or self.parts.fleet.tokenizer_of(model)

    def _on_directory_change(self) -> None:
        self.parts.dispatch.recap(self._caps_of)
        self.parts.quotas.relimit(self.parts.directory.tenant)
        if self._recount is not None:
            self._recount.changed()

    def _forget(self, projects: frozenset[str]) -> None:
        for memory in (self.parts.recorder, self.parts.prefixes, self.parts.kept_answers):
            memory.forget(projects)

    def _moment(self) -> Moment:
        return Moment(self.parts.clock(), self.parts.unix())

    def _caps_of(self, project_id: str, lane: Lane) -> CapLimits | None:
        tenant = self.parts.directory.tenant(project_id)
        return None if tenant is None else caps_of(tenant, lane)

    def apply(self, settings: Settings) -> None:
        """Put those settings into force that may change while requests run. Raises `ConfigError`; nothing is then."""
        self.parts.fleet.configure(settings.replicas)
        self.parts.models.configure(settings.models)
        self.parts.traffic.configure(settings.models)
        self.parts.dispatch.configure(settings.lanes)
        self.parts.router.pool.holdbacks.configure(settings.outliers.rules(), settings.slow_start.rules())
        before, self.settings, self.parts.settings = self.settings, settings, settings
        if settings.telemetry != before.telemetry:
            logs.configure(settings.telemetry.log_level, "gateway")

    def is_ready(self) -> bool:
        """Whether a request could be served: not stopping, and every model has a ready replica."""
        pool = self.parts.router.pool
        return not self._is_draining and bool(len(pool)) and all(map(self._has_ready, pool.models()))

    def is_degraded(self) -> bool:
        """Whether the shared store is away: requests are served, but with this gateway's part of the seats alone."""
        return self.parts.peers is not None and self.parts.peers.is_degraded

    def _has_ready(self, model: str) -> bool:
        return any(replica.state is ReplicaState.READY for replica in self.parts.router.pool.of_model(model))

    def statistics(self) -> dict[str, object]:
        """What is held now."""
        return statistics(self.parts, self.lifecycle)

    def app(self) -> Starlette:
        """The data plane as an ASGI app; the hot routes are usually taken by the protocol class before it."""
        parts = self.parts
        inference = InferenceRoute(self.lifecycle.serve, self._ask, self._bodies)
        discovery = Discovery(
            parts.directory,
            parts.models,
            self.is_ready,
            parts.unix,
            self.is_degraded,
            is_draining=lambda: self._is_draining,
            fault=lambda: parts.journal.fault,
        )
        own = Own(
            parts.directory,
            parts.quotas,
            parts.recorder,
            self._ledger,
            retention_of(self.settings.ledger),
            clock=parts.clock,
            unix=parts.unix,
            is_shared=parts.peers is not None,
        )
        app = Starlette(
            routes=[
                *(Route(surface.value, inference, methods=["POST"]) for surface in Surface),
                *discovery.routes(),
                *own.routes(),
                *Responses(parts.directory, parts.conversations, parts.unix).routes(),
            ],
            exception_handlers=UNROUTED,
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False  # a POST that is redirected loses its body, or its key
        return app

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol class for uvicorn, with the hot routes on it."""
        timeouts = self.settings.timeouts
        return hot_protocol(
            Edge(
                serve=self.lifecycle.serve,
                ask=self._ask,
                hot_paths=frozenset(surface.value.encode() for surface in Surface),
                bodies=self._bodies,
                max_connections=self.settings.gateway.max_connections,
                head_s=timeouts.head_s,
                body_s=timeouts.body_s,
                idle_s=timeouts.idle_s,
            )
        )

    def _ask(self, headers: Headers) -> AuthFailure | Rejected | None:
        """Why a body is not worth reading, if so: the lifecycle tells the caller."""
        moment = self._moment()
        found = self.parts.directory.authenticate(headers, moment.unix)
        return found if isinstance(found, AuthFailure) else self.parts.quotas.used_up(found.tenant, moment)

    def drain(self) -> None:
        """Stop taking work: readiness goes red, whoever waits for a seat is refused; streams go on."""
        self._is_draining = True
        self.parts.dispatch.close()
        self.lifecycle.stop()

    def _lifespan(self, _app: Starlette) -> contextlib.AbstractAsyncContextManager[None]:
        others: list[Keeper] = [self._key_uses.follow, partial(self._budgets.follow, self._moment)]
        others.append(self.parts.conversations.follow)
        if self._recount is not None:
            others.append(self._recount.follow)
        return kept_up(self.parts, *others)


def _routing(settings: Settings, claims: CacheClaims) -> tuple[Router, CacheIsolation, ExactIndex]:
    reserved = {lane: settings.lanes.of(lane).reserved_seats for lane in Lane}
    pool = ReplicaPool(
        PoolSettings(reserved, outliers=settings.outliers.rules(), slow_start=settings.slow_start.rules())
    )
    isolation, exact = CacheIsolation(pool, claims), ExactIndex()
    return Router(pool, TokenRatios(), may_use=isolation.owners.may_use, exact=exact), isolation, exact
