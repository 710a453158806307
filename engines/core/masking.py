"""Grammar masks, filled in a thread of their own while the device computes.

What comes next in a grammar depends on tokens that are known when a step is planned, so the masks of a step need not
wait for its logits. Compiled grammars let other threads run while they think; the device does too.
"""

import contextlib
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from engines.core.grammar import GrammarFault, GrammarState, Mask, mask_words
from engines.core.sampling import SamplingRow

# Of one row: a mask for each of its positions, or for the first of them; a fault; None where nothing is masked.
RowMasks = list[Mask] | GrammarFault | None


class PendingMasks:
    """Masks on their way, or there at once: `masks` where nothing is to be filled."""

    __slots__ = ("_future", "_masks")

    def __init__(self, masks: list[RowMasks], future: Future[list[RowMasks]] | None = None) -> None:
        self._masks = masks
        self._future = future

    def wait(self) -> list[RowMasks]:
        """One entry for each sampling row. The states are as they were and may be used again."""
        return self._masks if self._future is None else self._future.result()


class MaskFiller:
    """Fills the masks of one step at a time. Starts its thread with the first grammar."""

    def __init__(self, vocab_size: int) -> None:
        self._num_words = mask_words(vocab_size)
        self._pool: ThreadPoolExecutor | None = None

    def start(self, rows: SequenceOf[SamplingRow]) -> PendingMasks:
        """Begin with the masks of these rows. Until they were waited for their grammars' states are not touched."""
        if all([row.sequence.grammar is None for row in rows]):  # noqa: C419  # a generator costs more than some rows
            return PendingMasks([None] * len(rows))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="masks")
        return PendingMasks([], self._pool.submit(self._fill, rows))

    def close(self) -> None:
        """End the thread. May be repeated."""
        if self._pool is not None:
            self._pool.shutdown()

    def _fill(self, rows: SequenceOf[SamplingRow]) -> list[RowMasks]:
        return [
            None if row.sequence.grammar is None else fill_row(row.sequence.grammar, row.drafts, self._num_words)
            for row in rows
        ]


def fill_row(state: GrammarState, drafts: SequenceOf[int], num_words: int) -> list[Mask] | GrammarFault:
    """A mask for the next token and for the one after each of `drafts`, as far as the grammar goes with them."""
    masks: list[Mask] = []
    num_accepted = 0
    try:
        for draft in (*drafts, None):
            mask = np.empty(num_words, np.uint32)
            state.fill(mask)
            masks.append(mask)
            if draft is None:
                break
            state.accept(draft)
            num_accepted += 1
            if state.is_finished:
                break
    except GrammarFault as fault:
        if not masks:
            return fault
    finally:
        # A state that exceeded a bound cannot go back; it says so again when the next token is accepted.
        with contextlib.suppress(GrammarFault):
            state.rollback(num_accepted)
    return masks
