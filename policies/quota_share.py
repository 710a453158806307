"""How much of a tenant's request limits one gateway of several may admit by itself, so that no limit is multiplied.

The parts of all gateways add up to the limit at most, whatever each knows of the others. Pure.
"""


def share_of(limit: int, *, number: int, processes: int, living: int) -> int:
    """The gateway's part of `limit`: an equal one, and for the first processes of a lone node one of the remainder.

    `number`: which of its node's `processes` it is, from 1. `living`: gateways of all nodes, as last told. One that is
    dead for a moment keeps its part: else its successor would admit it a second time.
    """
    part, remainder = divmod(limit, max(processes, living))
    return part + (living <= processes and number <= remainder)
