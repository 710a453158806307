"""Clients' grammars made ready for the sampler, by llguidance, off the event loop and off the engine's thread.

With the grammar modules beside it the one door to llguidance. Compiled grammars are kept for whoever had them compiled:
a schema that another tenant has used takes as long as a new one, so nobody learns what others ask for.
"""

import asyncio
import contextlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engines.core.grammar import GrammarFault
from engines.core.plan import TextModel
from engines.worker.compiled_grammar import CompiledGrammar, first_line
from engines.worker.grammar_queue import FairQueue, Job, OwnedCache
from engines.worker.grammar_source import Source, locate, source_of
from engines.worker.grammar_spec import (
    GrammarError,
    GrammarKind,
    GrammarLimits,
    GrammarSpec,
    Structure,
    check_spec,
    structural_spec,
)
from engines.worker.grammar_tokens import grammar_tokenizer

__all__ = [
    "GrammarCompiler",
    "GrammarError",
    "GrammarKind",
    "GrammarLimits",
    "GrammarSpec",
    "Structure",
    "structural_spec",
]

_THREADS = 2  # compiling at once; more would only take turns with the engine's threads
_NICE = 10  # a tenth of a core beside the engine's threads, which wait for one another at every layer of a step


class GrammarCompiler:
    """Compiles specs for one model. Used on one event loop; `close` it.

    `max_kept`: compiled grammars that are kept; `max_waiting`: compilations that wait for a thread, of one owner, and
    four times as many of all.
    """

    def __init__(
        self,
        model: TextModel,
        vocab_size: int,
        limits: GrammarLimits | None = None,
        *,
        max_kept: int = 64,
        max_waiting: int = 64,
    ) -> None:
        self.limits = limits if limits is not None else GrammarLimits()
        self._model = model
        self._vocab_size = vocab_size
        self._special_ids = {text: model.encode(text, special=True) for text in model.special_texts}
        self._kept: OwnedCache[CompiledGrammar] = OwnedCache(max_kept)
        self._waiting: FairQueue[CompiledGrammar] = FairQueue(4 * max_waiting, max_waiting)
        self._open: dict[tuple[str, bytes], Job[CompiledGrammar]] = {}  # at work or waiting
        self._num_at_work = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar", initializer=_stand_back)
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()  # of the tokenizer's making

    def __repr__(self) -> str:
        return f"<GrammarCompiler kept={len(self._kept)} compiling={len(self._open)}>"

    async def compile(self, spec: GrammarSpec, owner: str = "") -> "CompiledGrammar":
        """The grammar of a spec. Raises `GrammarError`, at the latest after `limits.timeout_s`.

        `owner`: whose it is, such as a tenant's salt. Equal specs of one owner are compiled once, others' again. A
        compilation that takes longer goes on in its thread and is kept when it ends; one that still waits when nobody
        asks for it any more is left out.
        """
        digest = spec.digest
        kept = self._kept.get(owner, digest)
        if kept is not None:
            return kept
        job = self._open.get((owner, digest)) or self._begin(spec, owner, digest)
        job.num_askers += 1
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(job.made)), self.limits.timeout_s)
        except TimeoutError:
            seconds = self.limits.timeout_s
            what = "takes longer" if job.is_begun else "had to wait for others longer"
            raise GrammarError(
                f"The {spec.kind.value} {what} than {seconds:g} s to compile.", is_callers_fault=job.is_begun
            ) from None
        finally:
            job.num_askers -= 1
            if not job.num_askers and not job.is_begun:
                self._waiting.leave(job)
                del self._open[owner, digest]

    def warm_up(self) -> None:
        """Begin to make what every compilation needs, before anybody asks: it lets no other thread run meanwhile."""
        self._pool.submit(self._made_tokenizer)

    def close(self) -> None:
        """Compile nothing more. A compilation at work ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, spec: GrammarSpec, owner: str, digest: bytes) -> Job[CompiledGrammar]:
        """Queue a compilation, and hand out what threads are free for."""
        if not self._waiting.has_room(owner):
            raise GrammarError("Too many grammars are being compiled.", is_callers_fault=False)
        job = self._open[owner, digest] = Job(owner, digest, lambda: self._compile(spec))
        self._waiting.add(job)
        self._hand_out()
        return job

    def _hand_out(self) -> None:
        loop = asyncio.get_running_loop()
        while self._num_at_work < _THREADS and (job := self._waiting.next()) is not None:
            job.is_begun = True
            self._num_at_work += 1
            self._pool.submit(self._run, job, loop)

    def _run(self, job: Job[CompiledGrammar], loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of the pool."""
        compiled: CompiledGrammar | BaseException
        try:
            compiled = job.work()
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            compiled = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            loop.call_soon_threadsafe(self._has_compiled, job, compiled)

    def _has_compiled(self, job: Job[CompiledGrammar], compiled: "CompiledGrammar | BaseException") -> None:
        self._num_at_work -= 1
        del self._open[job.owner, job.key]
        self._hand_out()
        if isinstance(compiled, BaseException):
            job.made.set_exception(compiled)
        else:
            self._kept.keep(job.owner, job.key, compiled)
            job.made.set_result(compiled)

    def _compile(self, spec: GrammarSpec) -> "CompiledGrammar":
        """In a thread of the pool."""
        check_spec(spec, self.limits)
        try:
            source = source_of(spec, self.limits, self._special_ids)
        except ValueError as error:
            raise GrammarError(f"The {spec.kind.value} cannot be read: {first_line(str(error))}.") from None
        limits = _parser_limits(self.limits)
        matcher = LLMatcher(self._made_tokenizer(), source.text, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(source, matcher.get_error(), limits)
        grammar = CompiledGrammar(matcher, self._vocab_size, self._model.eos_ids)
        try:
            grammar.check()
        except GrammarFault as fault:
            raise GrammarError(f"The {source.name} is too complex: {fault}") from None
        return grammar

    def _made_tokenizer(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = grammar_tokenizer(self._model, self._vocab_size)
        return self._tokenizer


def _stand_back() -> None:
    """Give this thread less of a busy core than the engine's, so that streams keep their pace (case P50)."""
    if sys.platform == "linux":  # elsewhere priorities are of whole processes
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(_NICE + os.nice(0), 19))


def _refusal(source: Source, error: str, limits: LLParserLimits) -> GrammarError:
    """What the client is told; the place is found by compiling the parts of its schema alone."""

    def error_of(text: str) -> str:
        return first_line(LLMatcher.validate_grammar(text, None, limits=limits))

    line = first_line(error)
    place = locate(source, line, error_of)
    return GrammarError(f"The {source.name} cannot be compiled{place}: {line}.")


def _parser_limits(limits: GrammarLimits) -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=limits.max_states,
        max_grammar_size=100_000,
        verbose_errors=False,
    )
