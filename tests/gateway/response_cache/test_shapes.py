"""A stream made of a whole answer and a whole answer made of a stream say the same; what is not known has one form."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.response_cache.shapes import ended_well, events_of, read_chunks, stream_of, to_stream, to_whole

TEXT = st.text(max_size=8)
CALL = st.fixed_dictionaries(
    {
        "id": st.just("c"),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT}),
    }
)
TOKEN = st.fixed_dictionaries({"token": TEXT, "logprob": st.integers(-9, 0), "top_logprobs": st.just([])})
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": TEXT, "refusal": st.none()}, optional={"reasoning_content": TEXT}
)
CHOICE = st.fixed_dictionaries(
    {
        "message": MESSAGE,
        "logprobs": st.none() | st.fixed_dictionaries({"content": st.lists(TOKEN, min_size=1, max_size=3)}),
        "finish_reason": st.sampled_from(["stop", "length"]),
    },
    optional={"stop_reason": st.none() | st.integers()},
)
ENVELOPE = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "f"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def whole_of(choices, **more):
    """A whole answer."""
    return ENVELOPE | {"choices": [{"index": n} | choice for n, choice in enumerate(choices)], "usage": USAGE} | more


@settings(deadline=None, max_examples=80)
@given(st.lists(CHOICE, min_size=1, max_size=3))
def test_there_and_back_again(choices):
    """All that a chat says survives both ways."""
    whole = whole_of(choices)
    stream = to_stream(json.dumps(whole).encode())
    assert ended_well(read_chunks(events_of(stream)), len(choices))
    assert json.loads(to_whole(stream)) == whole


@settings(deadline=None, max_examples=40)
@given(st.lists(CALL, min_size=1, max_size=3))
def test_calls_survive(calls):
    """With their arguments as they were."""
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}
    whole = whole_of([{"message": message, "logprobs": None, "finish_reason": "tool_calls"}])
    assert json.loads(to_whole(to_stream(json.dumps(whole).encode()))) == whole


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), TEXT), max_size=8), st.data())
def test_pieces_are_joined_in_their_order(pieces, data):
    """However an engine cuts its text, or a call's arguments, or mixes choices."""
    chunks = [{"choices": [{"index": n, "delta": {"role": "assistant", "content": ""}}]} for n in (0, 1)]
    chunks += [{"choices": [{"index": n, "delta": {"content": text}}]} for n, text in pieces]
    chunks += [
        {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}}]}
    ]
    arguments = data.draw(st.lists(TEXT, max_size=4))
    chunks += [
        {"choices": [{"index": 1, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": one}}]}}]}
        for one in arguments
    ]
    chunks += [{"choices": [{"index": n, "delta": {}, "finish_reason": "stop"}]} for n in (1, 0)]
    chunks.append({"choices": [], "usage": USAGE})
    told = [json.dumps(ENVELOPE | {"object": "chat.completion.chunk"} | one).encode() for one in chunks]
    whole = json.loads(to_whole(stream_of(told)))
    said = ["".join(text for n, text in pieces if n == number) for number in (0, 1)]
    assert [one["message"]["content"] for one in whole["choices"]] == [said[0], said[1] or None]
    (call,) = whole["choices"][1]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "".join(arguments)}
    assert (whole["usage"], whole["object"]) == (USAGE, "chat.completion")


def test_completions_both_ways():
    """The older surface."""
    choices = [{"index": n, "text": text, "logprobs": None, "finish_reason": "length"} for n, text in enumerate("ab")]
    whole = {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": choices, "usage": USAGE}
    assert json.loads(to_whole(to_stream(json.dumps(whole).encode()))) == whole


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": "a", "audio": {"id": "x"}}, "finish_reason": "stop"},
        {"message": {"content": "a"}, "finish_reason": "stop", "token_ids": [1]},
        {"text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": "stop"},
        {"message": {"content": None, "function_call": {"name": "f"}}, "finish_reason": "function_call"},
        {"message": {"tool_calls": [{"id": "c", "function": {}, "strange": 1}]}, "finish_reason": "tool_calls"},
    ],
)
def test_what_is_not_known_has_no_other_form(choice):
    """Rather a new answer than half of an old one."""
    assert to_stream(json.dumps(whole_of([choice])).encode()) is None
    delta = {"delta" if name == "message" else name: value for name, value in choice.items()}
    assert to_whole(stream_of([json.dumps({"choices": [{"index": 0} | delta]}).encode()])) is None


@pytest.mark.parametrize(
    ("chunks", "num", "is_good"),
    [
        ([{"choices": [{"finish_reason": "stop"}]}], 1, True),
        ([{"choices": [{"finish_reason": "stop"}]}], 2, False),
        ([{"choices": [{"index": 0, "finish_reason": "stop"}, {"index": 1, "finish_reason": "length"}]}], 2, True),
        ([{"choices": [{"finish_reason": None}]}], 1, False),
        ([{"choices": [{"finish_reason": "content_filter"}]}], 1, False),
        ([{"choices": [{"finish_reason": "abort"}]}], 1, False),
        ([{"choices": [{"finish_reason": "stop"}]}, {"error": {"code": 500}}], 1, False),
        ([], 1, False),
    ],
)
def test_only_what_its_model_ended_is_given_again(chunks, num, is_good):
    """Every choice of it."""
    assert ended_well(chunks, num) is is_good
