"""What is read in an engine's answer: usage in every place, content of every kind, errors, and what is no chunk."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.chunks import answer_text_bytes, read_answer, read_chunk, usage_chunk, without_usage

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def chunk(delta=None, finish=None, **fields):
    """Bytes of a chat chunk with one choice."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return json.dumps({"id": "c", "choices": [choice], **fields}).encode()


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": " "},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"role": "assistant", "content": "x"},
    ],
)
def test_everything_a_client_would_show_is_content(delta):
    """From the first of these on, no other replica may be tried."""
    assert read_chunk(chunk(delta)).has_content
    assert read_chunk(chunk(delta, usage=None)).has_content


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"role": "assistant"},
        {"content": ""},
        {"content": None},
        {"role": "assistant", "content": "", "tool_calls": []},
    ],
)
def test_a_role_or_nothing_is_no_content(delta):
    """Nothing of it is lost when another replica answers instead."""
    signs = read_chunk(chunk(delta))
    assert (signs.has_content, signs.finished, signs.usage, signs.is_error) == (False, (), None, False)


def test_text_of_a_completion_is_content():
    """The older surface has no delta."""
    assert read_chunk(b'{"choices":[{"index":0,"text":"x","finish_reason":null}]}').has_content
    assert not read_chunk(b'{"choices":[{"index":0,"text":""}]}').has_content


TEXTS = [
    ({"content": "tea"}, 3),
    ({"content": "x" * 5000}, 5000),
    ({"content": 'a\n"b"'}, 5),
    ({"content": "\u65e5\u672c"}, 6),
    ({"reasoning_content": "hm"}, 2),
    ({"reasoning": "hmm"}, 3),
    ({"refusal": "no"}, 2),
    ({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "look", "arguments": ""}}]}, 4),
    ({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}, {"function": {"arguments": "xy"}}]}, 9),
    ({"tool_calls": [{"index": 0}]}, 1),
    ({"role": "assistant", "content": None}, 0),
    ({}, 0),
]


@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize(("said", "size"), TEXTS)
def test_the_size_of_what_is_said_is_known_in_every_shape(said, size, is_ascii):
    """Of text, thoughts and tool calls, without the JSON around them; the same whether an engine escapes or not."""
    choice = {"index": 0, "finish_reason": None}
    chunks = [
        json.dumps({"choices": [{**choice, "delta": said}], **more}, ensure_ascii=is_ascii)
        for more in ({}, {"usage": None})
    ]
    assert [read_chunk(one.encode(), with_size=True).text_bytes for one in chunks] == [size, size]
    whole = json.dumps({"choices": [{**choice, "message": said}] * 2}, ensure_ascii=is_ascii)
    assert answer_text_bytes(whole.encode()) == 2 * size


def test_the_size_of_a_completions_text_is_known():
    """And that of a shape that nobody knows is all of it."""
    assert read_chunk(b'{"choices":[{"index":0,"text":"tea"}]}', with_size=True).text_bytes == 3
    assert answer_text_bytes(b'{"choices":[{"text":"tea"},{"text":"for two"}]}') == 10
    assert answer_text_bytes(b'{"choices":[{"message":"tea"}]}') == len(b'{"message":"tea"}')
    assert read_chunk(chunk({"tool_calls": "[odd]"}), with_size=True).text_bytes == len(b'"[odd]"')


def test_a_whole_answer_counts_its_thoughts_and_its_text():
    """A chunk holds one kind; a message may hold them all."""
    said = {
        "reasoning_content": "hm",
        "content": "tea",
        "tool_calls": [{"function": {"name": "pour", "arguments": "{}"}}],
    }
    assert answer_text_bytes(json.dumps({"choices": [{"message": said}]}).encode()) == 2 + 3 + 6


def test_a_finish_names_its_choices():
    """With n > 1 each choice ends for itself; content on the same chunk still counts."""
    choices = [{"index": number, "delta": {"content": "x"}, "finish_reason": "stop"} for number in (0, 2)]
    signs = read_chunk(json.dumps({"choices": choices}).encode())
    assert signs.finished == (0, 2)
    assert signs.has_content


