"""The one entry to this engine: a file and its sizes in, a model and a warm runner out."""

import os
import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from engines.core.plan import Row, StepPlan
from engines.gguf.header import ModelFileError
from engines.gguf.library import LogSink, open_library
from engines.gguf.model import GgufModel
from engines.gguf.passing_thread import in_passing_thread
from engines.gguf.runner import GgufRunner, RunnerSettings
from engines.gguf.threads import CACHE_NAME, ThreadCache, Threads, cache_path, is_busy, load_now, measure

_BATCH_TOKENS = 32  # chosen: long enough to show what cores are worth, short enough for a large model


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, its runner, and how many threads that runs on."""

    model: GgufModel
    runner: GgufRunner
    threads: Threads


def load(
    path: Path,
    *,
    num_slots: int,
    kv_tokens: int,
    max_step_tokens: int,
    threads: int,
    threads_batch: int | None = None,
    num_drafts: int = 0,
    home: Path | None = None,
    on_log: LogSink | None = None,
) -> Loaded:
    """The model of `path` and a runner that has already run a step.

    `threads`: the most to use; how many each kind of step takes is measured, and remembered in `home` (None: the
    environment's). With `threads_batch` both numbers are taken as they are. `on_log` gets the library's log.

    Raises `ValueError` for sizes that cannot be, `LibraryMismatch`, `ModelFileError`, and `EngineFault` when the
    memory does not suffice; each message is one sentence.
    """
    settings = RunnerSettings(
        num_slots, kv_tokens, max_step_tokens, threads, threads if threads_batch is None else threads_batch, num_drafts
    )
    # Whoever runs the steps later must be the only thread that has computed.
    given = Threads(threads, threads_batch, "given") if threads_batch is not None else None
    return in_passing_thread(partial(_load, path, settings, home, given, on_log))


def _load(
    path: Path, settings: RunnerSettings, home: Path | None, given: Threads | None, on_log: LogSink | None
) -> Loaded:
    library = open_library(folder=None if home is None else home / "native")
    library.log.sink = on_log
    model = GgufModel(path, library, kv_tokens=settings.kv_tokens)
    runner = GgufRunner(model, settings)
    try:
        _warm_up(path, runner)
        cache_file = cache_path() if home is None else home / CACHE_NAME
        chosen = given or _measured_threads(path, runner, settings.threads, cache_file)
        runner.use_threads(chosen.single, chosen.batch)
    except BaseException:
        runner.close()
        raise
    return Loaded(model, runner, chosen)


def _measured_threads(path: Path, runner: GgufRunner, most: int, cache_file: Path) -> Threads:
    """What is remembered for this machine, library, file and bound, else measured now."""
    status = path.stat()
    machine = f"{platform.node()}/{os.cpu_count()}/{runner.library.description}"
    key = f"{machine}/{path.name}/{status.st_size}/{status.st_mtime_ns}/{most}"
    cache = ThreadCache(cache_file)
    known = cache.recall(key, most)
    if known is not None:
        return known
    if is_busy(load_now(), os.cpu_count() or 1):
        return Threads(most, most, "all: too busy here to measure")
    single = (Row(0, 0, (0,), num_samples=1),)
    num_rows = min(_BATCH_TOKENS, runner.max_step_tokens)
    batch = (Row(0, 0, (0,) * num_rows, num_samples=1),)

    def step(rows: tuple[Row, ...], threads: int) -> None:
        runner.use_threads(threads, threads)
        runner.execute(StepPlan(0, (), rows))
        runner.clear()

    found = measure(most, partial(step, single), partial(step, batch))
    cache.remember(key, found)
    return found


def _warm_up(path: Path, runner: GgufRunner) -> None:
    """One step, so that the first request does not pay for page faults, and damaged weights show at once."""
    logits = runner.execute(StepPlan(0, (), (Row(slot=0, start=0, tokens=(0,), num_samples=1),)))
    if np.isnan(logits).any():
        raise ModelFileError(f"The model file {path} is damaged: its weights give no numbers.")
    runner.clear()
