"""Whose step it is where prompts and urgent decodes are not computed together. Pure.

Some devices compute a step of both no faster than one of each (llama.cpp on a CPU: slower). There the urgent sequences
that decode and the urgent prompts take turns: each that decodes gets its token, then prompts get a step.
"""

from dataclasses import dataclass
from itertools import islice

from engines.core.seats import Seats
from engines.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Turn:
    """`num_resting` urgent sequences decode and have had their token: prompts may have the step; 0: they may not.

    `num_overtaken`: tokens of all prompts that may be read now, if most of those resting got their first token when the
    prompt that has waited longest was there already: they are ahead of it, so they are the ones to wait. Else 0.
    """

    num_resting: int = 0
    num_overtaken: int = 0


def turn_of(seats: Seats, last_step: int) -> Turn | None:
    """Whose turn it is after step `last_step`; None where only one kind is there, so that nobody need rest."""
    seated = seats.running.urgent()
    decoding = [s for s in seated if s.is_decoding]
    prompts = [s for s in seated if not s.is_decoding]
    num_free = seats.num_urgent_seats - len(seated)
    if num_free > 0:
        prompts += islice(seats.waiting.urgent(), num_free)
    if not decoding or not prompts:
        return None
    if any(s.last_step < last_step for s in decoding):
        return Turn()
    return Turn(len(decoding), sum(s.num_uncomputed for s in prompts) if _is_overtaken(prompts, decoding) else 0)


def _is_overtaken(prompts: list[Sequence], decoding: list[Sequence]) -> bool:
    """Whoever was added after step n had come while that was computed, hence before the first tokens it brought."""
    since = min(s.added_step for s in prompts)
    return 2 * sum(s.first_step >= since for s in decoding) > len(decoding)
