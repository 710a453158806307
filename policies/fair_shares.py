"""How a number of units is shared by those that want some of it: max-min fairness in whole units. Pure."""

from collections.abc import Mapping


def fair_shares(limit: int, wants: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Each gateway's units by max-min fairness, from its (units wanted, quanta of service had).

    Units that do not divide go to those that had the least service; so with three units and four gateways no one goes
    without for long.
    """
    left, remaining = len(wants), max(0, limit)
    level = odd = 0
    for wanted in sorted(wanted for wanted, _ in wants.values()):
        if wanted * left > remaining:
            level, odd = divmod(remaining, left)
            break
        remaining -= wanted
        left -= 1
        level = wanted
    shares = {gateway: min(wanted, level) for gateway, (wanted, _) in wants.items()}
    short = sorted((served, gateway) for gateway, (wanted, served) in wants.items() if wanted > level)
    for _, gateway in short[:odd]:
        shares[gateway] += 1
    return shares
