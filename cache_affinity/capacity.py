"""How much of a prompt's text an engine's cache really keeps, as a factor on what its KV size lets expect.

A shadow that is too large predicts hits on what was evicted; one that is too small has forgotten what is still there.
Engines that report cached tokens show both: a predicted part that was old and missed means less room, a forgotten part
that was hit means more. Answers take room, blocks are not full, configured sizes are guesses: the factor covers them
all. One for all replicas of a kind, so that a large fleet learns it as fast as one engine. Pure.
"""

from math import exp, log
from typing import NamedTuple

LEAST_FACTOR, MOST_FACTOR = 0.125, 8.0
STEP = 0.06  # chosen: a guess that is off by two is mended by a dozen clear reports
OLD_SHARE = 0.3  # of the oldest border's age: what was missed and is younger was not evicted for room
_LEAST_BYTES = 2048  # two borders: less is rounding
_LEAST_SHARE = 0.1  # of the prompt, for bytes are no tokens


class Remembered(NamedTuple):
    """What a shadow knew of a prompt just before it was given to the replica, in bytes from the start.

    `held`: predicted to be held. `known`: with what follows it and was evicted not long ago, at least `held`.
    `age_share`: how old the last held border was, 1 for as old as the oldest in the shadow.
    """

    held: int
    known: int
    age_share: float


class CapacityFactor:
    """`value`: times the expected capacity. Moves by at most `STEP` (of its logarithm) a report."""

    __slots__ = ("_log", "num_observations", "value")

    def __init__(self) -> None:
        self.value = 1.0
        self.num_observations = 0
        self._log = 0.0

    def __repr__(self) -> str:
        return f"<CapacityFactor {self.value:.2f} after {self.num_observations} reports>"

    def observe(self, remembered: Remembered, reported_bytes: int | None, total_bytes: int) -> None:
        """Learn from one report. None: the engine said nothing, which is not zero."""
        if reported_bytes is None:
            return
        slack = max(_LEAST_BYTES, _LEAST_SHARE * total_bytes)
        held, known, age_share = remembered
        if known - held >= _LEAST_BYTES and reported_bytes >= held + min(slack, (known - held) / 2):
            self._move(STEP)
        elif age_share >= OLD_SHARE and reported_bytes <= held - slack:
            self._move(-STEP * (held - reported_bytes) / held)

    @property
    def logarithm(self) -> float:
        """Of the factor."""
        return self._log

    def adopt(self, logarithm: float, num_observations: int) -> None:
        """Take over what more observations made elsewhere; of as many the larger value. Else nothing."""
        logarithm = _bounded(logarithm)
        if (num_observations, logarithm) > (self.num_observations, self._log):
            self.num_observations, self._log = num_observations, logarithm
            self.value = exp(logarithm)

    def _move(self, step: float) -> None:
        self.num_observations += 1
        self._log = _bounded(self._log + step)
        self.value = exp(self._log)


def _bounded(logarithm: float) -> float:
    return min(max(logarithm, log(LEAST_FACTOR)), log(MOST_FACTOR))
