"""The one entry to this engine: a file and its sizes in, a model and a warm runner out."""

from pathlib import Path

import numpy as np

from engines.core.plan import Row, StepPlan
from engines.gguf.header import ModelFileError
from engines.gguf.library import LogSink, open_library
from engines.gguf.model import GgufModel
from engines.gguf.runner import GgufRunner, RunnerSettings


def load(
    path: Path,
    *,
    num_slots: int,
    kv_tokens: int,
    max_step_tokens: int,
    threads: int,
    threads_batch: int,
    on_log: LogSink | None = None,
) -> tuple[GgufModel, GgufRunner]:
    """The model of `path` and a runner that has already run a step. `on_log` gets the library's log from now on.

    Raises `ValueError` for sizes that cannot be, `LibraryMismatch`, `ModelFileError`, and `EngineFault` when the
    memory does not suffice; each message is one sentence.
    """
    settings = RunnerSettings(num_slots, kv_tokens, max_step_tokens, threads, threads_batch)
    library = open_library()
    library.log.sink = on_log
    model = GgufModel(path, library)
    runner = GgufRunner(model, settings)
    try:
        _warm_up(path, runner)
    except BaseException:
        runner.close()
        raise
    return model, runner


def _warm_up(path: Path, runner: GgufRunner) -> None:
    """One step, so that the first request does not pay for page faults, and damaged weights show at once."""
    logits = runner.execute(StepPlan(0, (), (Row(slot=0, start=0, tokens=(0,), samples=True),)))
    if np.isnan(logits).any():
        raise ModelFileError(f"The model file {path} is damaged: its weights give no numbers.")
    runner.clear()
