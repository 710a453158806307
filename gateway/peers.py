"""The other gateways, as this one stands among them: what it may use of what all of them count together.

A gateway with a store of its own has no peers. Made in `redis_peers.py`; who uses it knows nothing of Redis.
"""

from typing import Protocol

from policies.in_flight import Unit
from policies.leases import Holdings
from policies.meters import Meter, Meters


class Peers(Holdings, Protocol):
    """Leased units (seats, caps), meters that count with the others, and how this gateway stands."""

    @property
    def num_gateways(self) -> int:
        """Living gateways, this one included, as last told; 0 before the first answer."""
        ...

    @property
    def is_degraded(self) -> bool:
        """Whether the store has not answered for a lease: nothing is taken but what the fallback allows."""
        ...

    @property
    def meters(self) -> Meters:
        """Who counts rates, tokens and money together with the other gateways."""
        ...

    @property
    def is_limits_degraded(self) -> bool:
        """Whether limits are decided without the store: money refuses, of the rest this gateway admits its part."""
        ...

    async def until_granted(self, wanted: Meter | Unit, amount: int, timeout_s: float = 0.25) -> bool:
        """Wait for what a take was short of (`Rejected.pending`); whether another take is worth it."""
        ...
