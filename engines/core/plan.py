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
class Save:
    """KV of positions [0, num_tokens) of `slot` is copied to host memory under `handle`, which is not in use.

    `blocks`: where they lie, for engines that page by block table; these ignore `slot`. The device keeps its copy.
    """

    slot: int
    handle: int
    num_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Restore:
    """Slot `slot` (empty) gets positions [0, num_tokens) of what was saved under `handle`, which stays saved.

    The device has free cells for all that was saved under it, so it may be copied whole and then cut. `blocks`: where
    the positions go, for engines that page by block table.
    """

    handle: int
    slot: int
    num_tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Discard:
    """What was saved under `handle` is given back; the handle is not used again."""

    handle: int


MemoryOperation = Fork | Truncate | Save | Restore | Discard


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` of one sequence at positions [start, start + len(tokens)) of `slot`.

    `num_samples`: logits of so many of its last tokens are wanted; several where the last tokens are drafts to verify.
    `blocks`: the sequence's block table, for engines that page by it.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    num_samples: int
    blocks: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        """Whether any logits are wanted."""
        return self.num_samples > 0

    @property
    def drafts(self) -> tuple[int, ...]:
        """Its last tokens, as far as they are guesses that the logits before each decide on."""
        return self.tokens[len(self.tokens) - self.num_samples + 1 :] if self.num_samples > 1 else ()

    @property
    def is_decode(self) -> bool:
        """Whether it computes a sequence's last token, with drafts or without: its tokens cost as much as rows."""
        return len(self.tokens) == max(1, self.num_samples)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `memory` operations happen first, in order; then all rows go through the model together."""

    number: int
    memory: tuple[MemoryOperation, ...]
    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Tokens of decoding rows, drafts too: what a step-cost model counts as rows."""
        return sum(len(row.tokens) for row in self.rows if row.is_decode)

    @property
    def num_samples(self) -> int:
        """Rows of logits."""
        return sum(row.num_samples for row in self.rows)

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of the other rows."""
        return self.num_tokens - self.num_decode_rows

    def counts(self) -> tuple[int, int]:
        """(`num_decode_rows`, `num_prefill_tokens`), in one walk."""
        num_decode_rows = num_prefill_tokens = 0
        for row in self.rows:
            num_tokens = len(row.tokens)
            if num_tokens in (1, row.num_samples):  # is_decode, written out
                num_decode_rows += num_tokens
            else:
                num_prefill_tokens += num_tokens
        return num_decode_rows, num_prefill_tokens


class Runner(Protocol):
    """A device that executes steps. Used from one thread only.

    `num_slots`: sequences whose KV it can tell apart. `kv_tokens`: cells for tokens, all slots together; a token shared
    by a fork uses one cell. `max_step_tokens`: the most tokens in one step; `max_samples`: the most of them whose
    logits are wanted. `host_bytes_per_token`: host memory that a saved token takes; 0: it cannot save (then no plan
    says Save).
    """

    vocab_size: int
    num_slots: int
    kv_tokens: int
    max_step_tokens: int
    max_samples: int
    host_bytes_per_token: int

    def execute(self, plan: StepPlan) -> Logits:
        """Logits, (plan.num_samples, vocab_size) float32: of each row its last `num_samples` tokens', row after row.

        The array may be reused by the next call. Raises `EngineFault` if the device failed; nothing of the step
        may then be relied on.
        """
        ...

    def clear(self) -> None:
        """Forget all KV, what was saved too, after a fault."""
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
