"""Grammars made of grammars: one that waits until the reasoning has ended, and one of two that the answer may follow.

Both are `Grammar`s of the engine: immutable, with a state for each sequence.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engines.core.grammar import Grammar, GrammarFault, GrammarState, Mask, mask_words


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """A model's tags as tokens. `is_open`: the prompt has begun the reasoning. `end_ids`: end a sequence."""

    begin: int
    end: int
    is_open: bool
    end_ids: frozenset[int]
    vocab_size: int


class AfterReasoning:
    """Anything while the model reasons, which must come to an end; then the grammar."""

    def __init__(self, grammar: Grammar, tokens: ReasoningTokens) -> None:
        self._grammar = grammar
        self._tokens = tokens
        self._free = np.zeros(mask_words(tokens.vocab_size), np.uint32)
        _allow(self._free, (token for token in range(tokens.vocab_size) if token not in tokens.end_ids))

    def start(self) -> GrammarState:
        """A state before the first token."""
        return _AfterReasoningState(self._grammar.start(), self._tokens, self._free)


class _AfterReasoningState:
    """`_num_outside`: tokens accepted before the grammar's first; -1 of them, if any, is the end tag."""

    def __init__(self, inner: GrammarState, tokens: ReasoningTokens, free: Mask) -> None:
        self._inner = inner
        self._tokens = tokens
        self._free = free
        self._num_outside = 0
        self._num_inside = 0
        self._is_reasoning = tokens.is_open
        self._has_ended = False

    @property
    def is_finished(self) -> bool:
        """Whether the grammar is."""
        return not self._is_reasoning and self._inner.is_finished

    def fill(self, mask: Mask) -> None:
        """Everything but an end of the sequence, or what the grammar allows, or that and the tag."""
        if self._is_reasoning:
            mask[:] = self._free
            return
        self._inner.fill(mask)
        if not (self._num_inside or self._has_ended):
            _allow(mask, (self._tokens.begin,))

    def accept(self, token: int) -> None:
        """Go on by a token."""
        if self._is_reasoning:
            self._num_outside += 1
            if token == self._tokens.end:
                self._is_reasoning, self._has_ended = False, True
        elif token == self._tokens.begin and not (self._num_inside or self._has_ended):
            self._num_outside += 1
            self._is_reasoning = True
        else:
            self._inner.accept(token)
            self._num_inside += 1

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        inside = min(num_tokens, self._num_inside)
        self._inner.rollback(inside)
        self._num_inside -= inside
        outside = num_tokens - inside
        if outside:
            self._num_outside -= outside
            self._has_ended = False
            self._is_reasoning = self._tokens.is_open or self._num_outside > 0

    def allowed_prefix(self, tokens: list[int]) -> int:
        """How many of `tokens` could come next."""
        reasons, begins = self._is_reasoning, not (self._num_inside or self._has_ended)
        for index, token in enumerate(tokens):
            if not reasons:
                if not (begins and token == self._tokens.begin):
                    return index + self._inner.allowed_prefix(tokens[index:])
                reasons = True
            elif token in self._tokens.end_ids:
                return index
            elif token == self._tokens.end:
                reasons = begins = False
            else:
                begins = False
        return len(tokens)

    def forced(self) -> list[int]:
        """What the grammar forces, once it holds."""
        is_free = self._is_reasoning or not (self._num_inside or self._has_ended)
        return [] if is_free else self._inner.forced()


class EitherGrammar:
    """What one of two grammars matches. The answer decides which, at the first token that only one allows."""

    def __init__(self, first: Grammar, second: Grammar, vocab_size: int) -> None:
        self._grammars = (first, second)
        self._vocab_size = vocab_size

    def start(self) -> GrammarState:
        """A state before the first token."""
        return _EitherState([grammar.start() for grammar in self._grammars], mask_words(self._vocab_size))


class _EitherState:
    """`_lengths`: how many tokens each grammar has followed; the longest are still in it."""

    def __init__(self, states: list[GrammarState], num_words: int) -> None:
        self._states = states
        self._lengths = [0] * len(states)
        self._num_tokens = 0
        self._spare = np.zeros(num_words, np.uint32)

    @property
    def is_finished(self) -> bool:
        """Whether all that are still in it are."""
        return all(state.is_finished for state in self._alive())

    def fill(self, mask: Mask) -> None:
        """What any of them allows."""
        mask[:] = 0
        for state in self._alive():
            if not state.is_finished:
                state.fill(self._spare)
                mask |= self._spare

    def accept(self, token: int) -> None:
        """Go on by a token, with those that allow it."""
        is_allowed = False
        for index, state in enumerate(self._states):
            if self._lengths[index] != self._num_tokens or state.is_finished:
                continue
            state.fill(self._spare)
            if self._spare[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
                state.accept(token)
                self._lengths[index] += 1
                is_allowed = True
        if not is_allowed:
            raise GrammarFault("The grammar was told a token that it does not allow.")
        self._num_tokens += 1

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens."""
        self._num_tokens -= num_tokens
        for index, state in enumerate(self._states):
            over = self._lengths[index] - self._num_tokens
            if over > 0:
                state.rollback(over)
                self._lengths[index] -= over

    def allowed_prefix(self, tokens: list[int]) -> int:
        """How many of `tokens` could come next."""
        return max((state.allowed_prefix(tokens) for state in self._alive()), default=0)

    def forced(self) -> list[int]:
        """What the last one forces."""
        alive = self._alive()
        return alive[0].forced() if len(alive) == 1 else []

    def _alive(self) -> list[GrammarState]:
        return [s for s, length in zip(self._states, self._lengths, strict=True) if length == self._num_tokens]


def _allow(mask: Mask, tokens: Iterable[int]) -> None:
    ids = np.fromiter(tokens, np.int64)
    np.bitwise_or.at(mask, ids >> 5, np.left_shift(np.uint32(1), (ids & 31).astype(np.uint32)))
