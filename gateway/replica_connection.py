"""How the gateway reaches one replica, and what is under way there."""

from dataclasses import dataclass, field
from typing import Protocol

from engines.contract import EngineAdapter, LoadReport
from engines.upstream import Upstream
from gateway.abilities import Abilities
from routing.health import ProbeHistory


class OpenRelay(Protocol):
    """An attempt under way."""

    @property
    def heard_at(self) -> float | None:
        """When the replica last sent something of its answer, None before it did."""
        ...

    def lose(self) -> None:
        """The replica is lost: fail, unless content has gone to the client."""
        ...


@dataclass(slots=True)
class ReplicaConnection:
    """How to reach one replica and how to speak to it. `load`: what it last said of itself.

    `probing`: connections for probes alone, which so neither wait behind requests nor count as requests.
    `relays`: the attempts under way. `heard_at`: when one that has ended last got something. `kv_events`: see
    `kv_sources`. `tokenizer`: see `prompt_tokens`. `abilities`: what it serves.
    """

    adapter: EngineAdapter
    upstream: Upstream
    probing: Upstream
    upstream_model: str
    api_key: str | None
    is_announced: bool
    probes: ProbeHistory
    load: LoadReport
    relays: set[OpenRelay] = field(default_factory=set)
    heard_at: float | None = None
    is_retired: bool = False
    kv_events: str = ""
    tokenizer: str = ""
    abilities: Abilities = field(default_factory=Abilities)

    @property
    def surfaces(self) -> frozenset[str]:
        """What it serves, as far as is known."""
        return self.abilities.surfaces(self.adapter)

    @property
    def tasks(self) -> frozenset[str] | None:
        """What its model does, None where nobody says."""
        return self.abilities.tasks(self.adapter)

    @property
    def last_heard_at(self) -> float | None:
        """When any attempt last got something from the replica."""
        found = [at for at in (self.heard_at, *(relay.heard_at for relay in self.relays)) if at is not None]
        return max(found, default=None)

    def ended(self, relay: OpenRelay) -> None:
        """An attempt is over."""
        if relay.heard_at is not None and (self.heard_at is None or relay.heard_at > self.heard_at):
            self.heard_at = relay.heard_at
        self.relays.discard(relay)
        if self.is_retired and not self.relays:
            self.close()

    def retire(self) -> None:
        """Nothing new comes here: close once what is under way has ended."""
        self.is_retired = True
        if not self.relays:
            self.close()

    def close(self) -> None:
        """Drop the connections; what is in flight fails."""
        self.upstream.close()
        self.probing.close()
