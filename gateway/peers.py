"""The other gateways, as this one stands among them: what it may use of what all of them count together.

A gateway with a store of its own has no peers. Made in `redis_peers.py`; who uses it knows nothing of Redis.
"""

from typing import Protocol

from policies.leases import Holdings


class Peers(Holdings, Protocol):
    """Leased units (seats, caps), parts of request limits, and how this gateway stands."""

    @property
    def num_gateways(self) -> int:
        """Living gateways, this one included, as last told; 0 before the first answer."""
        ...

    @property
    def is_degraded(self) -> bool:
        """Whether the store has not answered for a lease: nothing is taken but what the fallback allows."""
        ...

    def share(self, limit: int) -> int:
        """The part of a request limit that this gateway enforces by itself."""
        ...
