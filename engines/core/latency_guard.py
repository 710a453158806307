"""How long a step may take, given who is in it: the rules by which bulk and prompts give way. Pure arithmetic.

Knows counts and a step-cost model, no sequences. Counts follow the model: a sequence that computes one token in a step
is a *row*, the tokens of one that computes several are *prefill tokens*. Interactive and standard are *urgent* here.
With a model that knows nothing (all zero) every step takes no time, hence nothing gives way.
"""

import math
from dataclasses import dataclass

from engines.step_cost import StepCost

# Measured in virtual time (docs/design/006): steps of three times the fixed cost lose 1% of bulk's output when some of
# it decodes, and a quarter of its prefill when none does; a newcomer's TTFT stays within 1.1 times that without bulk.
_BULK_STEP_S, _BULK_STEP_BASES = 0.03, 3.0
# Prompts beside urgent decodes: shorter steps would be more steps, and more gaps would be long; measured likewise.
_PROMPT_STEP_S, _PROMPT_STEP_BASES, _PROMPT_GROWTH = 0.05, 4.0, 2.0
# Drafts of one urgent sequence make others wait, who get nothing for it; chosen.
_DRAFT_GROWTH = 1.5
# Where they take turns: what is over with one prompt, or a stream that goes on at four tokens a second; chosen.
_TURN_TOKENS, _TURN_S = 128, 0.25
# Of those that came together the first is not to run away from the last: a large crowd is read in longer turns, but
# nobody's text stands still for longer than this. Measured (docs/design/006): turns of 250 ms cost 16 at once 3 %.
_CROWD_TURNS, _CROWD_TURN_S = 8, 0.5
_SAVE_SHARE = 0.25  # of the time that prompts, or bulk alone, may have in a step; chosen


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """What urgent sequences are promised.

    `itl_p95_s`: gap between an urgent sequence's tokens that bulk may cause; None: `bulk_growth` times the gap without
    bulk. `max_step_s`: longest step into which bulk prompts are cut, hence the longest wait of an urgent newcomer;
    None: the objective or, without one, three times a step's fixed cost, at least 30 ms. `min_chunk_tokens`: an urgent
    prompt that goes on at all beside those that decode goes on by so many tokens. `bulk_chunk_tokens`: the same of a
    bulk prompt where nobody urgent is there; fewer, as whoever arrives waits out the step. `bulk_patience_s`: for so
    long the whole bulk lane may be left out, then one row or `min_chunk_tokens` of it go in, in spite of the objective.

    NOTE: what is promised is a gap of 1.15 times that without bulk. One step may grow by less, since in longer steps
    urgent sequences stay longer, hence are more. p95 of the gap grew up to 1.20 times at 1.15, 1.13 at 1.12 and 1.05 at
    1.05; bulk then makes 0.96 to 1.4 times what the free time would give it (docs/design/006).
    """

    itl_p95_s: float | None = None
    max_step_s: float | None = None
    bulk_growth: float = 1.05
    min_chunk_tokens: int = 32
    bulk_chunk_tokens: int = 8
    bulk_patience_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that make no sense."""
        if any(bound is not None and not 0 < bound < float("inf") for bound in (self.itl_p95_s, self.max_step_s)):
            raise ValueError("itl_p95_s and max_step_s must be more than 0 seconds")
        if min(self.bulk_growth, self.min_chunk_tokens, self.bulk_chunk_tokens) < 1 or self.bulk_patience_s < 0:
            raise ValueError("bulk_growth and the chunks must be at least 1, bulk_patience_s at least 0")


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What is in a step, as the cost model counts it."""

    rows: int = 0
    prefill_tokens: int = 0

    def plus(self, num_tokens: int) -> "StepCounts":
        """With one more sequence that computes `num_tokens` (0: the same)."""
        if num_tokens == 1:
            return StepCounts(self.rows + 1, self.prefill_tokens)
        return StepCounts(self.rows, self.prefill_tokens + num_tokens)

    def plus_rows(self, num_rows: int) -> "StepCounts":
        """With so many more rows: sequences that decode, or drafts of those."""
        return StepCounts(self.rows + num_rows, self.prefill_tokens)


