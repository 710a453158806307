"""One step being filled: how many tokens of which sequence still go in. Pure.

The order of asking is the caller's: urgent decodes, urgent prompts, then bulk. Each sequence gets at most one grant.
Urgent decodes always go in, urgent prompts as far as the guard lets them grow the step; bulk only as far as the step
stays within the objective or, where nobody urgent is in it, within a short step.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from engines.core.draft_room import DraftRoom
from engines.core.latency_guard import LatencyGuard, StepCounts
from engines.core.outlook import StepOutlook
from engines.core.plan import Row
from engines.core.sequence import Sequence
from engines.core.turns import Turn
from policies.lane import Lane

# Of a bulk prompt beside urgent decodes. A device takes a token or two no faster than as many rows, whatever a model
# that is linear in prefill tokens says; chosen.
_FEWEST_PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Grant:
    """`num_tokens` of a sequence's uncomputed tokens are computed in this step, and `drafts` behind the last of all."""

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...] = ()

    def row(self, *, has_blocks: bool = True) -> Row:
        """The grant as the runner sees it, before anything of it is computed; with or without its block table."""
        sequence, start = self.sequence, self.sequence.num_computed
        assert sequence.slot is not None, f"sequence {sequence.id} is in a step without a slot"
        return Row(
            slot=sequence.slot,
            start=start,
            tokens=(*sequence.tokens[start : start + self.num_tokens], *self.drafts),
            num_samples=1 + len(self.drafts) if self.num_tokens == len(sequence.tokens) - start else 0,
            blocks=tuple(sequence.blocks) if has_blocks else (),
        )


