"""An engine made ready: model, scheduler and thread put together, whichever runner it is.

The only module that knows which engines there are. Each is imported when it is asked for.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engines.core.admission import SchedulerSettings
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.plan import EngineFault, Runner, TextModel
from engines.core.scheduler import Scheduler
from engines.step_cost import StepCost
from engines.worker.chat_template import BrokenTemplate, ChatTemplate
from observability import logs

_MAX_RETAINED = 56  # chosen: each slot costs a row of logits
_MAX_SLOTS = 256  # llama.cpp's


class CannotStart(Exception):
    """The worker cannot serve; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `path`: the model file, for engines that have one. Sizes in tokens."""

    engine: str
    path: Path | None
    name: str
    max_seqs: int
    kv_tokens: int
    max_step_tokens: int
    threads: int
    threads_batch: int
    block_size: int = 16
    max_waiting: int = 1024
    context_tokens: int | None = None
    fake_cost: StepCost = StepCost()  # noqa: RUF009  # frozen
    fake_eos_every: int = 97

    @property
    def num_slots(self) -> int:
        """Sequences whose KV the device tells apart: the seats, and some for finished ones that may be hit again.

        A retained conversation is believed to have 256 tokens; a step must have room for one token of each slot.
        """
        retained = min(self.kv_tokens // 256, _MAX_RETAINED)
        return max(1, min(self.max_seqs + retained, self.max_step_tokens, _MAX_SLOTS))


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model and the engine that runs it, started or not. `adds_bos`: plain prompts begin with the model's BOS."""

    model: TextModel
    engine: Engine
    settings: SchedulerSettings
    vocab_size: int
    adds_bos: bool


def load_engine(options: EngineOptions) -> LoadedEngine:
    """The engine asked for, not started. Raises `CannotStart`. Takes as long as the model's file takes to read."""
    loaders: dict[str, Callable[[EngineOptions], tuple[TextModel, Runner, bool]]] = {"gguf": _gguf, "fake": _fake}
    loader = loaders.get(options.engine)
    if loader is None:
        raise CannotStart(f"there is no engine called {options.engine}; choose from {', '.join(loaders)}")
    try:
        model, runner, adds_bos = loader(options)
    except (ValueError, OSError, EngineFault) as error:
        raise CannotStart(str(error)) from error
    try:
        return _assemble(options, model, runner, adds_bos=adds_bos)
    except BaseException as error:
        runner.close()
        if isinstance(error, ValueError | BrokenTemplate):
            raise CannotStart(str(error)) from error
        raise


def _assemble(options: EngineOptions, model: TextModel, runner: Runner, *, adds_bos: bool) -> LoadedEngine:
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
    )
    scheduler = Scheduler(settings, SlotHolders(runner.num_slots, settings.block_size))
    engine = Engine(runner, scheduler, on_fault=_log_fault)
    return LoadedEngine(model, engine, settings, runner.vocab_size, adds_bos)


def _gguf(options: EngineOptions) -> tuple[TextModel, Runner, bool]:
    from engines.gguf.header import ModelFileError
    from engines.gguf.library import LibraryMismatch
    from engines.gguf.load import load

    if options.path is None:
        raise CannotStart("the gguf engine needs --path, a GGUF model file")
    try:
        model, runner = load(
            options.path,
            num_slots=options.num_slots,
            kv_tokens=options.kv_tokens,
            max_step_tokens=options.max_step_tokens,
            threads=options.threads,
            threads_batch=options.threads_batch,
            on_log=_log_library,
        )
    except (LibraryMismatch, ModelFileError) as error:
        raise CannotStart(str(error)) from error
    return model, runner, model.adds_bos


def _fake(options: EngineOptions) -> tuple[TextModel, Runner, bool]:
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
    return model, runner, False


def _log_fault(error: BaseException) -> None:
    logs.get().error("engine.step_failed", exc_info=error)


def _log_library(level: int, line: str) -> None:
    if level >= logging.WARNING:
        logs.get().log(level, "engine.library", message=line.strip())