@dataclass(frozen=True, slots=True)
class LatencyGuard:
    """The settings applied to what a step is believed to cost now.

    `copy_s`: seconds that copies to and from host memory take in this step, whatever else is in it.
    """

    settings: LatencySettings
    cost: StepCost
    copy_s: float = 0.0

    def seconds(self, counts: StepCounts) -> float:
        """Modelled duration of a step."""
        return self.copy_s + self.cost.seconds(counts.rows, counts.prefill_tokens)

    def objective_s(self, urgent: StepCounts) -> float | None:
        """The most that a step with these urgent ones may take with bulk; None, no bound, if there are none.

        A step with an urgent prompt has no time to give: what bulk took of it would be added to a TTFT.
        """
        alone_s = self.seconds(urgent)
        if urgent == StepCounts():
            return None
        if urgent.prefill_tokens > 0:
            return alone_s
        return self.settings.bulk_growth * alone_s if self.settings.itl_p95_s is None else self.settings.itl_p95_s

    def draft_step_s(self, decoding: StepCounts) -> float:
        """The longest that drafts may make a step in which these urgent sequences decode; no bound for one alone."""
        if self.settings.itl_p95_s is not None:
            return self.settings.itl_p95_s
        return math.inf if decoding.rows <= 1 else _DRAFT_GROWTH * self.seconds(decoding)

    def bulk_step_s(self) -> float:
        """The longest step, decodes apart, while only bulk is there: whoever arrives meanwhile waits it out."""
        settings = self.settings
        if settings.max_step_s is not None:
            return settings.max_step_s
        if settings.itl_p95_s is not None:
            return settings.itl_p95_s
        return max(_BULK_STEP_S, _BULK_STEP_BASES * self.cost.base_s)

    def urgent_prompt_tokens(self, decoding: StepCounts, most: int) -> int:
        """Prompt tokens of urgent sequences beside those urgent ones that decode, at most `most`.

        Alone, prompts may take it all. Else the step keeps to `itl_p95_s` or, without, to 50 ms, four times its fixed
        cost or twice what the decoding ones take alone, whichever is longest. The smallest chunk goes in always, so
        that TTFT does not starve.
        """
        if decoding.rows == 0:
            return most
        limit_s = self._prompt_step_s(decoding)
        return min(most, max(self.settings.min_chunk_tokens, self.tokens_within(limit_s, decoding, most)))

    def turn_tokens(self, resting: StepCounts, most: int, num_overtaken: int) -> int:
        """Prompt tokens of urgent sequences in a step of their own, while those that decode rest; at most `most`.

        The gap of these is their own step and this one. It keeps to what `urgent_prompt_tokens` allows or, without
        `itl_p95_s`, to 128 tokens within 250 ms, if that is longer. Where prompts were overtaken (`num_overtaken`
        tokens of them), to an eighth of the time that all of them take, at least 250 ms and at most 500.
        """
        if self.settings.itl_p95_s is not None:
            return self.urgent_prompt_tokens(resting, most)
        turn_s = min(_TURN_S, self.seconds(resting.plus(_TURN_TOKENS)))
        if num_overtaken:
            crowd_s = self.seconds(StepCounts(prefill_tokens=num_overtaken))
            turn_s = max(_TURN_S, min(crowd_s / _CROWD_TURNS, _CROWD_TURN_S))
        limit_s = max(self._prompt_step_s(resting), turn_s)
        return min(most, max(self.settings.min_chunk_tokens, self.tokens_within(limit_s, resting, most)))

    def save_s(self, num_decoding: int, *, has_prompts: bool) -> float:
        """How long saves to host memory may take in a step in which so many urgent sequences decode.

        `has_prompts`: urgent ones are there too, or wait. A share of what prompts may add to the step, which have so
        much less of it. Decodes alone have no time to give, unless `itl_p95_s` leaves some. Without urgent ones a share
        of bulk's step.
        """
        if self.cost == StepCost():
            return math.inf
        decoding = StepCounts(num_decoding)
        if not num_decoding and not has_prompts:
            return _SAVE_SHARE * self.bulk_step_s()
        limit_s = self._prompt_step_s(decoding) if has_prompts else self.settings.itl_p95_s or 0.0
        return _SAVE_SHARE * max(0.0, limit_s - self.seconds(decoding))

    def _prompt_step_s(self, decoding: StepCounts) -> float:
        """The longest step with urgent prompts beside urgent decodes."""
        if self.settings.itl_p95_s is not None:
            return self.settings.itl_p95_s
        by_device = max(_PROMPT_STEP_S, _PROMPT_STEP_BASES * self.cost.base_s)
        return max(by_device, _PROMPT_GROWTH * self.cost.seconds(decoding.rows, decoding.prefill_tokens))

    def tokens_within(self, limit_s: float, counts: StepCounts, most: int) -> int:
        """How many tokens of one more sequence, 0 to `most`, keep a step that holds `counts` within `limit_s`."""
        if most < 1:
            return 0
        fewest = 1 if self.seconds(counts.plus(1)) <= limit_s else 0
        low, high = 1, most  # of several; a row is not the same as a prefill token
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(counts.plus(middle)) <= limit_s:
                low = middle
            else:
                high = middle - 1
        return low if low > 1 else fewest
