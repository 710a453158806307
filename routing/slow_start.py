"""How much a replica that just came may be given: a part of its seats that grows with time. Pure.

Its cache is cold, so each of its first prompts is read whole; what made it fail may not be over; and as the emptiest of
all it would be given everything that comes. It costs nothing where nobody else could serve: then it may have all.
"""

from dataclasses import dataclass
from enum import Enum

LEAST_SHARE = 0.1  # chosen: of its seats, at the beginning


class Came(Enum):
    """How it came to be ready."""

    JOINED = "joined"  # new, or a new process
    RETURNED = "returned"  # it had not answered its probes
    EJECTED = "ejected"  # its ejection is over
    FAILED = "failed"  # its breaker was open


@dataclass(frozen=True, slots=True)
class SlowStartSettings:
    """`window_s`: seconds until it may have all its seats; 0: at once."""

    window_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Start:
    """One slow start. `since`: monotonic seconds."""

    came: Came
    since: float

    def share(self, settings: SlowStartSettings, now: float) -> float:
        """What it may have of its seats: from `LEAST_SHARE` to 1, in equal steps of time; 1: the start is over."""
        if settings.window_s <= 0.0:
            return 1.0
        return min(1.0, max(LEAST_SHARE, (now - self.since) / settings.window_s))

    def seats(self, num_seats: int, settings: SlowStartSettings, now: float) -> int:
        """How many requests it may hold; one at least."""
        return max(1, int(num_seats * self.share(settings, now)))
