"""The three lanes and their order. A leaf: every package may import it, it imports nothing of ours."""

from enum import Enum


class Lane(Enum):
    """A priority class. Interactive is served before standard, standard before bulk.

    `rank`: 0 for interactive, 1 for standard, 2 for bulk: lower is served first (vLLM's direction).
    """

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BULK = "bulk"

    rank: int
    # Lanes are dict keys dozens of times a request; an enum's own hash is a call into Python.
    __hash__ = object.__hash__

    def __init__(self, _word: str) -> None:
        self.rank = len(type(self).__members__)  # those before it

    def is_within(self, highest: "Lane") -> bool:
        """Whether a key whose `max_lane` is `highest` may use this lane."""
        return self.rank >= highest.rank

    @classmethod
    def of_rank(cls, rank: int) -> "Lane":
        """The lane a worker reads out of a request's integer priority; unknown ranks are bulk or interactive."""
        if rank <= 0:
            return cls.INTERACTIVE
        return cls.STANDARD if rank == 1 else cls.BULK
