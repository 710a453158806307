"""Which replica stands out among those of its model, and for how long it is left out then. Pure.

A breaker opens after faults in a row. A replica that fails every third request, or begins its answers far later than
predicted, never has so many; it shows only beside the others. Compared are shares, each replica's with all the others'
together, so that trouble of all alike (overload, a bad model file) ejects nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import sqrt

from routing.tally import Tally

MIN_ATTEMPTS = 20  # chosen: of the replica, and of all the others together; fewer say nothing
DEVIATIONS = 3.0  # standard deviations apart: by chance one of 700 comparisons
MIN_POOL = 3  # of fewer, leaving one out costs half of what there is, or all
LATE_FACTOR, LATE_S = 3.0, 0.5  # an answer is late after so many times what was predicted, and this
FORGIVE_S = 60.0  # so long without another takes one ejection off the count


class Because(Enum):
    """What a replica was ejected for."""

    FAILURES = "failures"
    LATE = "late"


_APART = {Because.FAILURES: 0.2, Because.LATE: 0.5}  # chosen: shares must lie so far apart to be worth an ejection


@dataclass(frozen=True, slots=True)
class OutlierSettings:
    """`max_share`: of a model's replicas, that may be out; 0: nobody is ejected. `first_s`, `max_s`: for how long.

    One of three may be out whatever the share is, if it is not 0.
    """

    max_share: float = 0.25
    first_s: float = 15.0
    max_s: float = 300.0

    def most_out(self, num_replicas: int) -> int:
        """How many of so many may be out at once."""
        if num_replicas < MIN_POOL or not self.max_share:
            return 0
        return max(1, int(num_replicas * self.max_share))


def outlier(tallies: Sequence[Tally]) -> tuple[int, Because] | None:
    """(the index of the one that stands out most, by what), None where none does. Move the tallies on before."""
    found = [(*most, because) for because in Because if (most := _standing_out(tallies, because)) is not None]
    if not found:
        return None
    _, index, because = max(found, key=lambda one: one[0])
    return index, because


def _standing_out(tallies: Sequence[Tally], because: Because) -> tuple[float, int] | None:
    """(by how many deviations, who) of the one farthest above the others' share, if that is far enough."""
    counts = [_counts(tally, because) for tally in tallies]
    all_bad, everything = sum(bad for bad, _ in counts), sum(number for _, number in counts)
    best: tuple[float, int] | None = None
    for index, (bad, number) in enumerate(counts):
        others = everything - number
        if number < MIN_ATTEMPTS or others < MIN_ATTEMPTS:
            continue
        apart = bad / number - (all_bad - bad) / others
        common = all_bad / everything
        deviation = sqrt(common * (1.0 - common) * (1.0 / number + 1.0 / others))
        if apart >= _APART[because] and apart >= DEVIATIONS * deviation:
            found = (apart / deviation if deviation else apart * everything, index)
            best = found if best is None else max(best, found)
    return best


def _counts(tally: Tally, because: Because) -> tuple[int, int]:
    """(how many were bad, of how many)."""
    if because is Because.FAILURES:
        return tally.num_faults, tally.num_attempts
    num_answers = tally.num_attempts - tally.num_faults
    return tally.num_late, max(num_answers, tally.num_late)  # what was outrun is late and no answer


class Ejections:
    """One replica's ejections. `until`: when the last one ends, monotonic seconds. `times`: in a row.

    Each lasts twice as long as the one before, up to a bound. `FORGIVE_S` without one takes one off.
    """

    __slots__ = ("because", "times", "until")

    def __init__(self) -> None:
        self.times = 0
        self.until = 0.0
        self.because = Because.FAILURES

    def eject(self, because: Because, settings: OutlierSettings, now: float) -> None:
        """Leave the replica out from now on."""
        forgiven = int(max(0.0, now - self.until) / FORGIVE_S)
        self.times = max(0, self.times - forgiven) + 1
        self.until = now + min(settings.first_s * 2.0 ** min(self.times - 1, 32), settings.max_s)
        self.because = because

    def __repr__(self) -> str:
        return f"<Ejections {self.times}, until {self.until:.1f} for {self.because.value}>"
