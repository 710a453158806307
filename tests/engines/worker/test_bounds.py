"""What a generation may ask for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.decoding import decode
from engines.core.sampling import SamplingRow
from engines.core.sequence import GenerateRequest, SamplingParams, Sequence
from engines.worker.bounds import MAX_LOGIT_BIASES, MAX_STOP_TOKENS, MAX_STOPS, check_generation
from engines.worker.errors import ApiError
from engines.worker.schema import ChatRequest, CompletionRequest, Message, StreamOptions
from policies.lane import Lane

VOCAB = 512


def chat(**fields) -> ChatRequest:
    return ChatRequest(model="m", messages=[Message(role="user", content="hi")], **fields)


def completion(**fields) -> CompletionRequest:
    return CompletionRequest(model="m", prompt="hi", **fields)


BAD = [
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 2**64),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 2**63),
    ("n", 0),
    ("n", 17),
    ("n", 100_000),
    ("top_k", -5),
    ("top_k", -2),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0.0),
    ("repetition_penalty", 1e-300),
    ("repetition_penalty", 11.0),
    ("min_tokens", -1),
    ("priority", 2**63),
    ("stop", ["x"] * 10_000),
    ("stop", ["x"] * (MAX_STOPS + 1)),
    ("stop", ["x" * 257]),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [2**40]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(MAX_STOP_TOKENS + 1))),
    ("logit_bias", {"x": 1.0}),
    ("logit_bias", {str(VOCAB): 1.0}),
    ("logit_bias", {"-1": 1.0}),
    ("logit_bias", {"1": 101.0}),
    ("logit_bias", {"1" * 30: 1.0}),
    ("logit_bias", {f"{n:09}": 1.0 for n in range(MAX_LOGIT_BIASES + 1)}),
    ("cache_salt", ""),
    ("cache_salt", "a@b"),
    ("cache_salt", "a/b"),
    ("cache_salt", "a\\b"),
    ("cache_salt", "a\x00b"),
    ("cache_salt", "a" * 129),
    ("request_id", "a b"),
    ("request_id", "a\r\nb"),
    ("allowed_token_ids", [1]),
    ("bad_words", ["x"]),
    ("prompt_logprobs", 0),
    ("truncate_prompt_tokens", 5),
    ("use_beam_search", True),
    ("kv_transfer_params", {"remote_host": "x"}),
]


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_value_out_of_range_or_unsupported_is_refused_by_name(make, field, value):
    """Numbers at the edge of what a worker can hold (P02), and fields it cannot honour: never ignored, never clamped."""
    with pytest.raises(ApiError) as caught:
        check_generation(make(**{field: value}), VOCAB)
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_completion_tokens", 0),
        ("top_logprobs", 21),
        ("top_logprobs", 3),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("chat_template", "{{ 1 }}"),
        ("web_search_options", {"a": 1}),
    ],
)
def test_chat_fields_that_cannot_be_honoured_are_refused_by_name(field, value):
    """No audio, no web, no template of the client's; saying so beats answering something else."""
    with pytest.raises(ApiError) as caught:
        check_generation(chat(**{field: value}), VOCAB)
    assert (caught.value.status, caught.value.param) == (400, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [("suffix", "x"), ("best_of", 3), ("logprobs", 21), ("logprobs", -1), ("prompt_embeds", "x")],
)
def test_completion_fields_that_cannot_be_honoured_are_refused_by_name(field, value):
    """What would change the answer is not ignored."""
    with pytest.raises(ApiError) as caught:
        check_generation(completion(**{field: value}), VOCAB)
    assert (caught.value.status, caught.value.param) == (400, field)


def test_echo_has_no_log_probabilities():
    """Those of the prompt are not computed."""
    with pytest.raises(ApiError) as caught:
        check_generation(completion(echo=True, logprobs=1), VOCAB)
    assert caught.value.param == "echo"


@pytest.mark.parametrize(
    "request_",
    [
        chat(seed=2**63 - 1, temperature=0, top_p=1, n=16, top_k=-1, stop="x", priority=-(2**63)),
        chat(response_format={"type": "text"}, tools=[], tool_choice="auto", functions=[], modalities=["text"]),
        chat(tools=[{"type": "function"}], tool_choice="none", logprobs=True, top_logprobs=20),
        completion(echo=True, suffix="", best_of=1, use_beam_search=False),
    ],
)
def test_values_at_the_edge_and_empty_fields_are_taken(request_):
    """A default sent explicitly is not a wish."""
    check_generation(request_, VOCAB)


