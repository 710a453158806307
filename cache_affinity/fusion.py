"""How many tokens of a prompt a replica is expected to hit, from what its engine told and from what was routed there.

An engine that tells of its blocks is believed: `exact` counts, times how much of it the engine confirmed lately. What
was routed there a moment ago is not told yet and counts as predicted. An engine that tells nothing is predicted alone.
"""

START_CONFIDENCE = 1.0  # before any report, and for ever on engines that report nothing
_SHARE = 0.1  # about the last ten reports count
LEAST_TOKENS = 64  # smaller predictions drown in block rounding
FRESH_S = 5.0  # chosen: a prompt given to a replica is in its events by then, at least the part that it has read


class HitConfidence:
    """The mean share of predicted hit tokens that the engine confirmed, 0..1."""

    __slots__ = ("num_observations", "value")

    def __init__(self) -> None:
        self.value = START_CONFIDENCE
        self.num_observations = 0

    def observe(self, predicted_tokens: int, reported_tokens: int | None) -> None:
        """Learn from one request. `reported_tokens` None means the engine said nothing, which is not zero."""
        if reported_tokens is None or predicted_tokens < LEAST_TOKENS:
            return
        confirmed = min(1.0, max(0, reported_tokens) / predicted_tokens)
        self.value += _SHARE * (confirmed - self.value)
        self.num_observations += 1

    def adopt(self, value: float, num_observations: int) -> None:
        """Take over what more observations made elsewhere; of as many the larger value. Else nothing."""
        value = min(max(value, 0.0), 1.0)
        if (num_observations, value) > (self.num_observations, self.value):
            self.value, self.num_observations = value, num_observations


def fused(exact_tokens: int, exact_confidence: float, predicted_tokens: int, confidence: float) -> int:
    """Expected hit tokens where the engine tells of its blocks.

    `predicted_tokens`: of what was routed there but may not be told yet; 0 where all of it must have been. A prediction
    that goes little further is the same hit without block rounding.
    """
    told, predicted = int(exact_tokens * exact_confidence), int(predicted_tokens * confidence)
    return predicted if predicted >= told + LEAST_TOKENS else told
