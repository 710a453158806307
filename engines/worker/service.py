"""One worker's parts, and the states it goes through: serving, draining, over. Knows no HTTP.

Built once by the composition root on a running loop; everything a route needs is an attribute.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from engines.core.grammar import Grammar
from engines.worker.chat import ChatSurface
from engines.worker.completions import CompletionSurface
from engines.worker.composed_grammars import AfterReasoning, EitherGrammar
from engines.worker.constraints import Constraint
from engines.worker.engine_link import EngineLink
from engines.worker.errors import ApiError, invalid, stopping, unavailable
from engines.worker.family import family_of
from engines.worker.generation import Generation
from engines.worker.grammars import GrammarCompiler, GrammarError
from engines.worker.loaded import LoadedEngine
from engines.worker.metrics import WorkerMetrics
from engines.worker.prompts import PromptBuilder
from engines.worker.settings import WorkerSettings
from engines.worker.surface import ServedModel
from engines.worker.vectors import VectorSource

ResultT = TypeVar("ResultT")


class Service:
    """A loaded engine, ready to answer. `num_requests`: requests for the model whose answer has not ended."""

    def __init__(
        self,
        loaded: LoadedEngine,
        settings: WorkerSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        model, vocab_size = loaded.model, loaded.vocab_size
        self.loaded = loaded
        self.settings = settings
        self.clock = clock
        self.started_at = int(time.time())
        self.link = EngineLink(loaded.engine, loop)
        self.prompts = PromptBuilder(model, vocab_size, loaded.max_tokens, adds_bos=loaded.adds_bos)
        self.metrics = WorkerMetrics(
            settings.name,
            loaded.engine.load,
            block_size=loaded.block_size,
            num_blocks=loaded.num_blocks,
            vllm_names=settings.vllm_metric_names,
        )
        self.family = family_of(model, vocab_size, settings.tool_format, settings.reasoning_format)
        self.fingerprint = _fingerprint(loaded, settings)
        served = ServedModel(
            settings.name,
            self.prompts,
            vocab_size,
            model.piece,
            settings.default_max_tokens,
            self.family,
            self.fingerprint,
        )
        self.chat = ChatSurface(served)
        self.completions = CompletionSurface(served)
        self._grammars = GrammarCompiler(model, vocab_size)
        if loaded.generates:
            self._grammars.warm_up()
        self.vectors = VectorSource(loaded.embeddings, vocab_size) if loaded.embeddings is not None else None
        self.num_requests = 0
        self.is_draining = False
        self._num_preparing = 0
        self._generations: set[Generation] = set()
        self._waits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pool = ThreadPoolExecutor(settings.prepare_threads, thread_name_prefix="prepare")

    def __repr__(self) -> str:
        return f"Service(requests={self.num_requests}, preparing={self._num_preparing}, link={self.link!r})"

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return not self.is_draining and self.loaded.engine.is_healthy()

    def check_ready(self) -> None:
        """Raise `ApiError` 503 when a new request of any lane cannot be taken now."""
        if self.is_draining:
            raise unavailable("the worker is draining", code="draining", retry_after_s=5)
        if not self.loaded.engine.is_healthy():
            raise unavailable("the engine is not healthy", code="unhealthy", retry_after_s=10)
        if self.loaded.engine.is_full():
            raise unavailable("the request queue is full", code="queue_full")

    def check_generates(self) -> None:
        """Raise `ApiError` 400 where the model only embeds or ranks."""
        if not self.loaded.generates:
            does = "ranks documents" if self.vectors is not None and self.vectors.model.can_rank else "embeds texts"
            sentence = f"this worker's model {does}: it generates no text"
            raise ApiError(400, sentence, param="model", code="unsupported_model")

    async def prepare(self, work: Callable[[], ResultT]) -> ResultT:
        """`work` done in a thread. Raises `ApiError` 503 when too much of it is waiting already.

        Whoever walks through a client's values does it by recursion, so what is too deep for that is refused here.
        """
        if self._num_preparing >= self.settings.max_preparing:
            raise unavailable("too many prompts are being prepared", code="queue_full")
        loop = asyncio.get_running_loop()
        future = self._pool.submit(work)
        self._num_preparing += 1
        future.add_done_callback(lambda _: self._in_loop(loop, self._has_prepared))
        try:
            return await asyncio.wrap_future(future)
        except RecursionError:
            raise invalid(None, "the body is nested too deeply") from None

    async def grammar_of(self, constraint: Constraint, salt: str) -> Grammar:
        """The grammar of a constraint, compiled off the loop and kept for this salt.

        Raises `ApiError` that names its field.
        """
        vocab_size = self.loaded.vocab_size
        try:
            grammar: Grammar = await self._grammars.compile(constraint.spec, salt)
            if constraint.calls is not None:
                calls = await self._grammars.compile(constraint.calls, salt)
                grammar = EitherGrammar(grammar, calls, vocab_size)
        except GrammarError as error:
            if error.is_callers_fault:
                raise invalid(constraint.param, f"`{constraint.param}`: {error.message}") from None
            raise unavailable(error.message, code="queue_full") from None
        return grammar if constraint.reasoning is None else AfterReasoning(grammar, constraint.reasoning)

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """Count a request while it is open, so that a drain waits for it."""
        self.num_requests += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if self.num_requests == 0:
                self._idle.set()

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """A wait, for a body or a grammar, that ends with `ApiError` 503 when open requests are ended."""
        try:
            async with asyncio.timeout(None) as wait:
                self._waits.add(wait)
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            raise stopping() from None

    @contextmanager
    def open_generation(self, arrival: float) -> Iterator[Generation]:
        """A generation that ends with the block, or earlier when the worker stops."""
        generation = Generation(
            self.link, self.metrics, arrival=arrival, clock=self.clock, max_pending=self.settings.max_pending
        )
        self._generations.add(generation)
        try:
            with generation:
                yield generation
        finally:
            self._generations.discard(generation)

    async def drain(self) -> bool:
        """Take no new requests, give open ones `drain_s`, then end them with an error. True if none had to be ended."""
        self.is_draining = True
        self.loaded.engine.drain()
        if await self._wait_idle(self.settings.drain_s):
            return True
        self.end_open_requests()
        await self._wait_idle(_LAST_WORDS_S)
        return False

    def end_open_requests(self) -> None:
        """End all waits and generations, and all that is embedded or ranked, with an error, at once."""
        for wait in self._waits:
            wait.reschedule(0)
        self._waits.clear()
        for generation in list(self._generations):
            generation.fail(stopping())
        if self.vectors is not None:
            self.vectors.stop()

    def close(self) -> None:
        """End the engine's thread and give the device back. Takes up to a step."""
        if self.vectors is not None:
            self.vectors.close()
        self.loaded.close()
        self._grammars.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _wait_idle(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @staticmethod
    def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # closed: the process is ending, nobody counts any more
            loop.call_soon_threadsafe(callback)

    def _has_prepared(self) -> None:
        self._num_preparing -= 1


def _fingerprint(loaded: LoadedEngine, settings: WorkerSettings) -> str:
    """Of all that a seed's answer depends on besides the request: model, its template, and how it is run."""
    model = loaded.model
    context_tokens = loaded.settings.context_tokens if loaded.settings is not None else loaded.max_tokens
    told = (settings.engine, settings.name, model.name, loaded.vocab_size, model.chat_template, context_tokens)
    return f"fp_{hashlib.sha256(repr(told).encode(errors='replace')).hexdigest()[:10]}"


_LAST_WORDS_S = 2.0  # for the error events of a drain that ran out of time; chosen
