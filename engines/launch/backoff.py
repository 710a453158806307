"""How long to wait before a lost process is started again. Pure: time comes in as `now` (monotonic seconds)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Waits double from `first_s` to `cap_s`; one run of `stable_s` after readiness forgives all failures before it.

    Chosen: the first restart is nearly at once (a crash is rare, its replica missing is felt), a process that cannot
    stay up costs two starts a minute.
    """

    first_s: float = 0.25
    cap_s: float = 30.0
    factor: float = 2.0
    stable_s: float = 30.0

    def __post_init__(self) -> None:
        assert 0 < self.first_s <= self.cap_s, "the first wait is positive and no longer than the cap"
        assert self.factor >= 1, "waits never shrink"


class Backoff:
    """The restarts of one process. `failures`: in a row, since the last stable run."""

    def __init__(self, policy: BackoffPolicy) -> None:
        self._policy = policy
        self._ready_at: float | None = None
        self.failures = 0

    def __repr__(self) -> str:
        return f"Backoff(failures={self.failures})"

    def ready(self, now: float) -> None:
        """The process became ready."""
        self._ready_at = now

    def lost(self, now: float) -> float:
        """Count a failure (a start that failed, or a ready process that ended) and say how long to wait, in seconds."""
        policy = self._policy
        if self._ready_at is not None and now - self._ready_at >= policy.stable_s:
            self.failures = 0
        self._ready_at = None
        wait_s = policy.first_s
        for _ in range(self.failures):
            wait_s *= policy.factor
            if wait_s >= policy.cap_s:
                wait_s = policy.cap_s
                break
        self.failures += 1
        return wait_s
