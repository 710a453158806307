"""An engine made ready: model, scheduler and thread put together, whichever runner it is.

The only module that knows which engines there are. Each is imported when it is asked for.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.core.admission import SchedulerSettings
from engines.core.embedding import EmbeddingModel
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.latency_guard import LatencySettings
from engines.core.plan import EngineFault, Runner, TextModel
from engines.core.scheduler import Scheduler
from engines.step_cost import StepCost, StepCostFitter
from engines.worker.chat_template import BrokenTemplate, ChatTemplate
from engines.worker.kv_events import CannotPublish, KvEventPublisher, KvEventSettings, Snapshot
from engines.worker.step_log import StepLog
from observability import logs

if TYPE_CHECKING:
    from engines.gguf.load import Loaded

_MAX_RETAINED = 56  # chosen: each slot costs a row of logits
_MAX_DRAFTS, _MAX_STEP_DRAFTS = 8, 32  # chosen
_MAX_SLOTS = 256  # llama.cpp's


class CannotStart(Exception):
    """The worker cannot serve; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `path`: the model file, for engines that have one. Sizes in tokens.

    `latency`: what interactive sequences are promised. `step_log`: a file that gets a line for each step. `kv_events`:
    where to publish what becomes of the cache, None for nowhere. `threads`: at most so many; how many each kind of step
    takes is measured unless `threads_batch` is given too. `home`: the folder with what was built and measured here.
    `max_drafts`: tokens guessed ahead for a sequence in a step; None: 8, but for the fake engine, whose scripts would
    be guessed from their prompts. `serves_embeddings`: gguf answers for vectors too, beside what it generates.
    """

    engine: str
    path: Path | None
    name: str
    max_seqs: int
    kv_tokens: int
    max_step_tokens: int
    threads: int
    threads_batch: int | None
    block_size: int = 16
    max_waiting: int = 1024
    context_tokens: int | None = None
    home: Path | None = None
    latency: LatencySettings = LatencySettings()  # noqa: RUF009  # frozen
    step_log: Path | None = None
    kv_events: KvEventSettings | None = None
    max_drafts: int | None = None
    serves_embeddings: bool = False
    fake_cost: StepCost = StepCost()  # noqa: RUF009  # frozen
    fake_eos_every: int = 97

    @property
    def num_drafts(self) -> int:
        """Tokens guessed ahead for one sequence in one step."""
        if self.max_drafts is not None:
            return self.max_drafts
        return 0 if self.engine == "fake" else _MAX_DRAFTS

    @property
    def num_step_drafts(self) -> int:
        """Of all sequences in one step; each costs a row of logits."""
        return min(_MAX_STEP_DRAFTS, self.max_step_tokens - self.num_slots) if self.num_drafts else 0

    @property
    def num_slots(self) -> int:
        """Sequences whose KV the device tells apart: the seats, and some for finished ones that may be hit again.

        A retained conversation is believed to have 256 tokens; a step must have room for one token of each slot.
        """
        retained = min(self.kv_tokens // 256, _MAX_RETAINED)
        return max(1, min(self.max_seqs + retained, self.max_step_tokens, _MAX_SLOTS))


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What an engine's loader gives. `prior`: the cost of its steps, as far as known before the first."""

    model: TextModel
    runner: Runner
    adds_bos: bool
    prior: StepCost
    embeddings: EmbeddingModel | None = None


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model and the engine that runs it, started or not. `adds_bos`: plain prompts begin with the model's BOS.

    `embeddings`: what answers for vectors and scores; None where the model only generates.
    """

    model: TextModel
    engine: Engine
    settings: SchedulerSettings
    vocab_size: int
    adds_bos: bool
    step_log: StepLog | None = None
    kv_events: KvEventPublisher | None = None
    embeddings: EmbeddingModel | None = None

    def start(self) -> None:
        """Start the engine's thread, and the events' before it. Once."""
        if self.kv_events is not None:
            self.kv_events.start()
        self.engine.start()

    def close(self) -> None:
        """End the engine's thread, give the device back, close the log. Takes up to a step; may be repeated."""
        self.engine.stop()
        if self.kv_events is not None:
            self.kv_events.stop()
        if self.step_log is not None:
            self.step_log.close()


