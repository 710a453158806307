"""Sequences' KV copied to host memory and back, by the library's own sequence states.

A state holds every cell of a sequence, so a head alone is saved through a spare sequence that shares those cells.
Restoring takes as many free cells as were saved; the tail that is not wanted is then cut.
"""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.core.plan import Discard, EngineFault, Restore, Save
from engines.gguf.library import Library

_State = npt.NDArray[np.uint8]


class SavedStates:
    """The states of one context, by handle. `spare`: a sequence that nobody else uses, empty between calls."""

    def __init__(self, library: Library, context: Any, memory: Any, spare: int) -> None:
        self._library = library
        self._context = context
        self._memory = memory
        self._spare = spare
        self._states: dict[int, tuple[int, _State]] = {}  # handle: tokens, bytes

    @property
    def num_bytes(self) -> int:
        """Host memory held now."""
        return sum(state.nbytes for _, state in self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    def save(self, save: Save, length: int) -> None:
        """Copy the head of a slot that holds `length` tokens. Raises `EngineFault`; then nothing is kept."""
        assert save.handle not in self._states, f"handle {save.handle} is in use: {save}"
        assert 0 < save.num_tokens <= length, f"slot {save.slot} has {length} tokens: {save}"
        c = self._library.c
        if save.num_tokens == length:
            self._states[save.handle] = (save.num_tokens, self._read(save.slot))
            return
        c.llama_memory_seq_cp(self._memory, save.slot, self._spare, 0, save.num_tokens)
        try:
            self._states[save.handle] = (save.num_tokens, self._read(self._spare))
        finally:
            c.llama_memory_seq_rm(self._memory, self._spare, -1, -1)

    def restore(self, restore: Restore) -> None:
        """Copy a saved head into an empty slot. Raises `EngineFault` when there is no room for all of it."""
        assert restore.handle in self._states, f"nothing is saved under handle {restore.handle}: {restore}"
        num_saved, state = self._states[restore.handle]
        assert 0 < restore.num_tokens <= num_saved, f"handle {restore.handle} has {num_saved} tokens: {restore}"
        library = self._library
        library.log.take_errors()
        source = library.ffi.from_buffer("uint8_t *", state)
        if library.c.llama_state_seq_set_data(self._context, source, state.nbytes, restore.slot) == 0:
            raise EngineFault(f"llama.cpp cannot restore {num_saved} saved tokens{library.log.take_reason()}.")
        if restore.num_tokens < num_saved and not library.c.llama_memory_seq_rm(
            self._memory, restore.slot, restore.num_tokens, -1
        ):
            raise EngineFault(f"llama.cpp cannot cut a restored sequence to {restore.num_tokens} tokens.")

    def discard(self, discard: Discard) -> None:
        """Give one state's memory back."""
        assert discard.handle in self._states, f"nothing is saved under handle {discard.handle}: {discard}"
        del self._states[discard.handle]

    def clear(self) -> None:
        """Give all of it back."""
        self._states.clear()

    def bytes_of(self, slot: int) -> int:
        """What saving all of `slot` would take."""
        return int(self._library.c.llama_state_seq_get_size(self._context, slot))

    def _read(self, slot: int) -> _State:
        library = self._library
        library.log.take_errors()
        size = self.bytes_of(slot)
        if size == 0:
            raise EngineFault(f"llama.cpp cannot save the KV of slot {slot}{library.log.take_reason()}.")
        state = _mapped(size)
        target = library.ffi.from_buffer("uint8_t *", state, require_writable=True)
        if library.c.llama_state_seq_get_data(self._context, target, size, slot) != size:
            raise EngineFault(f"llama.cpp cannot save the KV of slot {slot}{library.log.take_reason()}.")
        return state


def _mapped(size: int) -> _State:
    """Memory of its own, given back to the system as soon as nobody has it.

    From the heap, blocks of many sizes that come and go leave holes: 48 MB of states took 110 MB more than they hold.
    """
    try:
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)
    except (MemoryError, OSError) as error:
        raise EngineFault(f"There is no host memory for {size / 1e6:.1f} MB of saved KV.") from error
