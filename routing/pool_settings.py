"""What holds for all replicas of a pool."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.lane import Lane
from routing.outliers import OutlierSettings
from routing.slow_start import SlowStartSettings


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """`reserved_seats`: seats of each replica kept from all lower lanes. `kv_tokens`: assumed where a spec has none.

    `outliers`, `slow_start`: at the beginning; `ReplicaPool.holdbacks` takes others.
    """

    reserved_seats: Mapping[Lane, int] = field(default_factory=dict)
    kv_tokens: int = 131_072
    outliers: OutlierSettings = field(default_factory=OutlierSettings)
    slow_start: SlowStartSettings = field(default_factory=SlowStartSettings)
