"""What a step brought to a sequence, as the API half gets to see it."""

from engines.core.sampling import Sampled
from engines.core.sequence import FinishReason, Sequence, SequenceDelta


def delta_of(
    sequence: Sequence, sampled: Sampled | None, reason: FinishReason | None = None, error: str = ""
) -> SequenceDelta:
    """The delta of a sequence that has just been given `sampled` (already among its tokens), or ended without."""
    wants_logprobs = sequence.request.sampling.logprobs is not None
    logprobs = (sampled.logprob,) if sampled is not None and sampled.logprob is not None else ()
    return SequenceDelta(
        request_id=sequence.id,
        token_ids=(sampled.token,) if sampled is not None else (),
        prompt_tokens=sequence.num_prompt,
        cached_tokens=sequence.cached_tokens or 0,
        num_output=sequence.num_output,
        logprobs=logprobs if wants_logprobs else None,
        finish_reason=reason,
        stop_token=sampled.token if sampled is not None and reason is FinishReason.STOP else None,
        error=error,
    )
