"""What this gateway tells the others and hears of them, beside its requests. Holds no rule: `routing/gossip_*.py` do.

Nothing here is on a request's path and nothing is waited for: without the line every gateway goes on by its own
picture, by what engines tell of their caches, and by the hash that draws the same home everywhere.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from observability import logs
from observability.metrics import GaugeRows
from policies.store import StoreError
from routing.gossip_digests import ReplicaDigests
from routing.gossip_hearing import Hearing
from routing.gossip_telling import GossipBounds, Telling
from routing.router import Router


class Line(Protocol):
    """How gateways reach each other. A message may be lost; none is kept for who does not listen."""

    async def publish(self, content: bytes) -> None:
        """Tell it to whoever listens now. Raises `StoreError`."""
        ...

    def messages(self) -> AsyncGenerator[bytes, None]:
        """What is published, one's own too, and an empty one after each (re)connection; goes on until closed."""
        ...

    async def close(self) -> None:
        """Let go of the line."""
        ...


class Living(Protocol):
    """Who counts gateways."""

    @property
    def num_gateways(self) -> int:
        """Living ones, this one included, as last told; 0 before the first answer."""
        ...


class Installed(Protocol):
    """Who knows the installation."""

    @property
    def installation(self) -> int:
        """Digest of the secret that borders rest on, 0 while it is not known."""
        ...


class Gossip:
    """One gateway's part. `peers`: who knows how many there are."""

    def __init__(
        self, line: Line, router: Router, clock: Callable[[], float], peers: Living, bounds: GossipBounds | None = None
    ) -> None:
        self._line = line
        self._clock = clock
        self._peers = peers
        self._bounds = bounds or GossipBounds()
        number, digests = secrets.randbits(64), ReplicaDigests(socket.gethostname())
        self.telling = Telling(router.pool, router.ratios, digests, number, self._bounds)
        self.hearing = Hearing(router, digests, number)
        self.telling.num_gateways = 1
        self.num_unsent = 0
        self._is_cut = False

    def __repr__(self) -> str:
        return f"<Gossip {self.telling!r} {self.hearing!r} unsent={self.num_unsent}>"

    def changed(self) -> None:
        """Replicas came, went or began another life."""
        self.hearing.rebind()

    async def run(self, directory: Installed) -> None:
        """Tell and hear until cancelled; then say that nothing is under way here any more."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell(directory))
                group.create_task(self._hear())
        finally:
            with contextlib.suppress(StoreError):
                await self._line.publish(self.telling.farewell())
            await self._line.close()

    def gauges(self) -> GaugeRows:
        """The metrics."""
        told, heard = self.telling.counts, self.hearing.counts
        yield "warmlane_gateways_deaf", {}, self._peers.num_gateways > 1 and not self.hearing.num_others
        yield "warmlane_gossip_sent_total", {}, told.num_messages - self.num_unsent
        yield "warmlane_gossip_sent_bytes_total", {}, told.num_bytes
        yield "warmlane_gossip_heard_total", {}, heard.get("heard", 0)
        dropped = {"room": told.num_dropped, "unsent": self.num_unsent}
        dropped |= {reason: heard.get(reason, 0) for reason in ("malformed", "version", "stranger", "late", "lost")}
        for reason, count in dropped.items():
            yield "warmlane_gossip_dropped_total", {"reason": reason}, count

    async def _tell(self, directory: Installed) -> None:
        while True:
            await asyncio.sleep(self._bounds.every_s)
            now, installation = self._clock(), directory.installation
            self.hearing.expire(now)
            self.hearing.installation = self.telling.installation = installation
            self.telling.num_gateways = max(self._peers.num_gateways, self.hearing.num_others + 1)
            content = self.telling.message(now) if installation else None
            if content is not None:
                await self._publish(content)

    async def _publish(self, content: bytes) -> None:
        """One that does not get through is lost: the next says how things stand then."""
        try:
            await self._line.publish(content)
        except StoreError as error:
            self.num_unsent += 1
            if not self._is_cut:
                logs.get().warning("gossip.cut", reason=str(error))
            self._is_cut = True
        else:
            if self._is_cut:
                logs.get().info("gossip.back", unsent=self.num_unsent)
            self._is_cut = False

    async def _hear(self) -> None:
        async with contextlib.aclosing(self._line.messages()) as messages:
            async for content in messages:
                if content:
                    self.hearing.hear(content, self._clock())
                    await asyncio.sleep(0)  # messages that have come together are not taken in in one go
