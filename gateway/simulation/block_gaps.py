"""Gaps between the tokens of a replica's answers, as few numbers: equal ones are counted."""


class CountedGaps:
    """Gaps between tokens: (seconds, how many), unsorted."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.counts: list[int] = []

    def add(self, seconds: float, count: int) -> None:
        """So many gaps of this length."""
        self.seconds.append(seconds)
        self.counts.append(count)
