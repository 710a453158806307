"""How many drafts a step has room for, each at the price of a row. Pure arithmetic."""

from engines.core.latency_guard import LatencyGuard, StepCounts


class DraftRoom:
    """Of one step with `counts` in it, which may last `limit_s` and take `num_tokens` more tokens.

    `is_trial`: what a draft is worth does not matter.
    """

    def __init__(
        self, guard: LatencyGuard, counts: StepCounts, limit_s: float, num_tokens: int, *, is_trial: bool = False
    ) -> None:
        self._guard = guard
        self._counts = counts
        self._limit_s = limit_s
        self._num_left = num_tokens
        self._is_trial = is_trial
        self._expected = float(counts.rows)  # tokens that the step yields

    def __repr__(self) -> str:
        return f"<DraftRoom rows={self._counts.rows} left={self._num_left}>"

    def can_take(self, chance: float) -> bool:
        """Whether a draft that holds with this chance fits, and makes the step's tokens per second no fewer."""
        after_s = self._guard.seconds(self._counts.plus_rows(1))
        if self._num_left < 1 or after_s > self._limit_s:
            return False
        if self._is_trial:
            return True
        before_s = self._guard.seconds(self._counts)
        return chance * before_s >= (after_s - before_s) * self._expected

    def take(self, chance: float) -> bool:
        """Use up the room of a draft if it can be taken."""
        if not self.can_take(chance):
            return False
        self._counts = self._counts.plus_rows(1)
        self._num_left -= 1
        self._expected += chance
        return True
