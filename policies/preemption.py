"""Which bulk requests an engine without priorities must give up for people, and how much work may be lost by it. Pure.

A cancelled request starts anew, so what was computed for it is thrown away. The bound: in any stretch of time the
tokens thrown away are at most `share` of the bulk tokens finished in it, plus `burst_tokens`.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """Chosen. `max_times`: a request is cancelled so often at most, then it stays. `share`: 0..1, see above.

    `first_tokens`: of the burst, what may be lost before anything was finished; about one document. The whole burst was
    six minutes of work on two cores, in which bulk came to nothing.

    Raises `ValueError` where a number makes no sense.
    """

    share: float = 0.1
    burst_tokens: int = 8192
    first_tokens: int = 1024
    max_times: int = 2

    def __post_init__(self) -> None:
        """Check the bounds."""
        if not 0 <= self.share < 1 or min(self.burst_tokens, self.first_tokens, self.max_times) < 0:
            raise ValueError("share is within 0..1, burst_tokens, first_tokens and max_times are at least 0")


@dataclass(frozen=True, slots=True)
class BulkRun:
    """One bulk request on a replica. `computed_tokens`: uncached prompt and answer tokens so far; may be a guess.

    `has_sent_content`: its client has seen a part of the answer, so it cannot start anew. `times_preempted`: before.
    """

    request_id: str
    begun_at: float
    computed_tokens: int
    has_sent_content: bool = False
    times_preempted: int = 0


class WasteBudget:
    """Tokens that may be thrown away now: filled by finished bulk work, never above the burst."""

    def __init__(self, settings: PreemptionSettings) -> None:
        self.settings = settings
        self.finished_tokens = 0
        self.wasted_tokens = 0
        self._left = float(min(settings.first_tokens, settings.burst_tokens))

    def __repr__(self) -> str:
        return f"<WasteBudget {self._left:.0f} left, {self.wasted_tokens} wasted of {self.finished_tokens} finished>"

    @property
    def left_tokens(self) -> int:
        """Never negative."""
        return int(self._left)

    def earn(self, finished_tokens: int) -> None:
        """A bulk request came to its end: this was computed for it and used."""
        self.finished_tokens += max(0, finished_tokens)
        self._left = min(self.settings.burst_tokens, self._left + self.settings.share * max(0, finished_tokens))

    def preempt(self, runs: Iterable[BulkRun], num: int) -> tuple[BulkRun, ...]:
        """Up to `num` of `runs` to cancel and queue again, those with the least work first, then the youngest.

        Spends the budget on them: whoever is named has to be cancelled.
        """
        chosen: list[BulkRun] = []
        may_go = [run for run in runs if not run.has_sent_content and run.times_preempted < self.settings.max_times]
        for run in sorted(may_go, key=lambda run: (run.computed_tokens, -run.begun_at)):
            tokens = max(0, run.computed_tokens)
            if len(chosen) >= num or tokens > self._left:
                break
            self._left -= tokens
            self.wasted_tokens += tokens
            chosen.append(run)
        return tuple(chosen)
