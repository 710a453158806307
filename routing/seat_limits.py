"""How many open leases each lane may see on a replica before it gets no further seat there. Pure."""

from collections.abc import Mapping

from policies.lane import Lane


def seat_limits(seats: int, reserved_seats: Mapping[Lane, int]) -> tuple[int, ...]:
    """Below how many open leases each lane, by rank, may take a seat. Every lane keeps at least one.

    The one seat is for a small replica: reserving all it has would shut lower lanes out for ever.
    """
    limits, reserved = [], 0
    for lane in sorted(Lane, key=lambda lane: lane.rank):
        limits.append(max(min(1, seats), seats - reserved))
        reserved += reserved_seats.get(lane, 0)
    return tuple(limits)