@pytest.mark.parametrize(
    ("payload", "usage_only"),
    [
        (chunk(finish="stop", usage=USAGE), False),
        (json.dumps({"choices": [], "usage": USAGE}).encode(), True),
        (json.dumps({"choices": None, "usage": USAGE}).encode(), True),
        (json.dumps({"usage": USAGE}).encode(), True),
        (chunk({}, usage=USAGE), False),
        (chunk({"role": "assistant"}, usage=USAGE), False),
        (chunk({"content": "x"}, usage={**USAGE, "prompt_tokens_details": None}), False),
    ],
)
def test_usage_is_read_in_every_place(payload, usage_only):
    """P36: no engine puts it where the others do."""
    signs = read_chunk(payload)
    assert (signs.usage.prompt_tokens, signs.usage.completion_tokens) == (10, 3)
    assert signs.usage.cached_tokens is None
    assert signs.usage_only is usage_only


@pytest.mark.parametrize(
    ("details", "cached"),
    [({"cached_tokens": 4}, 4), ({"cached_tokens": 0}, 0), ({"cached_tokens": None}, None), ({}, None)],
)
def test_cached_tokens_are_read_and_their_absence_is_not_zero(details, cached):
    """An engine that does not report its cache has not missed."""
    assert read_chunk(chunk(usage={**USAGE, "prompt_tokens_details": details})).usage.cached_tokens == cached


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -1}, {"prompt_tokens": 10**30}, {"prompt_tokens": "5"}, "many", [1]]
)
def test_a_usage_that_is_none_spoils_no_answer(usage):
    """What cannot be counted is not counted: metrics could not add it up."""
    assert read_chunk(chunk({"content": "x"}, usage=usage)).usage is None
    assert read_chunk(chunk({"content": "x"}, usage=usage)).has_content
    assert read_answer(json.dumps({"choices": [{}], "usage": usage}).encode()) is None


@pytest.mark.parametrize("error", [{"message": "x", "code": 500}, "x", {}])
def test_an_error_event_is_seen(error):
    """Engines say errors in the middle of a stream with status 200."""
    assert read_chunk(json.dumps({"error": error}).encode()).is_error
    assert not read_chunk(chunk(error=None)).is_error


@pytest.mark.parametrize(
    "payload", [b"", b"x", b"[]", b"5", b'{"choices":5}', b'{"choices":[5]}', b'{"choices":[null]}', b"[DONE"]
)
def test_what_is_no_chunk_is_refused(payload):
    """The relay turns this into the engine's fault."""
    with pytest.raises(msgspec.MsgspecError):
        read_chunk(payload)


def test_usage_is_taken_out_and_made_a_chunk_of_its_own():
    """The client gets the standard form, whichever the engine has."""
    rest, fields = without_usage(chunk({"content": "x"}, usage=USAGE, model="m"))
    assert json.loads(rest) == json.loads(chunk({"content": "x"}, model="m"))
    assert json.loads(usage_chunk(fields)) == {"id": "c", "choices": [], "usage": USAGE, "model": "m"}


def test_the_usage_of_a_whole_answer_is_read():
    """With what is no answer refused."""
    assert read_answer(json.dumps({"choices": [], "usage": USAGE}).encode()).completion_tokens == 3
    for body in (b"", b"[]", b"<html>", b'{"error":{"message":"x"}}', b'{"error":"x"}', b'{"usage":{}'):
        with pytest.raises(msgspec.MsgspecError):
            read_answer(body)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80) | st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["choices", "delta", "usage", "error", "index", "text", "finish_reason", "prompt_tokens_details"]), inner, max_size=4)).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_payload_is_a_chunk_or_refused(payload):
    """Nothing else may come out of the reader: it runs inside a callback."""
    for reader in (read_chunk, read_answer):
        try:
            reader(payload)
        except msgspec.MsgspecError:
            continue


def test_more_cached_than_there_was_to_read_counts_as_all_of_it():
    """D26: an engine that reports a million cached tokens of ten earns its tenant nothing."""
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 10**6}}
    assert read_chunk(chunk(usage=usage)).usage.cached_tokens == 10


def test_what_is_not_utf8_or_has_no_choices_is_the_engines_fault():
    """D26: values that pass unread would break the client's reader; an answer without choices answers nothing."""
    with pytest.raises(msgspec.MsgspecError):
        read_chunk(b'{"choices":[{"index":0,"delta":{"content":"\xff"}}]}')
    nothing = (b'{"choices":[]}', b'{"choices":[],"usage":null}', b'{"choices":null}', b'{"id":"x"}', b"{}")
    for body in (b'{"choices":[],"id":"\xff"}', *nothing):
        with pytest.raises(msgspec.MsgspecError):
            read_answer(body)
