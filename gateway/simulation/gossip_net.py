"""Gossip between simulated gateways, in virtual time: what each would tell and hear in life, as bytes, some time later.

Caught up with before a gateway does anything, which comes to the same as if it went on by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.simulation.events import Timeline
from routing.gossip_digests import ReplicaDigests
from routing.gossip_hearing import Hearing
from routing.gossip_telling import GossipBounds, Telling
from routing.router import Router

IDLE_S = 0.25  # between looks at a gateway that has nothing new to say
_Event = tuple[Callable[[float, Any], None], Any]


@dataclass(frozen=True, slots=True)
class Gossiper:
    """One gateway's part."""

    telling: Telling
    hearing: Hearing


def gossiper(router: Router, number: int, num_gateways: int) -> Gossiper:
    """Of the gateway with this number, from 1 on; becomes its pool's teller."""
    digests = ReplicaDigests("")
    telling = Telling(router.pool, router.ratios, digests, number)
    telling.num_gateways = num_gateways
    return Gossiper(telling, Hearing(router, digests, number))


class GossipNet:
    """All gateways' gossip. `delay_s`: from a message's making until the others have it."""

    def __init__(self, gateways: Sequence[Gossiper], delay_s: float) -> None:
        self._gateways = gateways
        self._delay_s = delay_s
        self._every_s = GossipBounds().every_s
        self._timeline: Timeline[_Event] = Timeline()
        self._looks_at = [float("inf")] * len(gateways)

    def __repr__(self) -> str:
        return f"<GossipNet {len(self._gateways)} gateways, {self._timeline!r}>"

    def advance(self, now: float) -> None:
        """Let everything happen that happens until now."""
        timeline = self._timeline
        while (due_at := timeline.next_at()) is not None and due_at <= now:
            happen, what = timeline.take()
            happen(timeline.now, what)

    def noted(self, number: int, now: float) -> None:
        """A gateway may have something to tell."""
        self._look_at(number, now + self._every_s)

    def _look_at(self, number: int, at: float) -> None:
        if at < self._looks_at[number]:
            self._looks_at[number] = at
            self._timeline.add(at, (self._look, number))

    def _look(self, now: float, number: int) -> None:
        if now != self._looks_at[number]:
            return  # it was looked at before
        self._looks_at[number] = float("inf")
        one = self._gateways[number]
        one.hearing.expire(now)
        content = one.telling.message(now)
        if content is not None:
            self._timeline.add(now + self._delay_s, (self._arrive, (number, content)))
        if one.telling.is_holding:
            self._look_at(number, now + (self._every_s if one.telling.has_more else IDLE_S))

    def _arrive(self, now: float, what: tuple[int, bytes]) -> None:
        sender, content = what
        for number, one in enumerate(self._gateways):
            if number != sender:
                one.hearing.hear(content, now)
