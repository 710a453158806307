"""Tokens from logits: the documented order, reproducible draws, honest distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.decoding import decode
from engines.core.plan import EngineFault
from engines.core.sampling import SamplingRow, _pick
from engines.core.sequence import GenerateRequest, SamplingParams, Sequence

VOCAB = 50
GREEDY = {"temperature": 0}


def sequence(*, prompt=(1, 2), output=(), seed=0, **params):
    request = GenerateRequest("r", tuple(prompt), SamplingParams(**params))
    return Sequence(request, max_length=99, seed=seed, order=(0, 0, 0.0, 1), tokens=[*prompt, *output])


def logits(*rows):
    return np.array(rows, dtype=np.float32)


def sample(rows, sequences, eos_ids):
    """One token for each row."""
    decoded = decode(rows, [SamplingRow(each) for each in sequences], [None] * len(sequences), eos_ids)
    return [sampled for (sampled,) in decoded]


def draw(row, eos=frozenset(), **fields):
    (sampled,) = sample(logits(row), [sequence(**fields)], eos)
    return sampled.token


def histogram(row, num=4000, **fields):
    tokens = [draw(row, seed=seed, **fields) for seed in range(num)]
    return np.bincount(tokens, minlength=len(row)) / num


def test_greedy_takes_the_best_of_each_row_and_changes_nothing():
    """The runner's array may be its own buffer."""
    rows = logits([0, 3, 1], [5, 0, 4])
    before = rows.copy()
    sampled = sample(rows, [sequence(**GREEDY), sequence(**GREEDY, logit_bias=((2, 9.0),))], frozenset())
    assert [each.token for each in sampled] == [1, 2]
    assert (rows == before).all()


def test_no_rows_no_tokens():
    """A step of chunks alone samples nothing."""
    assert sample(np.zeros((0, 5), dtype=np.float32), [], frozenset()) == []


@pytest.mark.parametrize("bad", [[0.0, np.nan, 1.0], [0.0, np.inf, 1.0], [-np.inf] * 3])
def test_senseless_logits_are_a_fault(bad):
    """Better a failed step than a random token."""
    with pytest.raises(EngineFault, match="not numbers"):
        draw(bad, **GREEDY)


def test_end_and_stop_tokens_are_barred_until_min_tokens():
    """Also where only they are likely."""
    row = [9, 8, 1]
    fields = GREEDY | {"min_tokens": 2, "stop_token_ids": frozenset({1})}
    assert draw(row, eos=frozenset({0}), output=(5,), **fields) == 2
    assert draw(row, eos=frozenset({0}), output=(5, 5), **fields) == 0


def test_frequency_counts_and_presence_does_not():
    """Both look at the output only, as OpenAI defines them."""
    row = [5.0, 4.5, 0.0]
    assert draw(row, prompt=(0, 0), frequency_penalty=1.0, **GREEDY) == 0
    assert draw(row, output=(0,), presence_penalty=0.4, **GREEDY) == 0
    assert draw(row, output=(0,) * 9, presence_penalty=0.4, **GREEDY) == 0
    assert draw(row, output=(0, 0), frequency_penalty=0.3, **GREEDY) == 1
    assert draw(row, output=(0,), presence_penalty=0.6, **GREEDY) == 1


def test_repetition_divides_positive_and_multiplies_negative_logits():
    """It makes seen tokens less likely whatever their sign, over prompt and output."""
    assert draw([4.0, 3.0, 0.0], prompt=(0,), repetition_penalty=2.0, **GREEDY) == 1
    assert draw([-1.0, -1.5, -9.0], prompt=(2,), output=(0,), repetition_penalty=2.0, **GREEDY) == 1


def test_bias_comes_before_penalties():
    """The order is a contract: a biased logit is what the penalty divides."""
    assert draw([1.0, 2.5], prompt=(0,), logit_bias=((0, 3.0),), repetition_penalty=2.0, **GREEDY) == 1


def test_temperature_one_draws_the_softmax():
    """The frequencies are the model's probabilities."""
    row = [2.0, 1.0, 0.0, -1.0]
    expected = np.exp(row) / np.exp(row).sum()
    assert np.abs(histogram(row) - expected).max() < 0.03


def test_low_temperature_approaches_greedy_without_overflow():
    """A tiny temperature is legal and must not warn."""
    assert {draw([30.0, 29.9, -50.0], temperature=1e-30, seed=seed) for seed in range(20)} == {0}


def test_top_k_keeps_the_k_best():
    """Nothing beyond them is ever drawn."""
    frequencies = histogram([3.0, 2.0, 1.0, 0.0], num=500, top_k=2)
    assert (frequencies > 0).tolist() == [True, True, False, False]
    assert {draw([0.0, 9.0], top_k=1, seed=seed) for seed in range(20)} == {1}


