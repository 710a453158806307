"""What a sequence makes of the tokens that a step yielded: which of them it keeps, and whether they end it. Pure."""

from dataclasses import dataclass

from engines.core.decoding import Decoded
from engines.core.grammar import GrammarFault
from engines.core.sampling import Sampled
from engines.core.sequence import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class Booked:
    """`sampled`: tokens that the sequence has now. `reason`: why it is over, None if it is not.

    `stop_token`: the last of them, if it ended the sequence. `error`: a sentence, with ERROR.
    """

    sampled: tuple[Sampled, ...]
    reason: FinishReason | None = None
    stop_token: int | None = None
    error: str = ""


def book(sequence: Sequence, decoded: Decoded, eos_ids: frozenset[int]) -> Booked:
    """Append tokens until one ends the sequence: an end or stop token, the last one allowed, the end of its grammar."""
    if isinstance(decoded, GrammarFault):
        return Booked((), FinishReason.ERROR, error=str(decoded))
    for index, sampled in enumerate(decoded):
        kept = decoded[: index + 1]
        sequence.tokens.append(sampled.token)
        try:
            reason = _ending(sequence, sampled.token, eos_ids)
        except GrammarFault as fault:
            return Booked(kept, FinishReason.ERROR, error=str(fault))
        if reason is not None:
            is_stop = reason is FinishReason.STOP and _is_end(sequence, sampled.token, eos_ids)
            return Booked(kept, reason, sampled.token if is_stop else None)
    return Booked(decoded)


def _ending(sequence: Sequence, token: int, eos_ids: frozenset[int]) -> FinishReason | None:
    """Why the sequence is over with this token; its grammar goes on by it."""
    if _is_end(sequence, token, eos_ids):
        return FinishReason.STOP
    if sequence.grammar is not None:
        sequence.grammar.accept(token)
        if sequence.grammar.is_finished:
            return FinishReason.STOP
    return FinishReason.LENGTH if len(sequence.tokens) >= sequence.max_length else None


def _is_end(sequence: Sequence, token: int, eos_ids: frozenset[int]) -> bool:
    sampling = sequence.request.sampling
    return (token in eos_ids and not sampling.ignore_eos) or token in sampling.stop_token_ids
