"""`python -m engines.gguf.self_test [FOLDER]`: a tiny model runs on the library, in a process that may die of it.

What is tried is what the engine relies on: batches of several sequences, a shared prefix, KV saved and restored.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engines.core.plan import Discard, EngineFault, Fork, Restore, Row, Save, StepPlan, Truncate
from engines.gguf.abi import LibraryMismatch
from engines.gguf.declarations import function_names, signatures
from engines.gguf.header import ModelFileError
from engines.gguf.library import MAX_SLOTS, Library, open_library, our_declarations
from engines.gguf.model import GgufModel
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.gguf.tiny_model import write_tiny_model

_PROMPT = (72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100)


def self_test(library: Library) -> None:
    """Raise `LibraryMismatch` if the library computes something else in another way of asking the same."""
    _check_signatures(library)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_tiny_model(path)
        model = GgufModel(path, library)
        for num_slots in (3, MAX_SLOTS):
            runner = GgufRunner(model, RunnerSettings(num_slots, 512, 256, 1, 1))
            try:
                _try(runner)
            finally:
                runner.close()


def _check_signatures(library: Library) -> None:
    """A function that takes something else than ours would be called wrongly, however its structs are laid out."""
    names = function_names(our_declarations())
    expected = signatures(our_declarations(), names)
    for name, found in signatures(library.declarations, names).items():
        if found != expected[name]:
            raise LibraryMismatch(f"The {library.description} has another {name} than Warmlane calls.")


def _try(runner: GgufRunner) -> None:
    last = len(_PROMPT) - 1
    alone = _logits(runner, Row(0, 0, _PROMPT, num_samples=1))[0]
    if not np.isfinite(alone).all() or np.ptp(alone) == 0:
        raise LibraryMismatch("llama.cpp computes no numbers from a tiny model.")
    memory: list[Fork | Truncate | Save | Restore | Discard] = [Truncate(0, last), Fork(0, 1, last)]
    if runner.host_bytes_per_token:
        memory += [Save(0, 1, last), Truncate(0, 0), Restore(1, 0, last), Discard(1)]
    rows = [Row(slot, last, _PROMPT[last:], num_samples=1) for slot in (0, 1)]
    for row in runner.execute(StepPlan(0, tuple(memory), tuple(rows))):
        if np.abs(row - alone).max() > 0.1:
            raise LibraryMismatch("llama.cpp answers a shared or restored prefix otherwise than a computed one.")


def _logits(runner: GgufRunner, *rows: Row) -> np.ndarray:
    return runner.execute(StepPlan(0, (), rows)).copy()


def main(arguments: Sequence[str]) -> int:
    """0 and the library's description on stdout if it may be used, else 1 and one sentence on stderr."""
    try:
        library = open_library(arguments[0] if arguments else "")
        self_test(library)
    except (LibraryMismatch, ModelFileError, EngineFault) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{library.description}\n")
    if library.note:
        sys.stdout.write(f"{library.note}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
