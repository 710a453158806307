"""From logits to tokens: masks, drafts, and what neither may change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.booking import book
from engines.core.decoding import decode
from engines.core.grammar import GrammarFault, mask_words
from engines.core.masking import MaskFiller, fill_row
from engines.core.plan import EngineFault
from engines.core.sampling import SamplingRow
from engines.core.sequence import FinishReason, GenerateRequest, SamplingParams, Sequence
from tests.engines.core.toy_grammar import ToyGrammar

VOCAB = 40
EOS = frozenset({2})  # the toy grammars' end token


def sequence(*, tokens=(1,), output=(), seed=0, grammar=None, max_length=99, **params):
    request = GenerateRequest("r", tuple(tokens), SamplingParams(**params), grammar=grammar)
    made = Sequence(request, max_length, seed, (0, 0, 0.0, 1), tokens=[*tokens, *output])
    made.grammar = grammar.start() if grammar is not None else None
    return made


def mask_of(*allowed):
    mask = np.zeros(mask_words(VOCAB), np.uint32)
    for token in allowed:
        mask[token // 32] |= 1 << token % 32
    return mask


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * 3


def tokens_of(decoded):
    return [sampled.token for sampled in decoded]


@given(
    allowed=st.sets(st.integers(0, VOCAB - 1), min_size=1),
    params=st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.5, 2.0]),
            "top_k": st.sampled_from([0, 1, 3]),
            "top_p": st.sampled_from([1.0, 0.5]),
            "min_p": st.sampled_from([0.0, 0.3]),
            "min_tokens": st.sampled_from([0, 5]),
            "repetition_penalty": st.sampled_from([1.0, 0.5, 2.0]),
            "presence_penalty": st.sampled_from([0.0, 2.0, -2.0]),
            "logit_bias": st.sampled_from([(), ((0, 100.0), (1, -100.0))]),
            "stop_token_ids": st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
        }
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=300, deadline=None)
def test_a_mask_lets_nothing_else_out(allowed, params, seed):
    """Whatever the parameters: bias, penalties and an unreached minimum do not open what the grammar closed."""
    row = SamplingRow(sequence(output=(3, 4, 3), seed=seed, **params))
    ((sampled,),) = decode(noise(1, VOCAB, seed=seed), [row], [[mask_of(*allowed)]], EOS)
    assert sampled.token in allowed


def test_a_mask_comes_before_everything_but_the_raw_logprobs():
    """The order is a contract: the best allowed token wins, and its logprob is that among all tokens."""
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 7], logits[0, 8] = 9, 5
    row = SamplingRow(sequence(temperature=0, logprobs=1))
    ((sampled,),) = decode(logits, [row], [[mask_of(8, 9)]], EOS)
    norm = np.log(np.exp(logits[0].astype(np.float64)).sum())
    assert sampled.token == 8
    assert sampled.logprob.logprob == pytest.approx(5 - norm, abs=1e-5)
    assert sampled.logprob.top[0][0] == 7


def test_an_end_is_barred_before_the_minimum_unless_nothing_else_is_allowed():
    """`min_tokens` asks for more; a grammar that has no more to give is stronger."""
    logits = noise(1, VOCAB)
    row = SamplingRow(sequence(temperature=0, min_tokens=3))
    assert tokens_of(decode(logits, [row], [[mask_of(2, 9)]], EOS)[0]) == [9]
    assert tokens_of(decode(logits, [row], [[mask_of(2)]], EOS)[0]) == [2]


def test_a_grammar_that_allows_nothing_possible_faults_alone():
    """One hopeless sequence must not cost its neighbours the step."""
    logits = noise(3, VOCAB)
    logits[1, 5] = -np.inf
    rows = [SamplingRow(sequence(temperature=0)) for _ in range(3)]
    first, second, third = decode(logits, rows, [None, [mask_of(5)], GrammarFault("Too much.")], EOS)
    assert tokens_of(first) == [int(logits[0].argmax())]
    assert isinstance(second, GrammarFault)
    assert str(third) == "Too much."


def test_senseless_logits_are_a_fault_of_the_device():
    """Behind a draft too."""
    logits = noise(2, VOCAB)
    logits[1, 3] = np.nan
    with pytest.raises(EngineFault):
        decode(logits, [SamplingRow(sequence(), (4,))], [None], EOS)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    num_drafts=st.integers(0, 5),
    penalty=st.sampled_from([0.0, 3.0]),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_drafts_yield_what_one_token_a_step_would(seed, temperature, num_drafts, penalty, data):
    """Position for position the same token, logprobs too, up to the first draft that does not hold."""
    logits = noise(num_drafts + 1, 6, seed=seed)
    params = {"temperature": temperature, "frequency_penalty": penalty, "logprobs": 1, "seed": seed}
    truth, output = [], []
    for row in logits:
        (one,) = decode(row[None], [SamplingRow(sequence(output=output, **params))], [None], EOS)[0]
        truth.append(one)
        output.append(one.token)
    drafts = tuple(data.draw(st.sampled_from([output[index], 0])) for index in range(num_drafts))
    (yielded,) = decode(logits, [SamplingRow(sequence(**params), drafts)], [None], EOS)
    held = next((index for index in range(num_drafts) if drafts[index] != output[index]), num_drafts)
    assert list(yielded) == truth[: held + 1]


def test_drafts_leave_the_distribution_as_it_is():
    """Chi-square over a toy vocabulary: drafted for or not, tokens come as often as the softmax says."""
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = np.log(np.tile(probabilities, (2, 1))).astype(np.float32)
    num, pairs = 4000, np.zeros((5, 5))
    firsts = np.zeros(5)
    for seed in range(num):
        row = SamplingRow(sequence(seed=seed, temperature=1.0), (seed % 5,))  # right by chance
        tokens = tokens_of(decode(logits, [row], [None], EOS)[0])
        firsts[tokens[0]] += 1
        if len(tokens) == 2:
            pairs[tokens[0], tokens[1]] += 1
    seconds = pairs.sum(axis=0)
    for counts in (firsts, seconds):
        expected = probabilities * counts.sum()
        assert ((counts - expected) ** 2 / expected).sum() < 18.47  # 0.1% at 4 degrees of freedom
    assert 0.15 * num < seconds.sum() < 0.25 * num


LINE = ToyGrammar({0: {5: 1, 6: 1}, 1: {7: 2}, 2: {8: 3}}, final=frozenset({2}))


def test_masks_are_filled_for_each_draft_and_the_state_goes_back():
    """The step may yield none of the drafts, so the grammar must still be where the tokens are."""
    state = LINE.start()
    masks = fill_row(state, (5, 7), mask_words(VOCAB))
    assert [mask.tolist() for mask in masks] == [mask_of(*allowed).tolist() for allowed in ((5, 6), (7,), (8, 2))]
    assert (state.depth, state.fills) == (0, 3)
    assert len(fill_row(state, (5, 7, 8), mask_words(VOCAB))) == 3  # nothing comes after the last


def test_a_fault_behind_a_draft_ends_the_drafts_only():
    """What is in front of it is right, and whether it is reached is not known yet."""
    failing = replace(LINE, fails_in=frozenset({1})).start()
    assert len(fill_row(failing, (5, 7), mask_words(VOCAB))) == 1
    assert failing.depth == 0
    failed = replace(LINE, fails_in=frozenset({0})).start()
    assert isinstance(fill_row(failed, (5,), mask_words(VOCAB)), GrammarFault)


def test_masks_of_a_mixed_step_come_in_its_rows_order():
    """Rows without a grammar cost nothing, not even the thread."""
    filler = MaskFiller(VOCAB)
    free = SamplingRow(sequence())
    try:
        assert filler.start([free, free]).wait() == [None, None]
        first, second = filler.start([free, SamplingRow(sequence(grammar=LINE), (5,))]).wait()
        assert first is None
        assert [mask.tolist() for mask in second] == [mask_of(5, 6).tolist(), mask_of(7).tolist()]
    finally:
        filler.close()
        filler.close()


def booked(made, *tokens):
    """What a sequence makes of these tokens."""
    rows = np.full((len(tokens), VOCAB), 0, np.float32)
    rows[np.arange(len(tokens)), list(tokens)] = 9
    (yielded,) = decode(rows, [SamplingRow(sequence(temperature=0), tuple(tokens[:-1]))], [None], EOS)
    return book(made, yielded, EOS)


def test_tokens_behind_an_end_are_dropped():
    """An end may stand anywhere among what a step yields."""
    made = sequence(stop_token_ids=frozenset({7}))
    result = booked(made, 5, 7, 6)
    assert (tokens_of(result.sampled), result.reason, result.stop_token) == ([5, 7], FinishReason.STOP, 7)
    assert made.tokens == [1, 5, 7]
    assert booked(sequence(), 2, 5).stop_token == 2
    ignoring = booked(sequence(ignore_eos=True), 2, 5)
    assert (tokens_of(ignoring.sampled), ignoring.reason) == ([2, 5], None)
    assert booked(sequence(max_length=3), 5, 6, 7).reason is FinishReason.LENGTH


def test_a_finished_grammar_ends_its_sequence_without_a_stop_token():
    """All of the last token's text is the answer's."""
    made = sequence(grammar=LINE)
    result = booked(made, 5, 7, 8)
    assert (result.reason, result.stop_token, made.tokens) == (FinishReason.STOP, None, [1, 5, 7, 8])
    ended = sequence(grammar=LINE)
    result = booked(ended, 5, 7, 2)
    assert (result.reason, result.stop_token) == (FinishReason.STOP, 2)


def test_a_grammar_that_cannot_go_on_is_that_sequences_error():
    """The sentence says why."""
    assert booked(sequence(grammar=LINE), 5, 9).reason is FinishReason.ERROR
    result = book(sequence(), GrammarFault("Too much."), EOS)
    assert (result.reason, result.error, result.sampled) == (FinishReason.ERROR, "Too much.", ())


@given(
    seed=st.integers(0, 1000),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.just(0.7),
            "logprobs": st.just(0),
            "min_tokens": st.just(3),
            "logit_bias": st.just(((4, 9.0),)),
            "presence_penalty": st.just(2.0),
            "frequency_penalty": st.just(-2.0),
            "repetition_penalty": st.just(0.5),
        },
    ),
)
@settings(max_examples=60, deadline=None)
def test_rows_of_which_nothing_but_the_best_token_is_asked_may_skip_the_rest(seed, fields):
    """The short way gives what the whole way gives, and no other request may take it."""
    params = {"temperature": 0.0} | fields
    whole, short = (sequence(output=(5, 5, 6), seed=seed, **params) for _ in range(2))
    short.takes_best = whole.request.sampling.takes_best
    assert short.takes_best is not bool(fields)
    logits = noise(1, VOCAB, seed=seed)
    assert decode(logits, [SamplingRow(short)], [None], EOS) == decode(logits, [SamplingRow(whole)], [None], EOS)
