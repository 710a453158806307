"""How far a replica's predicted hits are to be believed, learned from the cached tokens its engine reports."""

START_CONFIDENCE = 1.0  # before any report, and for ever on engines that report nothing
_SHARE = 0.1  # about the last ten reports count
LEAST_TOKENS = 64  # smaller predictions drown in block rounding


class HitConfidence:
    """The mean share of predicted hit tokens that the engine confirmed, 0..1."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = START_CONFIDENCE

    def observe(self, predicted_tokens: int, reported_tokens: int | None) -> None:
        """Learn from one request. `reported_tokens` None means the engine said nothing, which is not zero."""
        if reported_tokens is None or predicted_tokens < LEAST_TOKENS:
            return
        confirmed = min(1.0, max(0, reported_tokens) / predicted_tokens)
        self.value += _SHARE * (confirmed - self.value)