def test_absent_fields_mean_openais_defaults():
    """Temperature 1, everything kept, one choice, no stop."""
    spec = check_generation(chat(), VOCAB)
    assert spec.sampling == SamplingParams()
    assert (spec.num_choices, spec.matcher, spec.max_tokens, spec.is_streaming) == (1, None, None, False)


def test_top_k_of_the_whole_vocabulary_is_no_top_k():
    """The one value that is normalised: it means the same."""
    assert check_generation(chat(top_k=VOCAB), VOCAB).sampling.top_k == 0
    assert check_generation(chat(top_k=VOCAB - 1), VOCAB).sampling.top_k == VOCAB - 1


def test_max_completion_tokens_wins():
    """OpenAI's newer name, and the one an error will carry."""
    spec = check_generation(chat(max_tokens=5, max_completion_tokens=7), VOCAB)
    assert (spec.max_tokens_field, spec.max_tokens) == ("max_completion_tokens", 7)


def test_more_minimum_than_maximum_is_refused():
    """Both cannot be kept."""
    with pytest.raises(ApiError) as caught:
        check_generation(chat(min_tokens=6, max_tokens=5), VOCAB)
    assert caught.value.param == "min_tokens"


def test_stream_options_need_a_stream():
    """As OpenAI has it."""
    with pytest.raises(ApiError) as caught:
        check_generation(chat(stream_options=StreamOptions(include_usage=True)), VOCAB)
    assert caught.value.param == "stream_options"
    spec = check_generation(chat(stream=True, stream_options=StreamOptions(continuous_usage_stats=True)), VOCAB)
    assert (spec.include_usage, spec.continuous_usage) == (False, True)


@pytest.mark.parametrize(
    ("priority", "lane"),
    [(None, Lane.INTERACTIVE), (0, Lane.INTERACTIVE), (1, Lane.STANDARD), (2, Lane.BULK), (99, Lane.BULK)],
)
def test_priority_is_a_lane(priority, lane):
    """The gateway says the lane in vLLM's integer."""
    assert check_generation(chat(priority=priority), VOCAB).lane is lane


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(),
            "n": st.integers(-2, 20),
            "top_k": st.integers(-5, 600),
            "temperature": st.floats(allow_nan=False),
            "top_p": st.floats(-1, 2),
            "stop_token_ids": st.lists(st.integers(-3, 600), max_size=5),
            "logit_bias": st.dictionaries(st.text(max_size=4), st.floats(-200, 200), max_size=3),
            "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=4),
            "max_tokens": st.integers(),
        },
    )
)
@settings(max_examples=200, deadline=None)
def test_whatever_passes_is_within_what_the_engine_believes(fields):
    """The engine checks nothing: all of its assumptions are made true here."""
    try:
        spec = check_generation(chat(**fields), VOCAB)
    except ApiError as refused:
        spec, param = None, refused.param
    if spec is None:
        assert param in fields
        return
    sampling = spec.sampling
    assert 0 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1
    assert 0 <= sampling.top_k < VOCAB
    assert all(0 <= token < VOCAB for token in sampling.stop_token_ids)
    assert all(0 <= token < VOCAB for token, _ in sampling.logit_bias)
    assert spec.max_tokens is None or spec.max_tokens >= 1
    assert 1 <= spec.num_choices <= 16


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.floats(0, 2) | st.sampled_from([1e-300, 1e-45, 1e-6]),
            "top_p": st.floats(0, 1, exclude_min=True),
            "top_k": st.integers(-1, VOCAB),
            "min_p": st.floats(0, 1),
            "repetition_penalty": st.floats(0.01, 10),
            "presence_penalty": st.floats(-2, 2),
            "frequency_penalty": st.floats(-2, 2),
            "logit_bias": st.dictionaries(st.sampled_from(["0", "1", "2"]), st.floats(-100, 100)),
            "min_tokens": st.integers(0, 1),
            "logprobs": st.just(True),
        },
    ),
    logits_seed=st.integers(0, 99),
    scale=st.sampled_from([0, 1e-30, 1, 1e4]),
)
@settings(max_examples=100, deadline=None)
def test_whatever_passes_can_be_sampled(fields, logits_seed, scale):
    """A request whose numbers break the sampler would end every request of the step, and after three the worker."""
    sampling = check_generation(chat(**fields), VOCAB).sampling
    request = GenerateRequest("r", (1, 2), replace(sampling, max_tokens=9))
    row = SamplingRow(Sequence(request, max_length=99, seed=0, order=(0, 0, 0.0, 1), tokens=[1, 2, 0, 0]))
    logits = np.random.default_rng(logits_seed).normal(0, scale, (1, VOCAB)).astype(np.float32)
    ((sampled,),) = decode(logits, [row], [None], frozenset({0}))
    assert 0 <= sampled.token < VOCAB
