"""Bodies that are not what they should be."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.decoding import decode_request
from engines.worker.errors import ApiError
from engines.worker.schema import ChatRequest, CompletionRequest

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


def refusal(body: bytes, kind=ChatRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode_request(body, kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"model":"m","messages":[{"role":"user","content":"tea \ud83d"}]}', "messages[0].content"),
        (rb'{"model":"m","messages":[{"role":"system","content":"\udc00 x"}]}', "messages[0].content"),
        (
            rb'{"model":"m","messages":[{"role":"tool","content":[{"type":"text","text":"\uD83D"}]}]}',
            "messages[0].content[0].text",
        ),
        (rb'{"model":"m","messages":[],"stop":["ok","\ud83d"]}', "stop[1]"),
        (rb'{"model":"m\ud83d","messages":[]}', "model"),
        (rb'{"model":"m","messages":[],"metadata":{"a":"\ud83d"}}', "metadata.a"),
        (rb'{"model":"m","messages":[],"metadata":{"\ud83d":"a"}}', "metadata"),
        (rb'{"model":"m","messages":[],"nobody_reads":"\ud83d\ud83d"}', "nobody_reads"),
    ],
)
def test_half_a_surrogate_pair_is_refused_by_field(body, param):
    """Half an emoji is not text for any tokenizer (P01)."""
    assert refusal(body).param == param


def test_a_whole_surrogate_pair_is_text():
    """The control of P01."""
    body = rb'{"model":"m","messages":[{"role":"user","content":"tea \ud83d\ude00"}]}'
    assert decode_request(body, ChatRequest).messages[0].content == "tea 😀"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        (b'"temperature":1e999', "temperature"),
        (b'"temperature":"hot"', "temperature"),
        (b'"max_tokens":1e18', "max_tokens"),
        (b'"max_tokens":true', "max_tokens"),
        (b'"seed":1.5', "seed"),
        (b'"messages":[{"role":"user","content":3}]', "messages[0].content"),
        (b'"messages":[{"content":"x"}]', "messages[0].role"),
        (b'"messages":"x"', "messages"),
        (b'"logit_bias":{"1":"much"}', "logit_bias[...]"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_field(field, param):
    """A client learns which field to look at."""
    assert refusal(b'{"model":"m",' + MESSAGES + b"," + field + b"}").param == param


def test_a_missing_field_is_named():
    """Also when nothing else is wrong."""
    assert refusal(b'{"model":"m"}').param == "messages"
    assert refusal(b'{"prompt":"x"}', CompletionRequest).param == "model"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"model":"m"} {}', b'{"model":NaN}', b'{"x":Infinity}', b"\xff\xfe", b'{"x":"\xff"}'],
)
def test_what_is_not_a_json_object_is_refused(body):
    """NaN and infinity are not JSON either, wherever they stand."""
    refusal(body)


def test_deep_nesting_is_refused():
    """A bomb of brackets is the client's fault, not a crash."""
    assert "deeply" in refusal(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}").message


def test_unknown_fields_are_ignored():
    """Clients of other servers send more than we know."""
    body = b'{"model":"m",' + MESSAGES + b',"store":true,"metadata":{"a":"b"},"whatever":[1,{"x":null}]}'
    assert decode_request(body, ChatRequest).model == "m"


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["model", "messages", "stop", "content"]), inner)
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_json_is_read_or_refused(document):
    """Nothing but a request or a 400 comes out."""
    body = msgspec.json.encode(document)
    for kind in (ChatRequest, CompletionRequest):
        try:
            outcome = decode_request(body, kind)
        except ApiError as refused:
            outcome = refused
        assert isinstance(outcome, kind) or outcome.status == 400


@given(body=st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(body):
    """Garbage never raises anything but a 400."""
    with pytest.raises(ApiError) as caught:
        decode_request(body, ChatRequest)
    assert caught.value.status == 400
