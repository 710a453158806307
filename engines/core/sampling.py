"""Tokens from logits, in numpy.

The order is a contract with users: (1) logprobs are taken from the raw float32 logits; (2) end and stop tokens are
barred until `min_tokens`; (3) logit bias; (4) repetition penalty over prompt and output, then frequency and presence
penalties over output; (5) temperature 0 takes the best token; (6) temperature; (7) top-k; (8) top-p among those left;
(9) min-p; (10) one draw. The draw's random number depends on seed and position only, so a request that was preempted
or batched with others draws the same. Parameters are believed here; the worker has checked them.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.core.plan import EngineFault, Logits
from engines.core.sequence import SamplingParams, Sequence, TokenLogprob

Vector = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.intp]

_STRETCH = 256  # weights summed at once in a draw: about the square root of a vocabulary


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token, with its logprobs if they were asked for."""

    token: int
    logprob: TokenLogprob | None = None


def sample(logits: Logits, sequences: SequenceOf[Sequence], eos_ids: frozenset[int]) -> list[Sampled]:
    """One token for each row of `logits` ((n, vocab) float32, not changed) by its sequence's sampling parameters.

    Raises `EngineFault` if a row holds no finite maximum: the device computed nonsense.
    """
    assert len(logits) == len(sequences), "a row of logits for each sampling sequence"
    if not sequences:
        return []
    # Greedy and untouched rows, the common case of batch work, need this one call and no copy. NaN wins an argmax.
    best = logits.argmax(axis=1)
    if not np.isfinite(logits[np.arange(len(best)), best]).all():
        raise EngineFault("the logits are not numbers")
    return [
        _sample_row(row, int(token), sequence, eos_ids)
        for row, token, sequence in zip(logits, best, sequences, strict=True)
    ]


def _sample_row(row: Vector, best: int, sequence: Sequence, eos_ids: frozenset[int]) -> Sampled:
    params = sequence.request.sampling
    adjusted = _adjust(row, sequence, eos_ids)
    if params.temperature == 0:
        token = best if adjusted is row else int(adjusted.argmax())
    else:
        token = _draw(adjusted, params, _uniform(sequence.seed, len(sequence.tokens)))
    logprob = _logprob(row, token, params.logprobs) if params.logprobs is not None else None
    return Sampled(token, logprob)


def _adjust(row: Vector, sequence: Sequence, eos_ids: frozenset[int]) -> Vector:
    """Steps 2 to 4: the row itself if none applies, else a changed copy."""
    params = sequence.request.sampling
    bars_end = sequence.num_output < params.min_tokens
    penalises_output = params.frequency_penalty != 0 or params.presence_penalty != 0
    if not (bars_end or params.logit_bias or penalises_output or params.repetition_penalty != 1):
        return row
    adjusted = row.copy()
    if bars_end:
        adjusted[sorted(eos_ids | params.stop_token_ids)] = -np.inf
    for token, bias in params.logit_bias:
        adjusted[token] += bias
    if params.repetition_penalty != 1:
        seen = np.unique(np.array(sequence.tokens, dtype=np.intp))
        values = adjusted[seen]
        adjusted[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if penalises_output and sequence.num_output:
        output = np.array(sequence.tokens[sequence.num_prompt :], dtype=np.intp)
        seen, counts = np.unique(output, return_counts=True)
        adjusted[seen] -= params.frequency_penalty * counts.astype(np.float32) + params.presence_penalty
    return adjusted


def _draw(row: Vector, params: SamplingParams, uniform: float) -> int:
    """Steps 6 to 10: a token by inverse distribution function at `uniform`, in [0, 1)."""
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
