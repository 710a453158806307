"""Which model a name's traffic goes to: canaries by weight, and what part of it is copied. Pure.

A conversation stays with one variant: it is drawn from what all its turns share, so its prefix stays warm where it is.
Whoever raises a variant's weight moves only as much traffic as that.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from xxhash import xxh3_64_intdigest

_ALL = float(2**64)


class Variants:
    """Models that share a name's traffic. `weights`: above 0 in all; those of 0 get none."""

    __slots__ = ("_bounds", "_names")

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Raises `ValueError` where no weight is above 0, or one is below."""
        if any(weight < 0 for weight in weights.values()) or not sum(weights.values()):
            raise ValueError("weights must not be negative, and one of them must be above 0")
        self._names = tuple(weights)
        *bounds, total = accumulate(weights.values())
        self._bounds = [bound / total for bound in bounds]

    def of(self, home: int) -> str:
        """The variant of a conversation. `home`: 64 bits that all its turns share."""
        drawn = xxh3_64_intdigest(b"variant", home) / _ALL
        return self._names[bisect_right(self._bounds, drawn)]


class Share:
    """Every so-manieth of a sequence of events, evenly spread. `part`: 0..1 of them."""

    __slots__ = ("_due", "_part")

    def __init__(self, part: float) -> None:
        self._part = part
        self._due = 0.0

    def is_next(self) -> bool:
        """Whether the event that happens now is one of them."""
        self._due += self._part
        if self._due < 1.0 - 1e-9:
            return False
        self._due -= 1.0
        return True
