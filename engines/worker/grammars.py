"""Clients' grammars made ready for the sampler, by llguidance, off the event loop and off the engine's thread.

With the grammar modules beside it the one door to llguidance. Compiled grammars are kept, the least recently used go
first.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engines.core.grammar import GrammarFault
from engines.core.plan import TextModel
from engines.worker.compiled_grammar import CompiledGrammar, first_line
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


class GrammarCompiler:
    """Compiles specs for one model. Used on one event loop; `close` it.

    `max_kept`: compiled grammars that are kept; `max_waiting`: compilations at work or waiting.
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
        self._max_kept = max_kept
        self._max_waiting = max_waiting
        self._kept: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._open: dict[bytes, Future[CompiledGrammar]] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()  # of the tokenizer's making

    def __repr__(self) -> str:
        return f"<GrammarCompiler kept={len(self._kept)} compiling={len(self._open)}>"

    async def compile(self, spec: GrammarSpec) -> "CompiledGrammar":
        """The grammar of a spec. Raises `GrammarError`, at the latest after `limits.timeout_s`.

        Equal specs are compiled once. A compilation that takes longer goes on in its thread and is kept when it ends.
        """
        digest = spec.digest
        kept = self._kept.get(digest)
        if kept is not None:
            self._kept.move_to_end(digest)
            return kept
        future = self._open.get(digest)
        if future is None:
            if len(self._open) >= self._max_waiting:
                raise GrammarError("Too many grammars are being compiled.", is_callers_fault=False)
            future = self._open[digest] = self._pool.submit(self._compile, spec)
            loop = asyncio.get_running_loop()
            future.add_done_callback(lambda done: _on_loop(loop, lambda: self._has_compiled(digest, done)))
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self.limits.timeout_s)
        except TimeoutError:
            is_begun = future.running()
            seconds = self.limits.timeout_s
            what = "takes longer" if is_begun else "had to wait for others longer"
            raise GrammarError(
                f"The {spec.kind.value} {what} than {seconds:g} s to compile.", is_callers_fault=is_begun
            ) from None

    def close(self) -> None:
        """Compile nothing more. A compilation at work ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _has_compiled(self, digest: bytes, done: "Future[CompiledGrammar]") -> None:
        self._open.pop(digest, None)
        if done.cancelled() or done.exception() is not None:
            return
        self._kept[digest] = done.result()
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def _compile(self, spec: GrammarSpec) -> "CompiledGrammar":
        """In a thread of the pool."""
        check_spec(spec, self.limits)
        try:
            source = source_of(spec, self.limits, self._special_ids)
        except ValueError as error:
            raise GrammarError(f"The {spec.kind.value} cannot be read: {first_line(str(error))}.") from None
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = grammar_tokenizer(self._model, self._vocab_size)
        limits = _parser_limits(self.limits)
        matcher = LLMatcher(self._tokenizer, source.text, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refusal(source, matcher.get_error(), limits)
        grammar = CompiledGrammar(matcher, self._vocab_size, self._model.eos_ids)
        try:
            grammar.check()
        except GrammarFault as fault:
            raise GrammarError(f"The {source.name} is too complex: {fault}") from None
        return grammar


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


def _on_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)
