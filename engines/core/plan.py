"""What one step of an engine does: an immutable value that can be logged and replayed.

The scheduler writes it, a runner executes it. No device, no clock, no text here.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Fork:
    """Slot `target` (empty) gets the KV of positions [0, num_tokens) of slot `source`, without computing it."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Slot `slot` keeps positions [0, length); 0 empties it."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` of one sequence at positions [start, start + len(tokens)) of `slot`.

    `blocks`: the sequence's block table, for engines that page by it. `samples`: logits of the last token are wanted.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    samples: bool
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `memory` operations happen first, in order; then all rows go through the model together."""

    number: int
    memory: tuple[Fork | Truncate, ...]
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Rows of one token: what a step-cost model counts as rows."""
        return sum(len(row.tokens) == 1 for row in self.rows)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens in rows of several."""
        return self.num_tokens - self.num_decode_rows


class Runner(Protocol):
    """A device that executes steps. Used from one thread only.

    `num_slots`: sequences whose KV it can tell apart. `kv_tokens`: cells for tokens, all slots together; a token
    shared by a fork uses one cell. `max_step_tokens`: the most tokens in one step.
    """

    vocab_size: int
    num_slots: int
    kv_tokens: int
    max_step_tokens: int

    def execute(self, plan: StepPlan) -> Logits:
        """Logits, (number of sampling rows, vocab_size) float32, in the order of those rows.

        The array may be reused by the next call. Raises `EngineFault` if the device failed; nothing of the step
        may then be relied on.
        """
        ...

    def clear(self) -> None:
        """Forget all KV, after a fault."""
        ...

    def close(self) -> None:
        """Give the device back."""
        ...


class EngineFault(Exception):
    """The device failed in a step; the sequences of that step are lost, the worker may go on after `clear`."""


class TextModel(Protocol):
    """Vocabulary and template of a loaded model. Thread-safe, unlike a runner."""

    name: str
    context_tokens: int
    chat_template: str | None
    bos_text: str
    eos_text: str
    eos_ids: frozenset[int]
    special_texts: frozenset[str]

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids. With `special` the texts of control tokens become control tokens; without, never."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes of one token (control tokens: empty)."""
        ...
