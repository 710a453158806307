"""What a step brought to a sequence, as the API half gets to see it."""

from engines.core.booking import Booked
from engines.core.sequence import FinishReason, Sequence, SequenceDelta, TokenLogprob


def delta_of(sequence: Sequence, booked: Booked) -> SequenceDelta:
    """The delta of a sequence that has just been given what was booked (already among its tokens)."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    if sequence.request.sampling.logprobs is not None:
        logprobs = tuple(sampled.logprob for sampled in booked.sampled if sampled.logprob is not None)
    return SequenceDelta(
        request_id=sequence.id,
        token_ids=tuple([sampled.token for sampled in booked.sampled]),
        prompt_tokens=sequence.num_prompt,
        cached_tokens=sequence.cached_tokens or 0,
        num_output=sequence.num_output,
        logprobs=logprobs,
        finish_reason=booked.reason,
        stop_token=booked.stop_token,
        error=booked.error,
    )


def end_of(sequence: Sequence, reason: FinishReason, error: str = "") -> SequenceDelta:
    """The delta of a sequence that ended without a token."""
    return delta_of(sequence, Booked((), reason, error=error))
