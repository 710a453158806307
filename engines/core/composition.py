"""What goes into the next step, lane by lane. Pure.

Interactive decodes, standard decodes, drafts of both; then interactive prompts, those seated before newcomers, then
standard ones; then as much bulk as the objective leaves room for: decodes, the longest left out first, drafts of those,
then prompts in order. Where urgent prompts and decodes take turns, a step has the one or the other (turns.py).
"""

from engines.core.budget import StepBudget
from engines.core.drafting import Drafter
from engines.core.memory import Placement
from engines.core.queue import URGENT_LANES
from engines.core.seats import Seats
from engines.core.turns import Turn, turn_of
from policies.lane import Lane


def compose(
    budget: StepBudget, seats: Seats, drafter: Drafter, last_step: int | None = None, *, is_bulk_overdue: bool
) -> None:
    """Fill `budget`, seating and preempting as need be. `is_bulk_overdue`: bulk gets a smallest share at least.

    `last_step`: the number of the step before, where urgent prompts and decodes take turns.
    """
    may_save_ahead = _allow_saves(budget, seats)
    may_seat = seats.make_room()  # what a preemption frees is for those still seated: else both would be repeated
    turn = turn_of(seats, last_step) if last_step is not None else None
    may_seat = _take_urgent(budget, seats, drafter, turn, may_seat=may_seat)
    if seats.has_bulk and (turn is None or turn.num_resting):
        _take_bulk(budget, seats, drafter, may_seat=may_seat)  # else prompts wait for the next step already
    if is_bulk_overdue and not budget.has_bulk:
        budget.lift()
        _take_bulk(budget, seats, drafter, may_seat=may_seat)
    if may_save_ahead:
        seats.memory.copies.save_ahead()
    budget.charge(seats.memory.copies.take_spent_s())


def _allow_saves(budget: StepBudget, seats: Seats) -> bool:
    """Say how long saves to host memory may take; whether nobody urgent is there, so that some may be made ahead."""
    copies = seats.memory.copies
    if not copies.is_on:
        return False
    num_decoding, has_prompts = seats.urgent_demand()
    copies.allow(budget.save_s(num_decoding, has_prompts=has_prompts))
    return num_decoding == 0 and not has_prompts


def _take_urgent(budget: StepBudget, seats: Seats, drafter: Drafter, turn: Turn | None, *, may_seat: bool) -> bool:
    """What goes in before bulk; whether bulk may seat its own."""
    if turn is not None and turn.num_resting:
        budget.rest(turn)
        may_seat = _take_prompts(budget, seats, may_seat=may_seat)
        if budget.grants:
            return may_seat
        budget.wake()
    budget.take_decodes([sequence for sequence in seats.running.urgent() if sequence.is_decoding])
    drafter.add(budget, is_bulk=False)
    return _take_prompts(budget, seats, may_seat=may_seat) if turn is None else may_seat


def _take_prompts(budget: StepBudget, seats: Seats, *, may_seat: bool) -> bool:
    """Urgent prompts, as far as they may; whether bulk may seat its own."""
    for lane in URGENT_LANES:
        for sequence in seats.running.in_lane(lane):
            if not sequence.is_decoding:
                budget.take(sequence)
        may_seat = may_seat and _seat(budget, seats, lane)
    return may_seat


def _take_bulk(budget: StepBudget, seats: Seats, drafter: Drafter, *, may_seat: bool) -> None:
    seated = seats.running.in_lane(Lane.BULK)
    for sequence in sorted((s for s in seated if s.is_decoding), key=lambda s: s.last_step):
        budget.take(sequence)
    drafter.add(budget, is_bulk=True)
    for sequence in seated:
        if not sequence.is_decoding:
            budget.take(sequence)
    if may_seat:
        _seat(budget, seats, Lane.BULK)


def _seat(budget: StepBudget, seats: Seats, lane: Lane) -> bool:
    """Seat waiting sequences of a lane in their order; whether lower lanes may seat theirs.

    The first one without room ends it, for lower lanes too, so that large ones are not overtaken forever.
    """
    preemptions = seats.preemptions
    for sequence in seats.waiting.in_lane(lane):
        if not budget.can_seat(lane):
            return False
        placement = seats.seat(sequence)
        budget.charge(seats.memory.copies.take_spent_s())
        if placement is Placement.NO_ROOM:
            return False
        if placement is Placement.PLACED:
            budget.take(sequence)
    return seats.preemptions == preemptions
