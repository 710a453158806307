"""Time to first token of one replica: base + tokens to read before it / prefill rate, learned from what was seen.

Every observation moves the estimate by a bounded factor, so one outlier (a pause, a cold start) moves it little, and
a changed machine is followed within tens of requests. Knows nothing of queues or caches: tokens come in, ms go out.
"""

from math import exp, log

DEFAULT_RATE = 2000.0  # prompt tokens a second before anything was seen; only ratios between replicas matter then
DEFAULT_BASE_S = 0.03
ASSUMED_BASE_MS, ASSUMED_MS_PER_TOKEN = DEFAULT_BASE_S * 1000.0, 1000.0 / DEFAULT_RATE  # what a new model starts with
RATE, BASE = 1, 2
LEAST_RATE, MOST_RATE = 1.0, 1_000_000.0
MAX_BASE_S = 10.0
_LEAST_BASE_MS = 0.1
READING_TOKENS = 256  # from this many tokens on, reading dominates and teaches the rate; below, the base
_MIN_SHARE = 0.1  # of a late observation; the nth of the first ten has 1/n
_MAX_STEP = 1.0  # no observation counts as more than e times off


class TtftModel:
    """`prefill_rate`: prompt tokens a second. `base_s`: what a prompt without a token to read takes.

    `unlearned`: `RATE` and `BASE`, added, as far as nothing was seen that teaches them.
    """

    __slots__ = ("_num_bases", "_num_rates", "base_ms", "ms_per_token", "unlearned")

    def __init__(self) -> None:
        self.ms_per_token = ASSUMED_MS_PER_TOKEN
        self.base_ms = ASSUMED_BASE_MS
        self.unlearned = RATE | BASE
        self._num_rates = 0
        self._num_bases = 0

    def __repr__(self) -> str:
        return f"<TtftModel {self.prefill_rate:.0f} tokens/s, base {self.base_s * 1000:.1f} ms>"

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return 1000.0 / self.ms_per_token

    @property
    def is_rate_learned(self) -> bool:
        """Whether a long prompt has taught the rate."""
        return not self.unlearned & RATE

    @property
    def weights(self) -> tuple[int, int]:
        """How many observations made the rate, and the base."""
        return self._num_rates, self._num_bases

    @property
    def base_s(self) -> float:
        """Seconds to the first token when nothing has to be read."""
        return self.base_ms / 1000.0

    def predict_s(self, num_tokens: int) -> float:
        """Seconds to the first token with `num_tokens` to read before it: other prompts in front plus one's own."""
        return (self.base_ms + num_tokens * self.ms_per_token) / 1000.0

    def assume(self, others: "TtftModel") -> None:
        """Take what is not learned yet to be as it is elsewhere: a new replica of a fast fleet must get requests."""
        if self.unlearned & RATE and not others.unlearned & RATE:
            self.ms_per_token = others.ms_per_token
        if self.unlearned & BASE and not others.unlearned & BASE:
            self.base_ms = others.base_ms

    def adopt_rate(self, ms_per_token: float, num_observations: int) -> None:
        """Take over what more observations made elsewhere; of as many the larger value. Else nothing."""
        ms_per_token = min(max(ms_per_token, 1000.0 / MOST_RATE), 1000.0 / LEAST_RATE)
        if num_observations and (num_observations, ms_per_token) > (self._num_rates, self.ms_per_token):
            self.ms_per_token, self._num_rates = ms_per_token, num_observations
            self.unlearned &= ~RATE

    def adopt_base(self, base_ms: float, num_observations: int) -> None:
        """The same for the base."""
        base_ms = min(max(base_ms, _LEAST_BASE_MS), 1000.0 * MAX_BASE_S)
        if num_observations and (num_observations, base_ms) > (self._num_bases, self.base_ms):
            self.base_ms, self._num_bases = base_ms, num_observations
            self.unlearned &= ~BASE

    def observe(self, num_tokens: int, ttft_s: float) -> None:
        """Learn from one request that had `num_tokens` to be read before its first token, `ttft_s` after dispatch.

        A long reading teaches the rate, a short one the base: one number from one observation.
        """
        if ttft_s <= 0.0 or num_tokens < 0:
            return
        if num_tokens >= READING_TOKENS:
            self._num_rates += 1
            self.unlearned &= ~RATE
            reading_s = max(ttft_s - self.base_s, ttft_s * 0.1)
            rate = self.prefill_rate * _step(num_tokens / reading_s / self.prefill_rate, self._num_rates)
            self.ms_per_token = 1000.0 / min(max(rate, LEAST_RATE), MOST_RATE)
        else:
            self._num_bases += 1
            self.unlearned &= ~BASE
            base_s = max(ttft_s - num_tokens / self.prefill_rate, 0.0001)
            self.base_ms = 1000.0 * min(
                max(self.base_s * _step(base_s / self.base_s, self._num_bases), 1e-4), MAX_BASE_S
            )


def _step(ratio: float, nth: int) -> float:
    """The factor by which the nth observation, off by `ratio`, moves an estimate (geometric, clipped)."""
    share = max(1.0 / nth, _MIN_SHARE)
    return exp(share * min(max(log(ratio), -_MAX_STEP), _MAX_STEP))
