"""Tokens from logits, in numpy.

The order is a contract with users: (1) logprobs are taken from the raw float32 logits; (2) what the grammar does not
allow is barred; (3) end and stop tokens are barred until `min_tokens`; (4) logit bias; (5) repetition penalty over
prompt and output, then frequency and presence penalties over output; (6) temperature 0 takes the best token; (7)
temperature; (8) top-k; (9) top-p among those left; (10) min-p; (11) one draw. The draw's random number depends on seed
and position only, so a request that was preempted, batched with others or drafted ahead draws the same. Parameters are
believed here; the worker has checked them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.core.grammar import GrammarFault, Mask
from engines.core.sequence import SamplingParams, Sequence, TokenLogprob

Vector = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.intp]

_STRETCH = 256  # weights summed at once in a draw: about the square root of a vocabulary


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token, with its logprobs if they were asked for."""

    token: int
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """A sequence that wants a token, and guesses at its next tokens, each of which has logits behind it."""

    sequence: Sequence
    drafts: tuple[int, ...] = ()

    def after(self, num_drafts: int) -> "SamplingRow":
        """The same with the drafts that come before the position behind `num_drafts` of them."""
        return self if num_drafts == len(self.drafts) else SamplingRow(self.sequence, self.drafts[:num_drafts])

    @property
    def num_output(self) -> int:
        """Output tokens, drafts included."""
        return self.sequence.num_output + len(self.drafts)

    @property
    def position(self) -> int:
        """Tokens, drafts included: where the next one stands."""
        return len(self.sequence.tokens) + len(self.drafts)

    def tokens(self, start: int = 0) -> Tokens:
        """Tokens from `start` on, drafts included."""
        return np.array(self.sequence.tokens[start:] + list(self.drafts), dtype=np.intp)


def sample_token(row: Vector, best: int, context: SamplingRow, mask: Mask | None, eos_ids: frozenset[int]) -> Sampled:
    """The token after `context` (all of its drafts taken for real), by its sequence's sampling parameters.

    `row`: (vocab,) float32, not changed, with its maximum at `best`. `mask`: the tokens that a grammar allows. Raises
    `GrammarFault` if the model gives all of those no chance.
    """
    params = context.sequence.request.sampling
    adjusted = _adjust(row, context, mask, eos_ids)
    if params.temperature == 0:
        token = best if adjusted is row else int(adjusted.argmax())
    else:
        token = _draw(adjusted, params, _uniform(context.sequence.seed, context.position))
    logprob = _logprob(row, token, params.logprobs) if params.logprobs is not None else None
    return Sampled(token, logprob)


def _adjust(row: Vector, context: SamplingRow, mask: Mask | None, eos_ids: frozenset[int]) -> Vector:
    """Steps 2 to 5: the row itself if none applies, else a changed copy."""
    params = context.sequence.request.sampling
    bars_end = context.num_output < params.min_tokens
    penalises_output = params.frequency_penalty != 0 or params.presence_penalty != 0
    if mask is None:
        if not (bars_end or params.logit_bias or penalises_output or params.repetition_penalty != 1):
            return row
        adjusted = row.copy()
    else:
        adjusted = _masked(row, mask)
    if bars_end:
        _bar(adjusted, sorted(eos_ids | params.stop_token_ids), is_masked=mask is not None)
    for token, bias in params.logit_bias:
        adjusted[token] += bias
    if params.repetition_penalty != 1:
        seen = np.unique(context.tokens())
        values = adjusted[seen]
        adjusted[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if penalises_output and context.num_output:
        seen, counts = np.unique(context.tokens(context.sequence.num_prompt), return_counts=True)
        adjusted[seen] -= params.frequency_penalty * counts.astype(np.float32) + params.presence_penalty
    return adjusted


def _masked(row: Vector, mask: Mask) -> Vector:
    """A copy in which only what the mask allows has a chance."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little").view(np.bool_)
    masked = np.where(allowed, row, np.float32(-np.inf))
    if masked.max() == -np.inf:
        raise GrammarFault("The model can write nothing that the grammar allows here.")
    return masked


def _bar(row: Vector, tokens: list[int], *, is_masked: bool) -> None:
    """Give `tokens` no chance, unless a grammar allows nothing else: then it ends although it is early."""
    before = row[tokens]
    row[tokens] = -np.inf
    if is_masked and row.max() == -np.inf:
        row[tokens] = before


def _draw(row: Vector, params: SamplingParams, uniform: float) -> int:
    """Steps 7 to 11: a token by inverse distribution function at `uniform`, in [0, 1)."""
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
        scaled = (row - row.max()) / np.float32(params.temperature)
    tokens: Tokens | None = None
    if 0 < params.top_k < len(scaled):
        tokens = np.flatnonzero(scaled >= np.partition(scaled, -params.top_k)[-params.top_k])
    weights = np.exp(scaled if tokens is None else scaled[tokens])
    if params.top_p < 1:
        tokens, weights = _nucleus(weights, tokens, params.top_p)
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p * weights.max())
        tokens, weights = kept if tokens is None else tokens[kept], weights[kept]
    index = _pick(weights, uniform)
    return index if tokens is None else int(tokens[index])


def _pick(weights: Vector, uniform: float) -> int:
    """The index at which the running share of `weights` passes `uniform`, in [0, 1).

    In two levels, stretch and place in it: running sums over a whole vocabulary would take most of a draw's time.
    """
    starts = np.arange(0, len(weights), _STRETCH)
    sums = np.add.reduceat(weights, starts, dtype=np.float64)
    before = np.concatenate(((0.0,), np.cumsum(sums)))
    target = min(uniform * before[-1], np.nextafter(before[-1], 0))
    stretch = int(np.searchsorted(before, target, side="right")) - 1
    here = weights[starts[stretch] : starts[stretch] + _STRETCH]
    place = int(np.searchsorted(np.cumsum(here, dtype=np.float64), target - before[stretch], side="right"))
    # Sums in two orders may differ in the last bit: past the end means the last place that has any weight.
    return int(starts[stretch]) + min(place, int(np.flatnonzero(here)[-1]))


def _nucleus(weights: Vector, tokens: Tokens | None, top_p: float) -> tuple[Tokens, Vector]:
    """The fewest best tokens whose share is at least `top_p`, best first; at least one.

    Sorting the vocabulary would cost milliseconds. Tokens with a share below (1 - top_p) / n have less than
    1 - top_p together, hence none of them is in the nucleus: only the others are sorted.
    """
    total = weights.sum(dtype=np.float64)
    likely = np.flatnonzero(weights >= total * (1 - top_p) / len(weights) * 0.999)  # 0.999: rounding errs to keep
    order = likely[np.argsort(-weights[likely], kind="stable")]
    shares = np.cumsum(weights[order], dtype=np.float64)
    kept = order[: int(np.searchsorted(shares, top_p * total)) + 1]
    return kept if tokens is None else tokens[kept], weights[kept]


def _uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of this seed at this position: counter-based, so it has no history."""
    key = np.array([seed, position], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def _logprob(row: Vector, token: int, num_top: int) -> TokenLogprob:
    """Step 1, for a row that wants it. NOTE: by the raw logits, so a barred token still shows its own."""
    best = float(row.max())
    norm = best + float(np.log(np.exp(row - best).sum(dtype=np.float64)))
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        ids = np.argpartition(row, -min(num_top, len(row)))[-num_top:]
        ranked = sorted(((int(i), float(row[i]) - norm) for i in ids), key=lambda pair: (-pair[1], pair[0]))
        top = tuple(ranked)
    return TokenLogprob(token, float(row[token]) - norm, top)
