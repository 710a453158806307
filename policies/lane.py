"""The three lanes and their order. A leaf: every package may import it, it imports nothing of ours."""

from enum import Enum


class Lane(Enum):
    """A priority class. Interactive is served before standard, standard before bulk."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"

    @property
    def rank(self) -> int:
        """0 for interactive, 1 for standard, 2 for bulk: lower is served first (vLLM's direction)."""
        return _RANKS[self]

    def is_within(self, highest: "Lane") -> bool:
        """Whether a key whose `max_lane` is `highest` may use this lane."""
        return self.rank >= highest.rank

    @classmethod
    def of_rank(cls, rank: int) -> "Lane":
        """The lane a worker reads out of a request's integer priority; unknown ranks are bulk or interactive."""
        if rank <= 0:
            return cls.INTERACTIVE
        return cls.STANDARD if rank == 1 else cls.BULK


_RANKS = {Lane.INTERACTIVE: 0, Lane.STANDARD: 1, Lane.BULK: 2}
