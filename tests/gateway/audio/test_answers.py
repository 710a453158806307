"""What engines say of audio: usage in three spellings, and events in two languages."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.audio.answers import done_event, is_json_type, read_event, read_whole
from gateway.chunks import Usage


def whole(**fields):
    """What is read of an answer."""
    return read_whole(json.dumps({"text": "twelve bytes"} | fields).encode(), is_json=True)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"usage": {"type": "tokens", "input_tokens": 7, "output_tokens": 2}}, (7, 2)),
        ({"usage": {"prompt_tokens": 7}}, (7, 0)),
        ({"usage": {"type": "duration", "seconds": 1.01}}, (11, 3)),
        ({"duration": 2}, (20, 3)),
        ({"duration": "2.5"}, (25, 3)),
        ({"usage": {"input_tokens": 7, "output_tokens": 2}, "duration": 99}, (7, 2)),
        ({"usage": {"seconds": 1}, "duration": 99}, (10, 3)),
    ],
)
def test_usage_is_read_in_every_spelling(fields, tokens):
    """Tokens before seconds, seconds before a duration."""
    usage = whole(**fields).usage
    assert (usage.prompt_tokens, usage.completion_tokens) == tokens


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"usage": None},
        {"usage": {"seconds": -1}},
        {"usage": {"seconds": 1e300}},
        {"usage": {"input_tokens": -1}},
        {"usage": {"input_tokens": 2**60}},
        {"usage": "much"},
        {"duration": "long"},
        {"duration": "nan"},
    ],
)
def test_what_is_no_usage_spoils_no_answer(fields):
    """The text is the client's; its price is estimated then."""
    assert whole(**fields) == read_whole(b'{"text": "twelve bytes"}', is_json=True)
    assert whole(**fields).usage is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"text": 1}', b'{"text": "\xff"}', b'{"text": "", "error": "x"}']
)
def test_what_is_no_transcript_is_refused(body):
    """So that another engine is asked."""
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        read_whole(body, is_json=True)


def test_a_text_must_be_utf8():
    """It is passed on as such."""
    assert read_whole("ä".encode(), is_json=False).text == "ä"
    with pytest.raises(msgspec.DecodeError):
        read_whole(b"\xff", is_json=False)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=30), st.integers(0, 100), st.integers(0, 100))
def test_a_chunk_becomes_the_event_that_says_the_same(text, prompt, output):
    """Whatever the text."""
    chunk = {"object": "transcription.chunk", "choices": [{"delta": {"content": text}, "finish_reason": None}]}
    signs = read_event(json.dumps(chunk).encode(), 0)
    assert (signs.text, signs.is_last, bool(signs.told)) == (text, False, bool(text))
    if text:
        assert json.loads(signs.told[6:])["delta"] == text
    done = json.loads(done_event(text, Usage(prompt, output))[6:])
    assert (done["text"], done["usage"]["total_tokens"]) == (text, prompt + output)


def test_events_of_openais_pass_as_they_are():
    """Also those that nobody here knows; a segment is content."""
    for event in ({"type": "transcript.text.delta", "delta": "a", "x": [1]}, {"type": "transcript.new"}):
        payload = json.dumps(event).encode()
        assert read_event(payload, 0).told == b"data: " + payload + b"\n\n"
    assert read_event(b'{"type": "transcript.text.segment", "text": "a"}', 0).text == "a"
    last = read_event(b'{"type": "transcript.text.done", "text": "abcd", "usage": {"seconds": 1}}', 0)
    assert (last.is_last, last.text, last.usage) == (True, "", Usage(10, 1))
    assert read_event(b'{"type": "error", "message": "x"}', 0).is_error
    assert read_event(b'{"error": {"code": 500}}', 0).is_error
    for bad in (b"{}", b"[]", b"x", b'{"type": 1}'):
        with pytest.raises(msgspec.MsgspecError):
            read_event(bad, 0)


@pytest.mark.parametrize(
    ("kind", "is_json"), [(b"Application/JSON; charset=utf-8", True), (b"text/plain", False), (b"", False)]
)
def test_a_json_type_is_known(kind, is_json):
    """In any spelling."""
    assert is_json_type(kind) is is_json
