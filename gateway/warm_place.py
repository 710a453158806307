"""Where and in whose name a prefix is warmed: what takes the place of a key and of routing for one request."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from policies.lane import Lane
from policies.tenant import Principal


@dataclass(frozen=True, slots=True)
class WarmPlace:
    """`principal`: who pays, and whose salt it is. `elsewhere`: names of all replicas but the one that shall read."""

    principal: Principal
    lane: Lane
    elsewhere: AbstractSet[str]
