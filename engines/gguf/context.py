"""Opening a llama.cpp context so that a want of memory is a sentence, and a wrong library is found out."""

from typing import Any

import psutil

from engines.core.plan import EngineFault
from engines.gguf.abi import LibraryMismatch, check_context
from engines.gguf.model import GgufModel


def open_context(model: GgufModel, params: Any, kv_tokens: int) -> Any:
    """A context that is freed when nothing refers to it. `params`: filled; `kv_tokens`: cells that it will hold.

    Raises `EngineFault` if the memory does not suffice, `LibraryMismatch` if the library took something else from
    `params` than what was put there.
    """
    _check_memory(model, kv_tokens)
    library = model.library
    library.log.take_errors()
    pointer = library.c.llama_init_from_model(model.pointer, params)
    if pointer == library.ffi.NULL:
        why = library.log.take_errors() or "llama.cpp does not say why"
        raise EngineFault(f"llama.cpp cannot set up {kv_tokens} KV tokens: {why}.")
    context = library.ffi.gc(pointer, library.c.llama_free)
    try:
        check_context(library.c, context, params)
    except LibraryMismatch:
        library.ffi.release(context)
        raise
    return context


def _check_memory(model: GgufModel, kv_tokens: int) -> None:
    """Raise `EngineFault` if the cells cannot fit. The system would grant them and end the process as they fill."""
    needed, available = (model.kv_token_bytes or 0) * kv_tokens, psutil.virtual_memory().available
    if needed > available:
        raise EngineFault(
            f"{kv_tokens} KV tokens need {needed / 1e9:.1f} GB of memory and {available / 1e9:.1f} GB are available."
        )
