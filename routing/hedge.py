"""When a second attempt is worth it for a stream that has not begun, and on whom it may be made. Pure.

A time alone says little: a long prompt is slow everywhere. So the wait is measured by what was predicted, and how far
beyond that is unusual is learned for each model. Whoever lost to its second attempt took longer than the wait: that is
all that must be known of it.
"""

from math import exp, log

from policies.lane import Lane
from policies.retry import MIN_RETRIES
from routing.replica import Replica

MIN_SEEN = 50  # streams of a model until anything is known of its slowest
LEAST_WAIT_S = 0.05  # chosen: below this nobody notices what is gained
SPARE = 4  # a replica with a quarter of its seats free is not saturated
_STEP = 0.1  # of the logarithm: the estimate moves by 10% at most with one stream
_LEAST, _MOST = log(0.1), log(1000.0)


class Patience:
    """How many times its predicted time a stream may take until it is among the slowest. `quantile`: of which part.

    The estimate rises by `quantile` steps when a stream took longer and falls by the rest of a step when it did not;
    it rests where as many of them take longer as should.
    """

    __slots__ = ("_log_factor", "num_seen")

    def __init__(self) -> None:
        self._log_factor = log(3.0)  # until it has learned
        self.num_seen = 0

    @property
    def factor(self) -> float:
        """The actual time over the predicted one."""
        return exp(self._log_factor)

    def observe(self, predicted_s: float, took_s: float, quantile: float) -> None:
        """A stream began `took_s` after it was sent, or had not begun by then and was given up."""
        if predicted_s <= 0.0 or took_s <= 0.0:
            return
        self.num_seen += 1
        is_longer = took_s > predicted_s * self.factor
        self._log_factor += _STEP * (quantile if is_longer else quantile - 1.0)
        self._log_factor = min(max(self._log_factor, _LEAST), _MOST)

    def wait_s(self, predicted_s: float) -> float | None:
        """How long to wait for a stream before another attempt; None while too little is known."""
        return max(LEAST_WAIT_S, predicted_s * self.factor) if self.num_seen >= MIN_SEEN else None

    def __repr__(self) -> str:
        return f"<Patience {self.factor:.2f} times, {self.num_seen} seen>"


class HedgeBudget:
    """Each request that may be hedged earns a share of a second attempt; what is saved up is bounded."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved = 1.0

    def earn(self, share: float) -> None:
        """One such request began."""
        self._saved = min(MIN_RETRIES, self._saved + share)

    def can_spend(self) -> bool:
        """Whether one attempt could be made. Changes nothing."""
        return self._saved >= 1.0

    def spend(self) -> None:
        """One is made."""
        self._saved -= 1.0

    def __repr__(self) -> str:
        return f"<HedgeBudget saved={self._saved:.2f}>"


def has_spare_seat(replica: Replica, lane: Lane) -> bool:
    """Whether a request too many takes nothing from others there."""
    free = replica.num_free(lane)
    return free > 0 and free * SPARE >= replica.seat_limits[lane.rank]
