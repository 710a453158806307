"""Grammars made of grammars, against a grammar that is a list of token texts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.grammar import GrammarFault, mask_words
from engines.worker.composed_grammars import AfterReasoning, EitherGrammar, ReasoningTokens

VOCAB, BEGIN, END, EOS = 40, 30, 31, 39


class Words:
    """What one of `words`, each a tuple of tokens, begins with; ends with EOS."""

    def __init__(self, *words):
        self.words = [(*word, EOS) for word in words]

    def start(self):
        return WordsState(self.words)


class WordsState:
    def __init__(self, words):
        self.words, self.said = words, ()

    def allowed(self):
        count = len(self.said)
        return {word[count] for word in self.words if len(word) > count and word[:count] == self.said}

    @property
    def is_finished(self):
        return not self.allowed()

    def fill(self, mask):
        mask[:] = 0
        for token in self.allowed():
            mask[token >> 5] |= np.uint32(1 << (token & 31))

    def accept(self, token):
        if token not in self.allowed():
            raise GrammarFault("no")
        self.said += (token,)

    def rollback(self, num_tokens):
        self.said = self.said[: len(self.said) - num_tokens]

    def allowed_prefix(self, tokens):
        ahead = WordsState(self.words)
        ahead.said = self.said
        for index, token in enumerate(tokens):
            if token not in ahead.allowed():
                return index
            ahead.accept(token)
        return len(tokens)

    def forced(self):
        return sorted(self.allowed()) if len(self.allowed()) == 1 else []


def allowed(state):
    mask = np.full(mask_words(VOCAB), 0xFFFFFFFF, np.uint32)
    state.fill(mask)
    return {
        token for token in range(mask_words(VOCAB) * 32) if mask[token >> 5] >> np.uint32(token & 31) & np.uint32(1)
    }


def after(grammar, *, is_open):
    return AfterReasoning(grammar, ReasoningTokens(BEGIN, END, is_open, frozenset({EOS}), VOCAB))


def test_anything_may_be_reasoned_and_then_the_grammar_holds():
    """But no end of the sequence while the model reasons."""
    state = after(Words((1, 2)), is_open=True).start()
    assert allowed(state) == set(range(VOCAB)) - {EOS}
    for token in (7, 1, END):
        state.accept(token)
    assert allowed(state) == {1}
    for token in (1, 2, EOS):
        assert not state.is_finished
        state.accept(token)
    assert state.is_finished


def test_a_model_may_begin_to_reason_or_answer_at_once():
    """Its tag is allowed at the beginning only."""
    grammar = after(Words((1, 2)), is_open=False)
    state = grammar.start()
    assert allowed(state) == {1, BEGIN}
    state.accept(1)
    assert allowed(state) == {2}
    other = grammar.start()
    other.accept(BEGIN)
    other.accept(END)
    assert allowed(other) == {1}
    with pytest.raises(GrammarFault):
        other.accept(BEGIN)


def test_either_grammar_may_be_followed_until_one_is_left():
    """The first token that only one allows decides."""
    state = EitherGrammar(Words((1, 2, 3)), Words((1, 5), (6,)), VOCAB).start()
    assert allowed(state) == {1, 6}
    state.accept(1)
    assert allowed(state) == {2, 5}
    state.accept(5)
    assert allowed(state) == {EOS}
    with pytest.raises(GrammarFault):
        state.accept(3)
    state.accept(EOS)
    assert state.is_finished


@pytest.mark.parametrize(
    "make",
    [
        lambda: after(Words((1, 2, 3), (4,)), is_open=True),
        lambda: after(Words((1, 2, 3), (4,)), is_open=False),
        lambda: EitherGrammar(Words((1, 2, 3)), Words((1, 2), (4, 4, 4)), VOCAB),
        lambda: after(EitherGrammar(Words((1, 2, 3)), Words((1, 2), (4, 4, 4)), VOCAB), is_open=False),
    ],
)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_tokens_taken_back_were_never_said(make, data):
    """Rollback at any depth leaves the state of a sequence that never had those tokens."""
    grammar = make()
    state, said = grammar.start(), []
    for _ in range(data.draw(st.integers(0, 12))):
        if said and data.draw(st.booleans()):
            count = data.draw(st.integers(1, len(said)))
            state.rollback(count)
            del said[-count:]
        elif not state.is_finished:
            options = sorted(allowed(state) & {1, 2, 3, 4, BEGIN, END, EOS})
            token = data.draw(st.sampled_from(options))
            state.accept(token)
            said.append(token)
        fresh = grammar.start()
        for token in said:
            fresh.accept(token)
        assert fresh.is_finished == state.is_finished
        if not state.is_finished:
            assert allowed(fresh) == allowed(state)
            guess = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, BEGIN, END, EOS]), max_size=5))
            count = 0
            for token in guess:
                if fresh.is_finished or token not in allowed(fresh):
                    break
                fresh.accept(token)
                count += 1
            assert state.allowed_prefix(guess) == count
            assert set(state.forced()[:1]) in (set(), allowed(state))
