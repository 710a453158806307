"""A grammar that llguidance has compiled, as the engine uses it.

What it costs while it is used is bounded: one that takes too long, or more states than it may have, ends its own
sequence. Nothing of a matcher depends on the thread it is used in.
"""

import re
import time

import numpy as np
from llguidance import LLMatcher

from engines.core.grammar import GrammarFault, Mask, mask_words
from engines.worker.grammar_spec import GrammarError

_LISTING = re.compile(r"\n\s*\d+ \| ")
_TRIED_TOKENS = 16  # of a text that begins as the grammar allows; chosen
_SPARE_S, _TOKEN_S = 1.0, 0.005  # CPU time a grammar may take: so much, and so much more for each token; chosen


class CompiledGrammar:
    """A `Grammar` of the engine. Immutable: its matcher is only copied."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._num_words = mask_words(vocab_size)
        self._ends = np.zeros(self._num_words, np.uint32)
        for token in eos_ids:
            self._ends[token // 32] |= np.uint32(1 << token % 32)

    def start(self) -> "CompiledState":
        """A state before the first token."""
        return CompiledState(self._matcher.deep_copy(), self._num_words)

    def check(self) -> None:
        """Try it out for some tokens: what it forces, else what comes first in the vocabulary.

        Raises `GrammarError` if it generates nothing, `GrammarFault` if it exceeds its bounds.
        """
        state = self.start()
        mask = np.zeros(self._num_words, np.uint32)
        if not state.can_go_on(mask):
            raise GrammarError("The grammar matches nothing, or nothing but the empty text.")
        if not (mask & ~self._ends).any():
            raise GrammarError("The grammar matches nothing that this model can write, or nothing but the empty text.")
        for _ in range(_TRIED_TOKENS):
            state.accept(next(iter(state.forced()), None) or _first_token(mask & ~self._ends))
            if not state.can_go_on(mask) or not (mask & ~self._ends).any():
                return


class CompiledState:
    """A `GrammarState` of the engine."""

    def __init__(self, matcher: LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._num_words = num_words
        self._left_s = _SPARE_S

    @property
    def is_finished(self) -> bool:
        """Whether nothing more may come."""
        return bool(self._matcher.is_stopped())

    def can_go_on(self, mask: Mask) -> bool:
        """Whether anything may come next; fills `mask` with it. Raises `GrammarFault` at a bound."""
        try:
            self.fill(mask)
        except GrammarFault:
            if "NoExtension" not in self._matcher.get_error():
                raise
            return False
        return not self.is_finished

    def fill(self, mask: Mask) -> None:
        """Write what may come next. Lets other Python threads run."""
        assert mask.dtype == np.uint32, "a mask is of 32-bit words"
        assert mask.shape == (self._num_words,), "the mask is for another vocabulary"
        assert mask.flags.c_contiguous, "a mask is contiguous"
        started = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._left_s -= time.thread_time() - started
        self._check()

    def accept(self, token: int) -> None:
        """Go on by a token."""
        self._left_s = min(_SPARE_S, self._left_s + _TOKEN_S)
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarFault("The grammar was told a token that it does not allow.")

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise GrammarFault("The grammar cannot go back.")

    def allowed_prefix(self, tokens: list[int]) -> int:
        """How many of `tokens` could come next, one after the other. Changes nothing."""
        return int(self._matcher.validate_tokens(tokens))

    def forced(self) -> list[int]:
        """Tokens that the grammar leaves no choice about, as the model would most likely cut them. Changes nothing."""
        return list(self._matcher.compute_ff_tokens())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFault(f"The grammar cannot go on: {first_line(self._matcher.get_error())}.")
        if self._left_s < 0:
            raise GrammarFault("The grammar takes too much time to apply.")


def _first_token(mask: Mask) -> int:
    """The lowest that a mask of some allows."""
    word = int(np.flatnonzero(mask)[0])
    bits = int(mask[word])
    return word * 32 + (bits & -bits).bit_length() - 1


def first_line(error: str) -> str:
    """What is wrong, without the compiler's own listing of our text."""
    text = " ".join(_LISTING.split(error.partition("<non-verbose/>")[0], maxsplit=1)[0].split())
    return (text if len(text) <= 300 else text[:300] + "...").rstrip(".")