def test_top_p_keeps_the_smallest_sufficient_set():
    """The token that crosses the share is the last one kept."""
    row = np.log([0.5, 0.3, 0.15, 0.05])
    assert (histogram(row, num=500, top_p=0.6) > 0).tolist() == [True, True, False, False]
    assert (histogram(row, num=500, top_p=0.85) > 0).tolist() == [True, True, True, False]
    assert (histogram(row, num=200, top_p=0.0) > 0).tolist() == [True, False, False, False]


def test_top_p_looks_only_at_what_top_k_left():
    """Shares are of the survivors: 0.5 and 0.3 of 0.8 are 62% and 38%."""
    row = np.log([0.5, 0.3, 0.15, 0.05])
    assert (histogram(row, num=300, top_k=2, top_p=0.62) > 0).tolist() == [True, False, False, False]


def test_min_p_is_relative_to_the_best():
    """A token stays if it has that share of the best one's probability."""
    row = np.log([0.5, 0.3, 0.15, 0.05])
    assert (histogram(row, num=500, min_p=0.5) > 0).tolist() == [True, True, False, False]
    assert (histogram(row, num=500, min_p=0.5, top_p=0.99) > 0).tolist() == [True, True, False, False]


@given(
    rows=st.lists(st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB), min_size=1, max_size=4),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, VOCAB + 5),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=100, deadline=None)
def test_a_draw_does_not_depend_on_the_batch(rows, top_p, top_k, seed):
    """Batched or alone, early or late: seed and position alone decide."""
    fields = {"temperature": 0.7, "top_p": top_p, "top_k": top_k, "seed": seed}
    sequences = [sequence(output=(3,) * index, **fields) for index in range(len(rows))]
    together = [each.token for each in sample(logits(*rows), sequences, frozenset())]
    assert together == [draw(row, output=(3,) * index, **fields) for index, row in enumerate(rows)]


@given(
    row=st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB),
    top_p=st.floats(0.0, 1.0, exclude_max=True),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_nucleus_shortcut_equals_sorting_everything(row, top_p, seed):
    """Leaving unlikely tokens unsorted must not change the set."""
    values = np.array(row, dtype=np.float32)
    weights = np.exp(values - values.max())
    order = np.argsort(-weights, kind="stable")
    shares = np.cumsum(weights[order], dtype=np.float64)
    nucleus = order[: int(np.searchsorted(shares, top_p * weights.sum(dtype=np.float64))) + 1]
    assert draw(row, top_p=top_p, seed=seed) in nucleus


def test_positions_draw_differently():
    """One random number for all positions would repeat the same rank for ever."""
    row = np.zeros(VOCAB)
    assert len({draw(row, output=(1,) * n) for n in range(30)}) > 10


def test_logprobs_are_of_the_raw_logits():
    """Bias and temperature change the choice, not what is reported."""
    row = [2.0, 1.0, 0.0]
    expected = np.array(row) - np.log(np.exp(row).sum())
    fields = {"temperature": 0, "logprobs": 2, "logit_bias": ((2, 9.0),)}
    (sampled,) = sample(logits(row), [sequence(**fields)], frozenset())
    assert sampled.token == 2
    assert sampled.logprob.logprob == pytest.approx(expected[2])
    assert [token for token, _ in sampled.logprob.top] == [0, 1]
    assert [value for _, value in sampled.logprob.top] == pytest.approx(expected[:2].tolist())


def test_logprobs_zero_and_more_than_the_vocabulary():
    """Zero gives the chosen one's alone; too many give all."""
    (none,) = sample(logits([1.0, 0.0]), [sequence(logprobs=0, **GREEDY)], frozenset())
    (every,) = sample(logits([1.0, 0.0]), [sequence(logprobs=9, **GREEDY)], frozenset())
    assert none.logprob.top == ()
    assert [token for token, _ in every.logprob.top] == [0, 1]


@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1.0, 0.25, 1e-30, 3e7]), min_size=1, max_size=900).filter(any),
    uniform=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])),
)
@settings(max_examples=200, deadline=None)
def test_a_draw_in_two_levels_never_takes_what_has_no_weight(weights, uniform):
    """Barred tokens and whole stretches of them are passed over, at both ends of the range too."""
    values = np.array(weights, dtype=np.float32)
    index = _pick(values, uniform)
    assert values[index] > 0
    shares = np.cumsum(values, dtype=np.float64)
    slack = 1e-9 * shares[-1]
    assert shares[index] - values[index] - slack <= uniform * shares[-1] <= shares[index] + slack
