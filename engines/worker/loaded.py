"""An engine made ready: model, scheduler and thread put together, whichever runner it is."""

import secrets
from dataclasses import dataclass, replace

from engines.core.admission import SchedulerSettings
from engines.core.embedding import EmbeddingModel
from engines.core.engine import Engine
from engines.core.holders import SlotHolders
from engines.core.host_tier import HostSettings
from engines.core.plan import TextModel
from engines.core.scheduler import Scheduler
from engines.step_cost import StepCostFitter
from engines.worker.chat_template import BrokenTemplate, ChatTemplate
from engines.worker.engine_loaders import CannotStart, EmbeddingParts, GeneratingParts, Parts, load_parts
from engines.worker.engine_options import EngineOptions
from engines.worker.kv_events import CannotPublish, KvEventPublisher, KvEventSettings, Snapshot
from engines.worker.no_engine import NoEngine
from engines.worker.served_file import ServedFile
from engines.worker.step_log import StepLog
from observability import logs

__all__ = ["CannotStart", "EngineOptions", "LoadedEngine", "load_engine"]


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model and the engine that runs it, started or not. `adds_bos`: plain prompts begin with the model's BOS.

    `settings`: the engine's; None, and a `NoEngine`, where the model only embeds or ranks. `embeddings`: what answers
    for vectors and scores; None where the model only generates. `file`: what the weights are read from while it runs.
    """

    model: TextModel
    engine: Engine | NoEngine
    settings: SchedulerSettings | None
    vocab_size: int
    adds_bos: bool
    step_log: StepLog | None = None
    kv_events: KvEventPublisher | None = None
    embeddings: EmbeddingModel | None = None
    file: ServedFile | None = None

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return self.settings is not None

    @property
    def max_seqs(self) -> int:
        """Sequences computed at once; 0 where none are generated."""
        return self.settings.max_seqs if self.settings is not None else 0

    @property
    def block_size(self) -> int:
        """Tokens in a block of the prefix cache; 0 without one."""
        return self.settings.block_size if self.settings is not None else 0

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache; 0 without one."""
        return self.settings.num_blocks if self.settings is not None else 0

    @property
    def max_tokens(self) -> int:
        """The longest sequence, or the longest text to embed, that is taken."""
        if self.settings is not None:
            return self.settings.max_sequence_tokens
        return self.embeddings.max_input_tokens if self.embeddings is not None else 0

    def start(self) -> None:
        """Start the engine's thread, and the events' before it. Once."""
        if self.kv_events is not None:
            self.kv_events.start()
        self.engine.start()

    def close(self) -> None:
        """End the engine's thread, give the devices back, close the log. Takes up to a step; may be repeated."""
        self.engine.stop()
        if self.embeddings is not None:
            self.embeddings.close()
        if self.kv_events is not None:
            self.kv_events.stop()
        if self.step_log is not None:
            self.step_log.close()


def load_engine(options: EngineOptions) -> LoadedEngine:
    """The engine asked for, not started. Raises `CannotStart`. Takes as long as the model's file takes to read."""
    file = ServedFile.of(options.path) if options.path is not None and options.engine == "gguf" else None
    parts = load_parts(options)
    try:
        return replace(_assembled(options, parts), file=file)
    except BaseException as error:
        parts.close()
        if isinstance(error, ValueError | OSError | BrokenTemplate | CannotPublish):
            raise CannotStart(str(error)) from error
        raise


def _assembled(options: EngineOptions, parts: Parts) -> LoadedEngine:
    if isinstance(parts, EmbeddingParts):
        return LoadedEngine(
            parts.model, NoEngine(), None, parts.vocab_size, adds_bos=False, embeddings=parts.embeddings
        )
    model, runner = parts.model, parts.runner
    if model.chat_template:
        ChatTemplate(model.chat_template)
    settings = _settings(options, parts)
    scheduler = Scheduler(settings, SlotHolders(runner.num_slots, settings.block_size))
    step_log = StepLog(options.step_log) if options.step_log is not None else None
    publisher = _publisher(options.kv_events, lambda: engine.kv_snapshot())  # noqa: PLW0108  # made below
    try:
        engine = Engine(
            runner,
            scheduler,
            fitter=StepCostFitter(parts.prior),
            on_step=step_log.write if step_log is not None else None,
            on_fault=_log_fault,
            on_events=publisher.offer if publisher is not None else None,
            checks_when_idle=options.checks_when_idle,
        )
    except ValueError:
        if publisher is not None:
            publisher.stop()
        raise
    return LoadedEngine(
        model, engine, settings, runner.vocab_size, parts.adds_bos, step_log, publisher, parts.embeddings
    )


def _settings(options: EngineOptions, parts: GeneratingParts) -> SchedulerSettings:
    model = parts.model
    return SchedulerSettings(
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
        eviction=options.eviction,
        host=HostSettings(
            max_tokens=HostSettings.max_tokens_in(options.host_kv_bytes, parts.runner.host_bytes_per_token),
            save_s_per_token=parts.save_s_per_token,
            restore_s_per_token=parts.restore_s_per_token,
        ),
        mixes_prompts=parts.mixes_prompts,
    )


def _publisher(settings: KvEventSettings | None, snapshot: Snapshot) -> KvEventPublisher | None:
    return None if settings is None else KvEventPublisher(settings, snapshot, secrets.token_hex(8))


def _log_fault(error: BaseException) -> None:
    logs.get().error("engine.step_failed", exc_info=error)
