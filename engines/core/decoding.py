"""What a step's logits make of its rows: a token each or, where drafts were computed along, as many as hold.

Exact: at each position the token is drawn as it would be without drafts, by the same logits and the same random number
(which depends on seed and position only); a draft holds if it is the token drawn. So a request's output does not depend
on whether anything was drafted, and its distribution is the model's.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np

from engines.core.grammar import GrammarFault
from engines.core.masking import RowMasks
from engines.core.plan import EngineFault, Logits
from engines.core.sampling import Sampled, SamplingRow, sample_token

# Of one row: at least one token, all but the last of them drafts; or why its grammar allows none.
Decoded = tuple[Sampled, ...] | GrammarFault


def decode(
    logits: Logits, rows: SequenceOf[SamplingRow], masks: SequenceOf[RowMasks], eos_ids: frozenset[int]
) -> list[Decoded]:
    """The tokens of each row by its sequence's sampling parameters.

    `logits`: (rows and drafts together, vocab) float32, not changed; of each row first those before its drafts.
    Raises `EngineFault` if any holds no finite maximum: the device computed nonsense.
    """
    assert len(logits) == len(rows) + sum([len(row.drafts) for row in rows]), "logits for each row and draft"
    if not rows:
        return []
    # Greedy and untouched rows, the common case of batch work, need this one call and no copy. NaN wins an argmax.
    indices = logits.argmax(axis=1)
    if not np.isfinite(logits[np.arange(len(indices)), indices]).all():
        raise EngineFault("the logits are not numbers")
    best: list[int] = indices.tolist()
    decoded: list[Decoded] = []
    start = 0
    for row, row_masks in zip(rows, masks, strict=True):
        if row_masks is None and not row.drafts and row.sequence.takes_best:
            decoded.append((Sampled(best[start]),))
            start += 1
            continue
        end = start + 1 + len(row.drafts)
        decoded.append(_decode_row(logits[start:end], best[start:end], row, row_masks, eos_ids))
        start = end
    return decoded


def _decode_row(logits: Logits, best: list[int], row: SamplingRow, masks: RowMasks, eos_ids: frozenset[int]) -> Decoded:
    if isinstance(masks, GrammarFault):
        return masks
    sampled: list[Sampled] = []
    for index in range(len(best) if masks is None else len(masks)):
        mask = masks[index] if masks is not None else None
        try:
            sampled.append(sample_token(logits[index], best[index], row.after(index), mask, eos_ids))
        except GrammarFault as fault:
            return tuple(sampled) or fault
        if index < len(row.drafts) and sampled[-1].token != row.drafts[index]:
            break
    return tuple(sampled)
