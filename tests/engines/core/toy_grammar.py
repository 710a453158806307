"""Grammars small enough to check by hand: automata over tokens."""

from dataclasses import dataclass

from engines.core.grammar import GrammarFault
from engines.fake.model import IM_END


@dataclass(frozen=True)
class ToyGrammar:
    """`moves`: by state, the next state by token. `final`: where the end token is allowed; states without moves end.

    `fails_in`: states whose mask is beyond its bounds.
    """

    moves: dict[int, dict[int, int]]
    final: frozenset[int] = frozenset()
    fails_in: frozenset[int] = frozenset()

    def start(self):
        return ToyState(self)

    def accepts(self, tokens) -> bool:
        """Whether `tokens`, an end token at the end or not, are a whole text of it."""
        state = 0
        for index, token in enumerate(tokens):
            if token == IM_END:
                return index == len(tokens) - 1 and state in self.final
            if token not in self.moves.get(state, {}):
                return False
            state = self.moves[state][token]
        return not self.moves.get(state)

    def begins(self, tokens) -> bool:
        """Whether `tokens` are the beginning of a text of it."""
        state = 0
        for token in tokens:
            if token not in self.moves.get(state, {}):
                return False
            state = self.moves[state][token]
        return True


class ToyState:
    """A state of it, which remembers how it got there. `fills`: how often it was asked for a mask."""

    def __init__(self, grammar):
        self._grammar = grammar
        self._past = [0]
        self.fills = 0

    @property
    def _moves(self):
        return self._grammar.moves.get(self._past[-1], {})

    @property
    def depth(self):
        return len(self._past) - 1

    @property
    def is_finished(self):
        return not self._moves

    def fill(self, mask):
        self.fills += 1
        if self._past[-1] in self._grammar.fails_in:
            raise GrammarFault("Too much.")
        mask[:] = 0
        allowed = [*self._moves, *([IM_END] if self._past[-1] in self._grammar.final else [])]
        for token in allowed:
            mask[token // 32] |= 1 << token % 32

    def accept(self, token):
        if token == IM_END and self._past[-1] in self._grammar.final:
            self._past.append(-1)
            return
        if token not in self._moves:
            raise GrammarFault("Not allowed.")
        self._past.append(self._moves[token])

    def rollback(self, num_tokens):
        assert num_tokens < len(self._past)
        del self._past[len(self._past) - num_tokens :]

    def allowed_prefix(self, tokens):
        state, count = self._past[-1], 0
        for token in tokens:
            if token not in self._grammar.moves.get(state, {}):
                break
            state, count = self._grammar.moves[state][token], count + 1
        return count

    def forced(self):
        tokens, state = [], self._past[-1]
        while len(self._grammar.moves.get(state, {})) == 1 and state not in self._grammar.final and len(tokens) < 20:
            ((token, state),) = self._grammar.moves[state].items()
            tokens.append(token)
        return tokens