def load_engine(options: EngineOptions) -> LoadedEngine:
    """The engine asked for, not started. Raises `CannotStart`. Takes as long as the model's file takes to read."""
    loaders: dict[str, Callable[[EngineOptions], _Loaded]] = {"gguf": _gguf, "fake": _fake}
    loader = loaders.get(options.engine)
    if loader is None:
        raise CannotStart(f"there is no engine called {options.engine}; choose from {', '.join(loaders)}")
    try:
        loaded = loader(options)
    except (ValueError, OSError, EngineFault) as error:
        raise CannotStart(str(error)) from error
    try:
        return _assemble(options, loaded)
    except BaseException as error:
        loaded.runner.close()
        if isinstance(error, ValueError | OSError | BrokenTemplate | CannotPublish):
            raise CannotStart(str(error)) from error
        raise


def _assemble(options: EngineOptions, loaded: _Loaded) -> LoadedEngine:
    model, runner = loaded.model, loaded.runner
    if model.chat_template:
        ChatTemplate(model.chat_template)
    settings = SchedulerSettings(
        max_seqs=options.max_seqs,
        max_step_tokens=options.max_step_tokens,
        context_tokens=min(model.context_tokens, options.context_tokens or model.context_tokens),
        kv_tokens=options.kv_tokens,
        eos_ids=model.eos_ids,
        block_size=options.block_size,
        max_waiting=options.max_waiting,
        latency=options.latency,
        max_drafts=options.num_drafts,
        max_step_drafts=options.num_step_drafts,
    )
    scheduler = Scheduler(settings, SlotHolders(runner.num_slots, settings.block_size))
    step_log = StepLog(options.step_log) if options.step_log is not None else None
    publisher = _publisher(options.kv_events, lambda: engine.kv_snapshot())  # noqa: PLW0108  # made below
    try:
        engine = Engine(
            runner,
            scheduler,
            fitter=StepCostFitter(loaded.prior),
            on_step=step_log.write if step_log is not None else None,
            on_fault=_log_fault,
            on_events=publisher.offer if publisher is not None else None,
        )
    except ValueError:
        if publisher is not None:
            publisher.stop()
        raise
    return LoadedEngine(
        model, engine, settings, runner.vocab_size, loaded.adds_bos, step_log, publisher, loaded.embeddings
    )


def _publisher(settings: KvEventSettings | None, snapshot: Snapshot) -> KvEventPublisher | None:
    return None if settings is None else KvEventPublisher(settings, snapshot, secrets.token_hex(8))


def _gguf(options: EngineOptions) -> _Loaded:
    from engines.gguf.abi import LibraryMismatch
    from engines.gguf.header import ModelFileError
    from engines.gguf.load import load
    from engines.gguf.step_times import measure_step_cost

    if options.path is None:
        raise CannotStart("the gguf engine needs --path, a GGUF model file")
    try:
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
    except (LibraryMismatch, ModelFileError) as error:
        raise CannotStart(str(error)) from error
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
        prior = measure_step_cost(runner)
    except BaseException:
        runner.close()
        raise
    return _Loaded(model, runner, model.adds_bos, prior, _embedder(options, loaded))


def _embedder(options: EngineOptions, loaded: "Loaded") -> EmbeddingModel | None:
    """The mean of the generating model's vectors, in a context of its own over the same weights."""
    from engines.gguf.embedder import EmbedderSettings, GgufEmbedder

    if not options.serves_embeddings:
        return None
    try:
        return GgufEmbedder(loaded.model, EmbedderSettings(threads=loaded.threads.batch))
    except BaseException:
        loaded.runner.close()
        raise


def _fake(options: EngineOptions) -> _Loaded:
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
    )
    return _Loaded(model, runner, adds_bos=False, prior=options.fake_cost, embeddings=FakeEmbeddings())


def _log_fault(error: BaseException) -> None:
    logs.get().error("engine.step_failed", exc_info=error)


def _log_library(level: int, line: str) -> None:
    if level >= logging.WARNING:
        logs.get().log(level, "engine.library", message=line.strip())
