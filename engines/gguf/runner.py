"""Executes step plans on llama.cpp: one context, a KV cell pool shared by all slots, one decode call a step.

A forked prefix costs no cells and no time: its cells carry both slots' numbers. The price: a step looks at every cell
in use, also those of idle slots (measured: 0.4 ms a step for 1,000 idle tokens at batch 1, 3 ms at batch 16).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines.core.plan import (
    Discard,
    EngineFault,
    Fork,
    Logits,
    MemoryOperation,
    Restore,
    Row,
    Save,
    StepPlan,
    Truncate,
)
from engines.gguf.batch import StepBatch
from engines.gguf.context import open_context
from engines.gguf.library import MAX_SLOTS, Library
from engines.gguf.model import GgufModel
from engines.gguf.saved import SavedStates

_MAX_UBATCH_TOKENS = 512  # llama.cpp's own default: larger needs more memory and is not faster on a CPU
_MAX_THREADS = 512  # llama.cpp's
_ERRORS = {
    1: "found no room for the step's tokens in the KV cache",
    2: "was told to stop in the middle of the step",
    -1: "refused the step as malformed",
}


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """The sizes of a runner; raises `ValueError` for such as cannot be.

    `num_slots`: 1 to 256. `threads`: for steps of one token; `threads_batch`: for all other steps. `num_drafts`:
    tokens of a step whose logits are wanted, besides one for each slot.
    """

    num_slots: int
    kv_tokens: int
    max_step_tokens: int
    threads: int
    threads_batch: int
    num_drafts: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_slots <= MAX_SLOTS:
            raise ValueError(f"llama.cpp keeps 1 to {MAX_SLOTS} sequences apart, not {self.num_slots}")
        if self.num_slots > min(self.max_step_tokens, self.kv_tokens):
            raise ValueError(
                f"{self.num_slots} sequences need a token each in a step of {self.max_step_tokens} tokens "
                f"and in {self.kv_tokens} KV tokens"
            )
        if self.kv_tokens > 1 << 24:
            raise ValueError(f"{self.kv_tokens} KV tokens are more than any machine holds")
        if not 1 <= min(self.threads, self.threads_batch) <= max(self.threads, self.threads_batch) <= _MAX_THREADS:
            raise ValueError(f"a runner has 1 to {_MAX_THREADS} threads")

    @property
    def has_spare(self) -> bool:
        """Whether a sequence is left over, through which heads of others are saved."""
        return self.num_slots < MAX_SLOTS


class GgufRunner:
    """One llama.cpp context over `model`, as `Runner` of engines/core/plan.py."""

    def __init__(self, model: GgufModel, settings: RunnerSettings) -> None:
        """Reserve the KV cells. Raises `EngineFault` if llama.cpp cannot (it lacks memory for them)."""
        self._library = model.library
        self._model = model  # NOTE: the weights must outlive the context
        self._context: Any = _open_context(model, settings)
        self._memory: Any = self._library.c.llama_get_memory(self._context)
        self._saved = SavedStates(self._library, self._context, self._memory, spare=settings.num_slots)
        self._batch = StepBatch(self._library, settings.max_step_tokens)
        self._lengths = [0] * settings.num_slots
        self.max_samples = settings.num_slots + settings.num_drafts
        self._no_logits: Logits = np.zeros((0, model.vocab_size), np.float32)
        self._is_faulted = False
        self.vocab_size = model.vocab_size
        self.num_slots = settings.num_slots
        self.max_step_tokens = settings.max_step_tokens
        self.kv_tokens = settings.kv_tokens
        try:
            self.host_bytes_per_token = self._measure_saved_token() if settings.has_spare else 0
        except BaseException:
            self.close()
            raise

    @property
    def library(self) -> Library:
        """The library that it runs on."""
        return self._library

    def execute(self, plan: StepPlan) -> Logits:
        """Logits, (plan.num_samples, vocab_size) float32, of each row's last tokens; the next call overwrites them.

        Raises `EngineFault`; then only `clear` and `close` may follow.
        """
        assert self._context is not None, "the runner is closed"
        assert not self._is_faulted, "the runner failed and was not cleared"
        for operation in plan.memory:
            self._move(operation)
        if not plan.rows:
            return self._no_logits
        self._check_rows(plan.rows)
        num_samples = self._batch.fill(plan.rows)
        self._decode(plan.number)
        for row in plan.rows:
            self._lengths[row.slot] = row.start + len(row.tokens)
        return self._gather(num_samples)

    def clear(self) -> None:
        """Forget all KV, after a fault or not."""
        assert self._context is not None, "the runner is closed"
        self._saved.clear()
        self._library.c.llama_memory_clear(self._memory, True)
        self._lengths = [0] * self.num_slots
        self._is_faulted = False

    def use_threads(self, single: int, batch: int) -> None:
        """Compute steps of one token with `single` threads from now on, all others with `batch`; 1 to 512 each."""
        assert self._context is not None, "the runner is closed"
        assert 1 <= min(single, batch) <= max(single, batch) <= _MAX_THREADS, f"{single} and {batch} threads"
        self._library.c.llama_set_n_threads(self._context, single, batch)

    def close(self) -> None:
        """Give the context's memory back. Harmless a second time."""
        context, self._context, self._memory = self._context, None, None
        self._saved.clear()
        if context is not None:
            self._library.ffi.release(context)

    def __repr__(self) -> str:
        used = sum(length > 0 for length in self._lengths)
        state = "closed" if self._context is None else "faulted" if self._is_faulted else "open"
        return f"<GgufRunner {state}, {used} of {self.num_slots} slots in use, {self.kv_tokens} KV tokens>"

    def _measure_saved_token(self) -> int:
        """Host bytes of one token more; it depends on the model's layers, and the library alone knows them all."""
        sizes = []
        for position in (0, 1):
            self._batch.fill((Row(0, position, (0,), num_samples=0),))
            self._decode(0)
            sizes.append(self._saved.bytes_of(0))
        self.clear()
        return sizes[1] - sizes[0]

    def _move(self, operation: MemoryOperation) -> None:
        match operation:
            case Fork():
                self._fork(operation)
            case Truncate():
                self._truncate(operation)
            case Save():
                self._or_faulted(lambda: self._saved.save(operation, self._lengths[operation.slot]))
            case Restore():
                assert self._lengths[operation.slot] == 0, f"slot {operation.slot} is not empty: {operation}"
                self._or_faulted(lambda: self._saved.restore(operation))
                self._lengths[operation.slot] = operation.num_tokens
            case Discard():
                self._saved.discard(operation)

    def _or_faulted(self, move: Callable[[], None]) -> None:
        try:
            move()
        except EngineFault:
            self._is_faulted = True
            raise

    def _fork(self, fork: Fork) -> None:
        assert self._lengths[fork.target] == 0, f"slot {fork.target} is not empty: {fork}"
        assert 0 < fork.num_tokens <= self._lengths[fork.source], f"slot {fork.source} is shorter: {fork}"
        assert fork.source != fork.target, f"a slot is no fork of itself: {fork}"
        self._library.c.llama_memory_seq_cp(self._memory, fork.source, fork.target, 0, fork.num_tokens)
        self._lengths[fork.target] = fork.num_tokens

    def _truncate(self, truncate: Truncate) -> None:
        length = self._lengths[truncate.slot]
        assert 0 <= truncate.length <= length, f"slot {truncate.slot} has {length} tokens: {truncate}"
        if not self._library.c.llama_memory_seq_rm(self._memory, truncate.slot, truncate.length, -1):
            self._is_faulted = True
            raise EngineFault(f"llama.cpp cannot shorten slot {truncate.slot} to {truncate.length} tokens.")
        self._lengths[truncate.slot] = truncate.length

    def _check_rows(self, rows: tuple[Row, ...]) -> None:
        num_tokens = num_samples = 0
        for row in rows:
            assert row.tokens, f"slot {row.slot} has no tokens in this step"
            assert row.start == self._lengths[row.slot], (
                f"slot {row.slot} holds {self._lengths[row.slot]} tokens and cannot go on at {row.start}"
            )
            num_tokens += len(row.tokens)
            num_samples += row.num_samples
        assert len({row.slot for row in rows}) == len(rows), "a slot has two rows in one step"
        most = min(self.max_step_tokens, self.kv_tokens)
        assert num_tokens <= most, f"{num_tokens} tokens in a step of at most {most}"
        assert num_samples <= self.max_samples, f"{num_samples} logits in a step of at most {self.max_samples}"

    def _decode(self, step: int) -> None:
        """Run the filled batch. cffi lets other Python threads run meanwhile."""
        self._library.log.take_errors()
        code = self._library.c.llama_decode(self._context, self._batch.struct[0])
        if code:
            self._is_faulted = True
            what = _ERRORS.get(code, f"failed with code {code}")
            raise EngineFault(f"llama.cpp {what} (step {step}){self._library.log.take_reason()}.")

    def _gather(self, num_samples: int) -> Logits:
        """The sampling rows in the batch's order, where the context has them: it computes the next ones there too."""
        if not num_samples:
            return self._no_logits
        size = num_samples * self._no_logits.shape[1]
        memory = self._library.ffi.buffer(self._library.c.llama_get_logits(self._context), size * 4)
        return np.frombuffer(memory, np.float32, size).reshape(num_samples, -1)


def _open_context(model: GgufModel, settings: RunnerSettings) -> Any:
    library = model.library
    params = library.c.llama_context_default_params()
    params.n_ctx = settings.kv_tokens
    params.n_seq_max = settings.num_slots + settings.has_spare
    params.n_batch = min(settings.max_step_tokens, settings.kv_tokens)
    params.n_ubatch = min(params.n_batch, _MAX_UBATCH_TOKENS)
    # llama.cpp reserves a row for each sequence, the spare one too.
    params.n_outputs_max = params.n_seq_max + settings.num_drafts
    params.n_threads = settings.threads
    params.n_threads_batch = settings.threads_batch
    params.kv_unified = True
    return open_context(model, params, settings.kv_tokens)
