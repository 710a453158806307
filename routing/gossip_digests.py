"""How replicas are called between gateways: a digest of what all of them know of one run of a replica. Pure.

It differs after each restart, so what is told of the process before says nothing of the one after. A loopback address
means another engine on every machine: there the machine is part of it.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from cache_affinity.gossip_notes import replica_digest
from routing.replica import Replica, ReplicaSpec


class ReplicaDigests:
    """Digests by replica. `machine`: this one's name."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._known: dict[str, tuple[ReplicaSpec, int]] = {}

    def __repr__(self) -> str:
        return f"<ReplicaDigests of {len(self._known)}>"

    def of(self, spec: ReplicaSpec) -> int:
        """The digest of this run of the replica."""
        known = self._known.get(spec.name)
        if known is not None and known[0] is spec:
            return known[1]
        place = self._machine if _is_loopback(spec.url) else ""
        digest = replica_digest(spec.name, spec.model, spec.url, spec.generation, place)
        self._known[spec.name] = spec, digest
        return digest

    def keep(self, replicas: Iterable[Replica]) -> dict[int, Replica]:
        """These by digest; others are forgotten."""
        found = {self.of(replica.spec): replica for replica in replicas}
        names = {replica.name for replica in found.values()}
        self._known = {name: known for name, known in self._known.items() if name in names}
        return found


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in {"localhost", "::1"} or host.startswith("127.")
