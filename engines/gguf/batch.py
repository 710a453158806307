"""One step's tokens, written into the arrays that `llama_decode` reads.

The arrays are numpy memory that the C struct points into, so a step is a few vector writes whatever its length.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from engines.core.plan import Row
from engines.gguf.library import Library


class StepBatch:
    """A `llama_batch` for at most `max_tokens` tokens, each in one sequence. Reused by every step."""

    def __init__(self, library: Library, max_tokens: int) -> None:
        ffi = library.ffi
        self.tokens = np.zeros(max_tokens, np.int32)
        self.positions = np.zeros(max_tokens, np.int32)
        self.slots = np.zeros(max_tokens, np.int32)
        self.wants_logits = np.zeros(max_tokens, np.int8)
        self._slots_per_token = np.ones(max_tokens, np.int32)
        # One pointer per token, each at its own entry of `slots`; written once, the entries change.
        self._slot_pointers = self.slots.ctypes.data + np.arange(max_tokens, dtype=np.uintp) * self.slots.itemsize
        self.struct: Any = ffi.new("struct llama_batch *")
        self.struct.token = ffi.from_buffer("llama_token *", self.tokens)
        self.struct.pos = ffi.from_buffer("llama_pos *", self.positions)
        self.struct.n_seq_id = ffi.from_buffer("int32_t *", self._slots_per_token)
        self.struct.seq_id = ffi.cast("llama_seq_id **", ffi.from_buffer(self._slot_pointers))
        self.struct.logits = ffi.from_buffer("int8_t *", self.wants_logits)

    def fill(self, rows: Sequence[Row]) -> int:
        """Write `rows`, not empty, one after the other; the number of tokens whose logits are wanted."""
        num_rows = len(rows)
        if all([len(row.tokens) == row.num_samples == 1 for row in rows]):  # noqa: C419  # a generator costs more
            return self._fill_decodes(rows)
        lengths = np.fromiter((len(row.tokens) for row in rows), np.int32, num_rows)
        ends = np.cumsum(lengths, dtype=np.int32)
        total = int(ends[-1])
        starts = np.fromiter((row.start for row in rows), np.int32, num_rows)
        slots = np.fromiter((row.slot for row in rows), np.int32, num_rows)
        num_samples = np.fromiter((row.num_samples for row in rows), np.int32, num_rows)
        self.tokens[:total] = np.fromiter(chain.from_iterable(row.tokens for row in rows), np.int32, total)
        indices = np.arange(total, dtype=np.int32)
        self.positions[:total] = indices + np.repeat(starts - (ends - lengths), lengths)
        self.slots[:total] = np.repeat(slots, lengths)
        self.wants_logits[:total] = indices >= np.repeat(ends - num_samples, lengths)
        self.struct.n_tokens = total
        return int(num_samples.sum())

    def _fill_decodes(self, rows: Sequence[Row]) -> int:
        """The commonest step, one sampled token in every row, without the arithmetic of longer ones."""
        num_rows = len(rows)
        self.tokens[:num_rows] = [row.tokens[0] for row in rows]
        self.positions[:num_rows] = [row.start for row in rows]
        self.slots[:num_rows] = [row.slot for row in rows]
        self.wants_logits[:num_rows] = 1
        self.struct.n_tokens = num_rows
        return num_rows
