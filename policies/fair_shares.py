"""How a number of units is shared by those that want some of it: max-min fairness in whole units. Pure."""

from collections.abc import Mapping
from typing import NamedTuple


class Want(NamedTuple):
    """What one gateway has and wants. `served`: unit-milliseconds of service it had."""

    wanted: int
    held: int
    served: int


def fair_shares(limit: int, wants: Mapping[str, Want], stay: int = 0) -> dict[str, int]:
    """Each gateway's units by max-min fairness.

    Units that do not divide go to those that had the least service, so with three units and four gateways nobody goes
    without for long. One who has such a unit keeps it until it is ahead by `stay`, so that it does not change hands
    with every request.
    """
    left, remaining = len(wants), max(0, limit)
    level = odd = 0
    for wanted in sorted(want.wanted for want in wants.values()):
        if wanted * left > remaining:
            level, odd = divmod(remaining, left)
            break
        remaining -= wanted
        left -= 1
        level = wanted
    shares = {gateway: min(want.wanted, level) for gateway, want in wants.items()}
    # NOTE: rounding the service instead would let the order depend on the moment, and one could starve.
    short = sorted(
        (want.served - (stay if want.held > level else 0), gateway)
        for gateway, want in wants.items()
        if want.wanted > level
    )
    for _, gateway in short[:odd]:
        shares[gateway] += 1
    return shares
