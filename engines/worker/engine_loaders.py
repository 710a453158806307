"""One loader an engine: a model and its runner out of options. Each engine is imported when it is asked for.

The only module that knows which engines there are.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engines.core.embedding import EmbeddingModel
from engines.core.plan import EngineFault, Runner, TextModel
from engines.step_cost import StepCost
from engines.worker.engine_options import EngineOptions
from observability import logs

if TYPE_CHECKING:
    from engines.gguf.load import Loaded

_FAKE_TOKEN_BYTES = 1 << 10  # of a saved token of the fake engine; chosen


class CannotStart(Exception):
    """The worker cannot serve; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class GeneratingParts:
    """What generates. `adds_bos`: plain prompts begin with the model's BOS.

    `prior`: what its steps cost, as far as known before the first. `save_s_per_token`, `restore_s_per_token`: of copies
    to and from host memory. `embeddings`: what answers for vectors too, None for nothing. `mixes_prompts`: as in
    `SchedulerSettings`.
    """

    model: TextModel
    runner: Runner
    adds_bos: bool
    prior: StepCost
    save_s_per_token: float = 0.0
    restore_s_per_token: float = 0.0
    embeddings: EmbeddingModel | None = None
    mixes_prompts: bool = True

    def close(self) -> None:
        """Give the device back, where no engine does."""
        self.runner.close()
        if self.embeddings is not None:
            self.embeddings.close()


@dataclass(frozen=True, slots=True)
class EmbeddingParts:
    """What only embeds or ranks."""

    model: TextModel
    vocab_size: int
    embeddings: EmbeddingModel

    def close(self) -> None:
        """Give the device back."""
        self.embeddings.close()


Parts = GeneratingParts | EmbeddingParts


def load_parts(options: EngineOptions) -> Parts:
    """Model and runner of the engine asked for. Raises `CannotStart`."""
    loaders: dict[str, Callable[[EngineOptions], Parts]] = {"gguf": _gguf, "fake": _fake}
    loader = loaders.get(options.engine)
    if loader is None:
        raise CannotStart(f"there is no engine called {options.engine}; choose from {', '.join(loaders)}")
    try:
        return loader(options)
    except (ValueError, OSError, EngineFault) as error:
        raise CannotStart(str(error)) from error


def _gguf(options: EngineOptions) -> Parts:
    from engines.gguf.abi import LibraryMismatch
    from engines.gguf.header import ModelFileError
    from engines.gguf.load_embedder import embeds_only

    if options.path is None:
        raise CannotStart("the gguf engine needs --path, a GGUF model file")
    try:
        return _gguf_embedding(options) if embeds_only(options.path) else _gguf_generating(options)
    except (LibraryMismatch, ModelFileError) as error:
        raise CannotStart(str(error)) from error


def _gguf_embedding(options: EngineOptions) -> EmbeddingParts:
    from engines.gguf.embedder import EmbedderSettings
    from engines.gguf.load_embedder import load_embedder

    assert options.path is not None, "asked before"
    threads = options.threads_batch or options.threads
    sizes = {} if options.context_tokens is None else {"max_input_tokens": options.context_tokens}
    model, embedder = load_embedder(
        options.path, EmbedderSettings(threads=threads, **sizes), home=options.home, on_log=_log_library
    )
    logs.get().info(
        "engine.loaded",
        library=model.library.description,
        library_note=model.library.note or None,
        threads=threads,
        gpu_layers=model.gpu_layers,
        embeds_only=True,
        ranks=embedder.can_rank,
    )
    return EmbeddingParts(model, model.vocab_size, embedder)


def _gguf_generating(options: EngineOptions) -> GeneratingParts:
    from engines.gguf.copy_times import CopyTimes, measure_copies
    from engines.gguf.load import load
    from engines.gguf.passing_thread import in_passing_thread
    from engines.gguf.step_times import measure_step_cost

    assert options.path is not None, "asked before"
    loaded = load(
        options.path,
        num_slots=options.num_slots,
        kv_tokens=options.kv_tokens,
        max_step_tokens=options.max_step_tokens,
        threads=options.threads,
        threads_batch=options.threads_batch,
        num_drafts=options.num_step_drafts,
        home=options.home,
        on_log=_log_library,
    )
    model, runner, threads = loaded.model, loaded.runner, loaded.threads
    logs.get().info(
        "engine.loaded",
        library=model.library.description,
        library_note=model.library.note or None,
        threads=threads.single,
        threads_batch=threads.batch,
        threads_origin=threads.origin,
        gpu_layers=model.gpu_layers,
    )
    try:
        prior = in_passing_thread(partial(measure_step_cost, runner))
        copies = in_passing_thread(partial(measure_copies, runner)) if options.host_kv_mb != 0 else CopyTimes()
        embedder = _embedder(options, loaded)
    except BaseException:
        runner.close()
        raise
    return GeneratingParts(
        model,
        runner,
        model.adds_bos,
        prior,
        copies.save_s_per_token,
        copies.restore_s_per_token,
        embedder,
        mixes_prompts=model.gpu_layers > 0,  # on a CPU rows cost more beside prompts than alone (docs/design/006)
    )


def _embedder(options: EngineOptions, loaded: "Loaded") -> EmbeddingModel | None:
    """The mean of the generating model's vectors, in a context of its own over the same weights.

    On one thread: a second team of compute threads would slow the steps of the first, also while nobody embeds.
    """
    from engines.gguf.embedder import EmbedderSettings, GgufEmbedder

    if not options.serves_embeddings:
        return None
    return GgufEmbedder(loaded.model, EmbedderSettings(threads=1))


def _fake(options: EngineOptions) -> GeneratingParts:
    from engines.fake.embeddings import FakeEmbeddings
    from engines.fake.model import FakeModel
    from engines.fake.runner import FakeRunner

    model = FakeModel(options.name)
    runner = FakeRunner(
        num_slots=options.num_slots,
        kv_tokens=options.kv_tokens,
        max_step_tokens=options.max_step_tokens,
        cost=options.fake_cost,
        sleep=time.sleep,
        eos_every=options.fake_eos_every,
        host_bytes_per_token=_FAKE_TOKEN_BYTES,
    )
    return GeneratingParts(model, runner, adds_bos=False, prior=options.fake_cost, embeddings=FakeEmbeddings())


def _log_library(level: int, line: str) -> None:
    if level >= logging.WARNING:
        logs.get().log(level, "engine.library", message=line.strip())
