"""Which decoding sequences of a step have drafts verified, and how many. Pure.

A draft costs the time of a row and is worth the chance that it holds. It goes in where it makes the step's tokens per
second more, hence not where rows are what takes the time; and where others wait for the step, only as far as they can.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engines.core.admission import SchedulerSettings
from engines.core.budget import StepBudget
from engines.core.draft_room import DraftRoom
from engines.core.sequence import Sequence
from engines.core.speculation import Speculation

# What rows cost beside a step's base shows only in steps of different size. One sequence alone makes none, so that
# drafts which are believed too dear would be so for ever: now and then a few are verified all the same, ever more
# rarely while that changes nothing (measured: on a CPU where rows are the cost a trial takes the time of three tokens).
_FIRST_TRIAL_STEPS, _LAST_TRIAL_STEPS, _TRIAL_DRAFTS = 16, 2048, 2
_SURE = 0.95  # the chance of the best drafts: where even these are not worth it none are looked for


@dataclass(frozen=True, slots=True)
class _Proposal:
    sequence: Sequence
    drafts: tuple[int, ...]
    chance: float


class Drafter:
    """Adds drafts to steps. Counts only grow."""

    def __init__(self, settings: SchedulerSettings, grow: Callable[[Sequence, int], bool]) -> None:
        """`grow`: blocks for a sequence's tokens and so many drafts; False, changing nothing, if there are none."""
        self._settings = settings
        self._grow = grow
        self.num_drafted = self.num_accepted = 0
        self._trial_steps = _FIRST_TRIAL_STEPS  # from one trial to the next
        self._steps_since_trial = 0

    def __repr__(self) -> str:
        return f"<Drafter drafted={self.num_drafted} accepted={self.num_accepted}>"

    def add(self, budget: StepBudget, *, is_bulk: bool) -> None:
        """Add drafts to the sequences of bulk, or to the urgent ones, that decode in the step; the likeliest first."""
        decoding = budget.decoding(is_bulk=is_bulk) if self._settings.max_drafts else []
        if not decoding:
            return
        most = self._settings.max_step_drafts - budget.num_drafts
        room = budget.draft_room(most, is_bulk=is_bulk)
        if room.can_take(_SURE):
            self._trial_steps = _FIRST_TRIAL_STEPS
        elif not self._is_time_to_try():
            return
        else:
            room = budget.draft_room(min(most, _TRIAL_DRAFTS), is_bulk=is_bulk, is_trial=True)
        proposals = [self._propose(sequence) for sequence in decoding]
        proposals = [proposal for proposal in proposals if proposal.drafts]
        for proposal, num_drafts in zip(proposals, _shares(room, proposals), strict=True):
            if num_drafts and self._grow(proposal.sequence, num_drafts):
                budget.draft(proposal.sequence, proposal.drafts[:num_drafts])

    def learn(self, sequence: Sequence, num_drafts: int, num_held: int) -> None:
        """What became of a sequence's drafts; it has the tokens that came of it already."""
        assert sequence.speculation is not None, f"sequence {sequence.id} had drafts that nobody proposed"
        sequence.speculation.learn(num_drafts, num_held, len(sequence.tokens))
        self.num_drafted += num_drafts
        self.num_accepted += num_held

    def _is_time_to_try(self) -> bool:
        """In a step in which drafts are believed too dear."""
        self._steps_since_trial += 1
        if self._steps_since_trial < self._trial_steps:
            return False
        self._steps_since_trial = 0
        self._trial_steps = min(2 * self._trial_steps, _LAST_TRIAL_STEPS)
        return True

    def _propose(self, sequence: Sequence) -> _Proposal:
        if sequence.speculation is None:
            sequence.speculation = Speculation()
        # The step yields one token besides, which must not be one too many.
        most = min(self._settings.max_drafts, sequence.max_length - len(sequence.tokens) - 1)
        drafts = sequence.speculation.propose(sequence.tokens, sequence.grammar, most)
        if drafts:
            end_ids = self._settings.eos_ids | sequence.request.sampling.stop_token_ids
            if not end_ids.isdisjoint(drafts):  # nothing that comes after an end is wanted
                drafts = drafts[: next(index for index, draft in enumerate(drafts) if draft in end_ids)]
        return _Proposal(sequence, drafts, sequence.speculation.chance)


def _shares(room: DraftRoom, proposals: list[_Proposal]) -> list[int]:
    """How many of each one's drafts go in: one after the other, always the likeliest, while there is room."""
    numbers = [0] * len(proposals)
    chances = [proposal.chance for proposal in proposals]
    while chances:
        index = max(range(len(chances)), key=chances.__getitem__)
        if chances[index] <= 0 or not room.take(chances[index]):
            break
        numbers[index] += 1
        has_more = numbers[index] < len(proposals[index].drafts)
        chances[index] = chances[index] * proposals[index].chance if has_more else 0.0
    return numbers
