"""Which replicas' KV events are followed: kept in step with the fleet. Decides nothing about requests or order.

A replica that is lost, restarted or removed is forgotten at once; its stream is followed anew when it is ready again.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

import zmq
import zmq.asyncio
from msgspec import Struct

from cache_affinity.event_stream import Standing
from cache_affinity.exact import ExactIndex
from engines.contract import ReplicaError
from engines.upstream import Upstream
from gateway.kv_sources import DISCOVER, OFF, SOURCES_PATH, KvSource, NoSource, configured, discovered
from gateway.kv_subscriber import KvSubscriber
from observability import logs
from observability.metrics import GaugeRows

FETCH_S = 2.0
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 30.0  # chosen: a worker that publishes says so at once


class KvReplica(NamedTuple):
    """A replica that serves. `life`: differs after a restart. `kv_events`: see `kv_sources`. `url`: without `/v1`."""

    name: str
    engine: str
    url: str
    life: tuple[str, int]
    kv_events: str
    probing: Upstream
    headers: list[tuple[bytes, bytes]]


class KvState(Struct, frozen=True):
    """What the admin plane shows of one replica's events. `problem`: why there are none."""

    standing: str
    blocks: int
    batches: int = 0
    gaps: int = 0
    restarts: int = 0
    clears: int = 0
    broken: int = 0
    refused: int = 0
    endpoint: str | None = None
    problem: str | None = None


class _Following:
    """One replica being followed."""

    def __init__(self, replica: KvReplica) -> None:
        self.replica = replica
        self.task: asyncio.Task[None] | None = None
        self.subscriber: KvSubscriber | None = None
        self.problem: str | None = None


class KvStreams:
    """The streams of all replicas. `replicas`: those that serve now; call `changed` when they may be others."""

    def __init__(
        self, index: ExactIndex, replicas: Callable[[], Iterable[KvReplica]], clock: Callable[[], float]
    ) -> None:
        self.index = index
        self._replicas = replicas
        self._clock = clock
        self._following: dict[str, _Following] = {}
        self._group: asyncio.TaskGroup | None = None
        self._context: zmq.asyncio.Context | None = None

    def __repr__(self) -> str:
        return f"<KvStreams {sorted(self._following)} {self.index!r}>"

    def changed(self) -> None:
        """Replicas came, went or began another life: forget what does not count any more, at once."""
        now = {one.name: one for one in self._replicas() if configured(one.kv_events, one.engine) != OFF}
        for name in list(self._following):
            known, found = self._following[name].replica, now.get(name)
            if found is None or (found.life, found.kv_events) != (known.life, known.kv_events):
                self._leave(name)
        if self._group is None:
            return
        for name, replica in now.items():
            if name not in self._following:
                following = self._following[name] = _Following(replica)
                following.task = self._group.create_task(self._follow(following), name=f"kv events of {name}")

    async def run(self) -> None:
        """Follow all streams until cancelled."""
        self._context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self.changed()
                await asyncio.Event().wait()
        finally:
            self._group = None
            self._following.clear()
            self._context.destroy(linger=0)

    def state_of(self, name: str) -> KvState | None:
        """What is known of a replica's events; None where none are expected."""
        following = self._following.get(name)
        if following is None:
            return None
        subscriber = following.subscriber
        if subscriber is None:
            return KvState(Standing.UNKNOWN.value, 0, problem=following.problem)
        stream, counts = subscriber.stream, subscriber.stream.counts
        return KvState(
            stream.standing.value,
            self.index.num_held(name),
            counts.num_batches,
            counts.num_gaps,
            counts.num_restarts,
            counts.num_clears,
            counts.num_broken,
            subscriber.num_refused,
            subscriber.source.endpoint,
        )

    def gauges(self, name: str) -> GaugeRows:
        """The metrics of one replica's events."""
        state = self.state_of(name)
        if state is not None:
            label = {"replica": name}
            yield "warmlane_replica_kv_events", {**label, "standing": state.standing}, 1
            yield "warmlane_replica_kv_blocks", label, state.blocks
            yield "warmlane_replica_kv_event_gaps_total", label, state.gaps

    def _leave(self, name: str) -> None:
        following = self._following.pop(name)
        if following.task is not None:
            following.task.cancel()
        if following.subscriber is not None:
            following.subscriber.leave()  # now: its task ends later, when the next may have begun

    async def _follow(self, following: _Following) -> None:
        """Find the source, however long it takes, and follow it. Ends by cancellation."""
        assert self._context is not None, "there is one while streams are followed"
        replica, retry_s = following.replica, FIRST_RETRY_S
        while True:
            try:
                source = await self._source(replica)
                following.subscriber = subscriber = KvSubscriber(replica.name, source, self.index, self._clock)
                await subscriber.run(self._context)
            except (NoSource, ReplicaError, zmq.ZMQError) as error:
                if following.problem is None:
                    logs.get().debug("kv_events.no_source", replica=replica.name, reason=str(error))
                following.subscriber, following.problem = None, str(error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, LAST_RETRY_S)

    async def _source(self, replica: KvReplica) -> KvSource:
        """Raises `NoSource` and `ReplicaError`."""
        found = configured(replica.kv_events, replica.engine)
        if isinstance(found, KvSource):
            return found
        assert found == DISCOVER, "those without events are not followed"
        answer = await replica.probing.fetch("GET", SOURCES_PATH, replica.headers, timeout_s=FETCH_S)
        if answer.status != 200:
            raise NoSource(f"asked for its sources it answers {answer.status}")
        return discovered(answer.body, replica.url)
