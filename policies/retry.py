"""How many retries failing engines may cause: a share of the requests, so that retries cannot multiply a failure."""

MIN_RETRIES = 10.0  # chosen: what a quiet gateway may retry before its share has built up


class RetryBudget:
    """Each request earns `ratio` of a retry, each retry costs one; what is saved up is bounded by `MIN_RETRIES`.

    So retries stay below `ratio` of the requests plus `MIN_RETRIES`, over any stretch of time.
    """

    __slots__ = ("_ratio", "_saved")

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._saved = MIN_RETRIES if ratio > 0 else 0.0

    def earn(self) -> None:
        """One request began."""
        self._saved = min(MIN_RETRIES, self._saved + self._ratio)

    def can_spend(self) -> bool:
        """Whether one retry could be made now. Changes nothing."""
        return self._saved >= 1.0

    def spend(self) -> bool:
        """Whether one retry may be made; it is paid for then."""
        if not self.can_spend():
            return False
        self._saved -= 1.0
        return True

    def __repr__(self) -> str:
        return f"<RetryBudget saved={self._saved:.2f} ratio={self._ratio}>"
