"""A body of `/v1/responses` as a chat: fields, bounds, references, and what is refused by its name."""

import json

import pytest

from gateway.errors import ClientError
from gateway.fields import LARGE_BYTES
from gateway.prompt import MAX_MESSAGES
from gateway.request import Surface, read
from gateway.responses_api import request as module
from gateway.responses_api.named import MAX_REFERENCES, named, responses_of
from gateway.responses_api.state import Earlier

REFERENCE = {"type": "item_reference", "id": "msg_0a_0"}
ITEM = json.dumps({"type": "message", "id": "msg_0a_0", "role": "user", "content": "x" * 1000}).encode()


def chat_of(earlier=None, **fields):
    """The fields of the chat that such a body is."""
    body = {"model": "m", "input": "Hello"} | fields
    request = read(Surface.RESPONSES, json.dumps(body).encode(), earlier or Earlier())
    return {name: json.loads(bytes(value)) for name, value in request.fields.items()}


def refused(earlier=None, **fields):
    """The field that is said to be wrong."""
    with pytest.raises(ClientError) as caught:
        chat_of(earlier, **fields)
    return caught.value.problem.param


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 0}, {"top_logprobs": 0}),
        ({"include": ["reasoning.encrypted_content"]}, {}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"safety_identifier": "u"}, {"user": "u"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, {}),
        ({"store": False, "truncation": "disabled", "background": False, "max_tool_calls": 2}, {}),
    ],
)
def test_a_field_has_another_name_in_a_chat(fields, said):
    """Or none; what has none is not sent."""
    found = chat_of(**fields)
    del found["messages"], found["model"]
    assert found == said


def test_instructions_are_the_first_message_and_of_this_turn_alone():
    """Also where a conversation is gone on with."""
    assert chat_of(instructions="Be kind.")["messages"][0] == {"role": "system", "content": "Be kind."}
    assert chat_of(instructions="")["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_reference_stands_for_its_item_as_often_as_it_comes():
    """In its place."""
    earlier = Earlier(referenced={"msg_0a_0": module.Raw(ITEM)})
    found = chat_of(earlier, input=[REFERENCE, {"role": "user", "content": "?"}, {"id": "msg_0a_0"}])["messages"]
    assert [len(one["content"]) for one in found] == [1000, 1, 1000]
    assert refused(earlier, input=[REFERENCE | {"id": "msg_0b_0"}]) == "input[0].id"
    assert refused(earlier, input=[{"type": "item_reference"}]) == "input[0].id"


def test_what_is_referred_to_is_bounded_however_often_it_is_named(monkeypatch):
    """A few bytes each would stand for megabytes: a small body must not fill the memory."""
    monkeypatch.setattr(module, "MAX_REFERENCED_BYTES", 10 * len(ITEM))
    earlier = Earlier(referenced={"msg_0a_0": module.Raw(ITEM)})
    assert len(chat_of(earlier, input=[REFERENCE] * 10)["messages"]) == 10
    assert refused(earlier, input=[REFERENCE] * 11) == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)}, "input"),
        ({"input": [1] * LARGE_BYTES}, "input[0]"),
        ({"tools": [1] * LARGE_BYTES}, "tools[0]"),
        ({"metadata": {str(number): "" for number in range(40_000)}}, "metadata"),
        ({"stream_options": {str(number): 1 for number in range(10_000)}}, "stream_options"),
        ({"include": ["a"] * 10_000}, "include"),
    ],
)
def test_far_too_many_are_refused_before_they_are_made(fields, param):
    """A million members take a part of a second, in which nobody else is served."""
    assert refused(**fields) == param


def test_metadata_may_be_as_large_as_openais():
    """Each character may be spelled by two escapes."""
    metadata = {f"{number:02d}" + "\U0001f600" * 62: "\U0001f600" * 512 for number in range(16)}
    assert chat_of(metadata=metadata)
    assert refused(metadata=metadata | {"more": ""}) == "metadata"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"include": "logprobs"}, "include"),
        ({"store": "no"}, "store"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": "plain"}, "text"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"reasoning": "deep"}, "reasoning"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"stream": True, "stream_options": 3}, "stream_options"),
    ],
)
def test_a_wrong_field_is_named(fields, param):
    """By its whole path, before anything is asked."""
    assert refused(**fields) == param


def test_references_are_named_before_the_body_is_read():
    """Those alone that its reader will look for; a body that it will refuse names none."""
    items = [REFERENCE, {"role": "user", "content": "x", "id": "msg_0b_0"}, {"id": "msg_0c_in0"}, {"id": "theirs"}]
    body = json.dumps({"previous_response_id": "resp_0a", "input": items}).encode()
    assert named(body) == ("resp_0a", {"msg_0a_0", "msg_0c_in0", "theirs"})
    assert responses_of(named(body)[1]) == ["resp_0a", "resp_0c"]
    assert named(json.dumps({"input": [REFERENCE] * (MAX_MESSAGES + 1)}).encode())[1] == set()
    for bad in (
        b"{",
        b"[]",
        b'{"input":[1],"id":1}',
        b'{"previous_response_id":3}',
        b'{"previous_response_id":"\xff"}',
    ):
        assert named(bad) == (None, set())
    with pytest.raises(ClientError, match="at most 64"):
        responses_of({f"msg_{number:02x}_0" for number in range(MAX_REFERENCES + 1)})
