"""One step being filled: how many tokens of which sequence still go in. Pure.

The order of asking is the caller's: urgent decodes, urgent prompts, then bulk. Each sequence gets at most one grant.
Urgent decodes always go in, urgent prompts as far as the guard lets them grow the step; bulk only as far as the step
stays within the objective or, where nobody urgent is in it, within a short step.
"""

from dataclasses import dataclass

from engines.core.latency_guard import LatencyGuard, StepCounts
from engines.core.outlook import StepOutlook
from engines.core.plan import Row
from engines.core.sequence import Sequence
from policies.lane import Lane

# Of a bulk prompt beside urgent decodes. A device takes a token or two no faster than as many rows, whatever a model
# that is linear in prefill tokens says; chosen.
_FEWEST_PROMPT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Grant:
    """`num_tokens` of a sequence's uncomputed tokens are computed in this step."""

    sequence: Sequence
    num_tokens: int

    def row(self) -> Row:
        """The grant as the runner sees it, before anything of it is computed."""
        sequence, start = self.sequence, self.sequence.num_computed
        assert sequence.slot is not None, f"sequence {sequence.id} is in a step without a slot"
        return Row(
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start : start + self.num_tokens]),
            samples=self.num_tokens == sequence.num_uncomputed,
            blocks=tuple(sequence.blocks),
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

    def can_seat(self, lane: Lane) -> bool:
        """Whether a newcomer of this lane, with a prompt of some length, would get tokens."""
        return (self._bulk_room(_FEWEST_PROMPT_TOKENS) if lane is Lane.BULK else self._left_to_prompts()) > 0

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
            self._prompt_tokens = self._guard.urgent_prompt_tokens(self._counts, self._num_left)
        return self._prompt_tokens

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
