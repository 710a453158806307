"""The replicas as the gateway reaches them: attached by the configuration, or announced by the supervisor.

Joins a replica's place in the routing pool with its connections and adapter, and asks it from time to time whether it
is ready. Decides nothing about requests.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from engines.adapters import adapter_for
from engines.contract import Fault, LoadReport, ReplicaError
from engines.upstream import Upstream, UpstreamLimits
from engines.upstream.addresses import no_engine_at
from gateway.abilities import Abilities
from gateway.announced import AnnouncedReplica, Announcement, of_section, spec_of
from gateway.kv_streams import KvReplica
from gateway.model_surfaces import ModelSurfaces
from gateway.replica_connection import ReplicaConnection
from gateway.replica_probe import PROBE_TIMEOUT_S, ask_abilities, ask_health, key_headers
from gateway.settings import ConfigError, ReplicaSection, Settings
from observability import logs
from routing.health import Probe, ProbeHistory
from routing.pool import ReplicaPool
from routing.replica import Replica, ReplicaSpec, ReplicaState

PROBE_EVERY_S = 1.0  # chosen: three failures, so a silent death is noticed within about 3 s
_SERVING = frozenset({ReplicaState.READY, ReplicaState.DRAINING})


class Fleet:
    """All replicas. `on_change`: called when somebody waiting for a seat may have one now.

    `surfaces`: what the models are served on.
    """

    def __init__(
        self, settings: Settings, pool: ReplicaPool, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._on_change = on_change
        self._limits = UpstreamLimits(connect_s=settings.timeouts.connect_s, max_connections=4096, max_waiting=4096)
        self._probe_limits = UpstreamLimits(connect_s=PROBE_TIMEOUT_S, max_connections=1, max_waiting=1)
        self._connections: dict[str, ReplicaConnection] = {}
        self._models: frozenset[str] = frozenset()
        self.surfaces = ModelSurfaces()
        for section in settings.replicas:
            self._attach(of_section(section), api_key(section), is_announced=False)

    def connection(self, name: str) -> ReplicaConnection:
        """How to reach a replica that was just chosen. Raises `ReplicaError` (CONNECT) if it is gone already."""
        connection = self._connections.get(name)
        if connection is None:
            raise ReplicaError(Fault.CONNECT, "the replica was removed")
        return connection

    def models(self) -> frozenset[str]:
        """Models that have at least one replica, in any state."""
        return self._models

    def loads(self) -> Iterable[tuple[str, LoadReport]]:
        """What each replica last said of its load."""
        return [(name, connection.load) for name, connection in self._connections.items()]

    def kv_used_ratio(self, name: str) -> float:
        """What a replica last said of its KV cache, 0..1; 0 where it says nothing."""
        connection = self._connections.get(name)
        return (connection.load.kv_used_ratio or 0.0) if connection is not None else 0.0

    def kv_replicas(self) -> Iterable[KvReplica]:
        """The replicas that serve, as far as their KV events are concerned."""
        for name, connection in self._connections.items():
            replica = self._pool.get(name)
            if replica is not None and replica.state in _SERVING:
                spec, life = replica.spec, (replica.spec.url, replica.generation)
                headers = key_headers(connection)
                yield KvReplica(name, spec.engine, spec.url, life, connection.kv_events, connection.probing, headers)

    def tokenizer_of(self, model: str) -> str:
        """The vocabulary that a replica of the model was announced with, empty without."""
        found = (self._connections[replica.name].tokenizer for replica in self._pool.of_model(model))
        return next(filter(None, found), "")

    def note_lack(self, name: str, surface: str) -> None:
        """The replica's engine has no such endpoint, so it was not asked for in earnest."""
        connection = self._connections.get(name)
        if connection is not None:
            connection.abilities.note_lack(surface, self._clock())
            self._note_surfaces(name, connection)

    def note_embedded(self, name: str) -> None:
        """The replica's engine has embedded or ranked texts."""
        connection = self._connections.get(name)
        if connection is not None:
            connection.abilities.has_embedded = True

    def has_embedded(self, name: str) -> bool:
        """Whether it ever has, in this life of its process."""
        connection = self._connections.get(name)
        return connection is not None and connection.abilities.has_embedded

    def num_upstream(self) -> int:
        """Connections that requests use or open, all replicas."""
        return sum(_in_use(connection.upstream) for connection in self._connections.values())

    def announce(self, announcement: Announcement) -> None:
        """Make the announced replicas exactly these; those of the configuration stay.

        Raises `ValueError` for a name, engine or URL that cannot be; then nothing has changed.
        """
        for replica in announcement.replicas:
            known = self._connections.get(replica.name)
            if known is not None and not known.is_announced:
                raise ValueError(f"the name {replica.name!r} belongs to a replica of the configuration")
            adapter_for(replica.engine, has_priority=replica.priority)
            Upstream.from_url(replica.url)
            if (why := no_engine_at(urlsplit(replica.url).hostname or "")) is not None:
                raise ValueError(why)
        names = {replica.name for replica in announcement.replicas}
        for name in [name for name, one in self._connections.items() if one.is_announced and name not in names]:
            self._detach(name)
        for replica in announcement.replicas:
            self._attach(replica, None, is_announced=True)
        if announcement.draining is not None:
            self._drain_exactly(frozenset(announcement.draining))
        self._on_change()

    def configure(self, sections: Sequence[ReplicaSection]) -> None:
        """Make the configured replicas exactly these; what is under way at one that is left out goes on to its end.

        Raises `ConfigError` for a key that cannot be, or a worker's name; then nothing has changed.
        """
        keys = {section.name: api_key(section) for section in sections}
        for name in keys:
            if name in self._connections and self._connections[name].is_announced:
                raise ConfigError(f"replicas: the name {name} belongs to a worker")
        for name in [name for name, one in self._connections.items() if not one.is_announced and name not in keys]:
            self._pool.remove(name)
            self._connections.pop(name).retire()
        for section in sections:
            self._attach(of_section(section), keys[section.name], is_announced=False)
        self._index()
        self._on_change()

    def drain(self, name: str) -> Replica | None:
        """Send a replica nothing new; None if there is none of this name."""
        self._pool.move(name, ReplicaState.DRAINING)
        return self._pool.get(name)

    def resume(self, name: str) -> Replica | None:
        """Send it work again; None if there is none of this name."""
        replica = self._pool.get(name)
        if replica is not None and replica.state is ReplicaState.DRAINING:
            self._pool.move(name, ReplicaState.READY)
            self._on_change()
        return replica

    def _drain_exactly(self, names: frozenset[str]) -> None:
        for replica in list(self._pool):
            if replica.name in names:
                self._pool.move(replica.name, ReplicaState.DRAINING)
            elif replica.state is ReplicaState.DRAINING:
                self._pool.move(replica.name, ReplicaState.READY)

    async def watch(self) -> None:
        """Probe every replica for ever, until cancelled."""
        while True:
            await self.probe_all()
            await asyncio.sleep(PROBE_EVERY_S)

    async def probe_all(self) -> None:
        """Ask every replica once, all at the same time."""
        await asyncio.gather(*(self._probe(name) for name in list(self._connections)))

    def close(self) -> None:
        """Drop all connections; what is in flight fails."""
        for connection in self._connections.values():
            connection.close()

    def _attach(self, announced: AnnouncedReplica, api_key: str | None, *, is_announced: bool) -> None:
        adapter = adapter_for(announced.engine, has_priority=announced.priority)
        before = self._pool.get(announced.name)
        known = self._connections.get(announced.name)
        is_same = known is not None and before is not None and before.spec.url == announced.url
        is_same_run = is_same and before is not None and _run(before.spec) == _run(announced)
        abilities = known.abilities if known is not None and is_same_run else Abilities()
        abilities.declared = frozenset(announced.tasks)
        replica = self._pool.upsert(spec_of(announced, adapter, abilities.surfaces(adapter)), self._clock())
        if known is not None and is_same:
            known.adapter, known.upstream_model = adapter, announced.upstream_model or announced.model
            known.api_key, known.kv_events, known.tokenizer = api_key, announced.kv_events, announced.tokenizer
            known.abilities = abilities
        else:
            if known is not None:
                known.close() if is_announced else known.retire()  # a worker's old address is dead
            self._connections[announced.name] = ReplicaConnection(
                adapter=adapter,
                upstream=Upstream.from_url(announced.url, limits=self._limits),
                probing=Upstream.from_url(announced.url, limits=self._probe_limits),
                upstream_model=announced.upstream_model or announced.model,
                api_key=api_key,
                is_announced=is_announced,
                probes=ProbeHistory(),
                load=LoadReport(),
                kv_events=announced.kv_events,
                tokenizer=announced.tokenizer,
                abilities=abilities,
            )
        if is_announced and replica.state is ReplicaState.JOINING:
            # A worker is announced once it answered. One that was lost since, in this same life, must answer again.
            self._pool.move(announced.name, ReplicaState.READY, self._clock())
        self._index()

    def _detach(self, name: str) -> None:
        self._pool.remove(name)
        self._connections.pop(name).close()
        self._index()

    def _index(self) -> None:
        self._models = frozenset(self._pool.models())
        known = [(name, self._pool.get(name), connection) for name, connection in self._connections.items()]
        self.surfaces.replace(
            (one.spec.model, connection.surfaces, connection.tasks, connection.abilities.context_tokens)
            for name, one, connection in known
            if one is not None
        )

    def _note_surfaces(self, name: str, connection: ReplicaConnection) -> None:
        """What a replica serves may be something else now."""
        replica = self._pool.get(name)
        if replica is not None and self._connections.get(name) is connection:
            if replica.spec.surfaces != connection.surfaces:
                self._pool.upsert(replace(replica.spec, surfaces=connection.surfaces), self._clock())
            self._index()

    async def _probe(self, name: str) -> None:
        connection, replica = self._connections.get(name), self._pool.get(name)
        if connection is None or replica is None:
            return
        probe = await ask_health(connection, is_serving=replica.num_in_flight > 0)
        if probe is Probe.READY and await ask_abilities(connection, self._clock()):
            self._note_surfaces(name, connection)
        if self._connections.get(name) is not connection:
            return
        target = connection.probes.observe(probe, replica.state, self._clock(), connection.last_heard_at)
        if target is not None and self._pool.move(name, target, self._clock()):
            log = logs.get().info if target is ReplicaState.READY else logs.get().warning
            log("replica.moved", replica=name, state=target.value, probe=probe.value)
            if target is ReplicaState.LOST:
                connection.abilities.due_at = 0.0  # it may come back as another one
                for relay in tuple(connection.relays):
                    relay.lose()  # or an answer that is waited for as a whole waits as long as `total_s`
            self._on_change()


def api_key(section: ReplicaSection) -> str | None:
    """The engine's key, None without one. Raises `ConfigError` for what no header can carry; a final newline is cut."""
    key = os.environ.get(section.api_key_env, "").strip() if section.api_key_env else ""
    if key and not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ConfigError(f"replicas: {section.name}: {section.api_key_env} must hold visible ASCII without spaces")
    return key or None


def _run(of: ReplicaSpec | AnnouncedReplica) -> tuple[str, str, int]:
    """What differs where another process, or another model, answers at the same address."""
    return of.engine, of.model, of.generation


def _in_use(upstream: Upstream) -> int:
    counts = upstream.statistics()
    return counts.in_use + counts.connecting + counts.waiting