class StepBudget:
    """Grants of one step, at most `max_tokens` tokens in at most `max_rows` rows."""

    def __init__(self, guard: LatencyGuard, max_tokens: int, max_rows: int) -> None:
        self._guard = guard
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._counts = StepCounts()
        self._urgent: StepCounts | None = None  # fixed when the first bulk sequence asks
        self._prompt_tokens: int | None = None  # left to urgent prompts; fixed when the first one asks
        self._decoding = StepCounts()  # when it was fixed
        self._turn: Turn | None = None  # of prompts alone
        self._num_prompt_tokens = 0  # granted to urgent prompts
        self._num_bulk = 0
        self._is_lifting = False
        self._is_lifted = False
        self.grants: list[Grant] = []

    def __repr__(self) -> str:
        counts = self._counts
        return f"<StepBudget rows={counts.rows} prefill_tokens={counts.prefill_tokens} bulk={self._num_bulk}>"

    @property
    def has_bulk(self) -> bool:
        """Whether a bulk sequence has a grant."""
        return self._num_bulk > 0

    def take(self, sequence: Sequence) -> None:
        """Let the sequence compute what there is room for, if anything."""
        is_bulk = sequence.request.lane is Lane.BULK
        wanted = sequence.num_uncomputed
        num_tokens = self._bulk_room(wanted) if is_bulk else self._urgent_room(wanted)
        if num_tokens < 1:
            return
        self.grants.append(Grant(sequence, num_tokens))
        self._counts = self._counts.plus(num_tokens)
        if is_bulk:
            self._num_bulk += 1
            self._is_lifted |= self._is_lifting
            self._is_lifting = False
        elif self._prompt_tokens is not None:
            self._prompt_tokens -= num_tokens
            self._num_prompt_tokens += num_tokens

    def take_decodes(self, sequences: SequenceOf[Sequence]) -> None:
        """Let these urgent sequences, each of which lacks one token, compute it: `take` for each, before any prompt."""
        assert self._urgent is None, "an urgent sequence asks after bulk"
        assert self._prompt_tokens is None, "a decode asks after prompts"
        taken = sequences[: self._num_left]
        self.grants += [Grant(sequence, 1) for sequence in taken]
        self._counts = self._counts.plus_rows(len(taken))

    def decoding(self, *, is_bulk: bool) -> list[Sequence]:
        """Those of bulk, or of the urgent ones, that decode in this step."""
        if is_bulk and not self._num_bulk:
            return []
        sequences = [grant.sequence for grant in self.grants]
        return [s for s in sequences if s.is_decoding and (s.request.lane is Lane.BULK) is is_bulk]

    @property
    def num_drafts(self) -> int:
        """Drafts in the step."""
        return sum([len(grant.drafts) for grant in self.grants])

    def draft_room(self, most: int, *, is_bulk: bool, is_trial: bool = False) -> DraftRoom:
        """What drafts of bulk, or of urgent sequences, at most `most`, may add to the step as it is now.

        Of the tokens left they get half, so that prompts go on. `is_trial`: whether they seem worth it or not.
        """
        objective_s = self._guard.objective_s(self._urgent) if self._urgent is not None else None
        if not is_bulk:
            limit_s = self._guard.draft_step_s(self._counts)
        else:
            limit_s = self._guard.bulk_step_s() if objective_s is None else objective_s
        return DraftRoom(self._guard, self._counts, limit_s, min(most, self._num_left // 2), is_trial=is_trial)

    def draft(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        """Let a decoding sequence have these drafts verified too, as a `DraftRoom` has allowed."""
        index = next(index for index, grant in enumerate(self.grants) if grant.sequence is sequence)
        assert not self.grants[index].drafts, f"sequence {sequence.id} has drafts already"
        self.grants[index] = replace(self.grants[index], drafts=drafts)
        self._counts = self._counts.plus_rows(len(drafts))

    def can_seat(self, lane: Lane) -> bool:
        """Whether a newcomer of this lane, with a prompt of some length, would get tokens."""
        return (self._bulk_room(_FEWEST_PROMPT_TOKENS) if lane is Lane.BULK else self._left_to_prompts()) > 0

    def save_s(self, num_decoding: int, *, has_prompts: bool) -> float:
        """How long saves to host memory may take in this step; of urgent sequences, as in `LatencyGuard.save_s`."""
        return self._guard.save_s(num_decoding, has_prompts=has_prompts)

    def charge(self, copy_s: float) -> None:
        """Copies take so many seconds of the step: less is left to prompts and bulk."""
        if copy_s == 0:
            return
        self._guard = replace(self._guard, copy_s=self._guard.copy_s + copy_s)
        if self._prompt_tokens is not None:
            most = self._prompt_tokens + self._num_prompt_tokens
            self._prompt_tokens = max(0, self._allowed_prompt_tokens(most) - self._num_prompt_tokens)

    def rest(self, turn: Turn) -> None:
        """Those that decode rest in this step: urgent prompts have it. Before anyone asks."""
        self._turn = turn

    def wake(self) -> None:
        """Nobody rests: no prompt took anything."""
        assert not self.grants, "prompts have the step already"
        self._turn = self._prompt_tokens = None

    def lift(self) -> None:
        """Let the next bulk sequence that asks have the smallest share, in spite of the objective."""
        self._is_lifting = True

    def outlook(self, num_seated_bulk: int) -> StepOutlook:
        """The step as filled. Nobody may ask any more."""
        urgent = self._urgent if self._urgent is not None else self._counts
        objective_s = self._guard.objective_s(urgent)
        return StepOutlook(
            lanes=tuple(grant.sequence.request.lane for grant in self.grants),
            cost=self._guard.cost,
            modelled_s=self._guard.seconds(self._counts),
            modelled_urgent_s=self._guard.seconds(urgent) if objective_s is not None else 0.0,
            objective_s=objective_s,
            bulk_left_out=num_seated_bulk - self._num_bulk if objective_s is not None else 0,
            is_lifted=self._is_lifted,
            copy_s=self._guard.copy_s,
        )

    @property
    def _num_left(self) -> int:
        return self._max_tokens - self._counts.rows - self._counts.prefill_tokens

    def _urgent_room(self, wanted: int) -> int:
        assert self._urgent is None, "an urgent sequence asks after bulk"
        if wanted == 1 and self._prompt_tokens is None:
            return min(1, self._num_left)
        return min(wanted, self._left_to_prompts())

    def _left_to_prompts(self) -> int:
        if self._prompt_tokens is None:
            self._decoding = self._counts
            self._prompt_tokens = self._allowed_prompt_tokens(self._num_left)
        return self._prompt_tokens

    def _allowed_prompt_tokens(self, most: int) -> int:
        """To urgent prompts together."""
        if self._turn is None:
            return self._guard.urgent_prompt_tokens(self._decoding, most)
        resting = StepCounts(self._turn.num_resting)
        return self._guard.turn_tokens(resting, most, self._turn.num_overtaken)

    def _bulk_room(self, wanted: int) -> int:
        if self._urgent is None:
            self._urgent = self._counts
        most = min(wanted, self._num_left)
        if most < 1 or len(self.grants) >= self._max_rows:
            return 0
        settings = self._guard.settings
        if self._is_lifting:
            return min(most, settings.min_chunk_tokens)
        objective_s = self._guard.objective_s(self._urgent)
        if objective_s is not None:
            within = self._guard.tokens_within(objective_s, self._counts, most)
            return within if within >= min(most, _FEWEST_PROMPT_TOKENS) else 0
        if wanted == 1:
            return 1
        within = self._guard.tokens_within(self._guard.bulk_step_s(), self._counts, most)
        return max(min(most, settings.bulk_chunk_tokens), within) if self._counts.prefill_tokens == 0 else within
