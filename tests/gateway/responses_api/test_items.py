"""Items of a conversation as the messages of a chat: whose turn each belongs to, and what has no place."""

import json

import pytest
from msgspec import Raw

from gateway.errors import ClientError
from gateway.prompt import MAX_PARTS
from gateway.responses_api.items import chat_messages

PNG = "data:image/png;base64,iVBORw0KGgo="
SHOWN = {"type": "image_url", "image_url": {"url": PNG}}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


def output(value="wet", call="c1"):
    """What a function gave."""
    return {"type": "function_call_output", "call_id": call, "output": value}


def said(role, content):
    """A message."""
    return {"role": role, "content": content}


def messages(*items):
    """What these items are in a chat."""
    return chat_messages((f"input[{place}]", Raw(json.dumps(item).encode())) for place, item in enumerate(items))


def refused(*items):
    """The field that is said to be wrong."""
    with pytest.raises(ClientError) as caught:
        messages(*items)
    return caught.value.problem.param


def test_pictures_in_a_functions_output_stand_behind_all_results():
    """A chat's tool message holds texts alone, and nothing may come between the results of one turn."""
    first = output([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PNG}])
    second = output([{"type": "input_image", "image_url": PNG, "detail": "low"}, {"type": "input_text", "text": "b"}])
    second["call_id"] = "c2"
    found = messages(CALL, CALL | {"call_id": "c2"}, first, second, said("user", "?"))
    assert [one["role"] for one in found] == ["assistant", "tool", "tool", "user", "user"]
    assert [one["content"] for one in found[1:3]] == ["a", "b"]
    assert found[3]["content"] == [SHOWN, {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]


@pytest.mark.parametrize("after", [[], [CALL], [said("assistant", "Nice.")], [said("user", "?")]])
def test_pictures_out_of_a_function_are_shown_before_whatever_comes_next(after):
    """Once, also at the very end."""
    found = messages(CALL, output([{"type": "input_image", "image_url": PNG}]), *after)
    assert found[1] == {"role": "tool", "tool_call_id": "c1", "content": ""}
    assert found[2] == {"role": "user", "content": [SHOWN]}
    assert len(found) == 3 + len(after)


def test_thought_text_and_calls_of_one_turn_are_one_message():
    """Whatever it holds; what a turn has already begins the next."""
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    found = messages(thought, said("assistant", "Look."), CALL, CALL | {"call_id": "c2"}, output(), thought)
    assert [one["role"] for one in found] == ["assistant", "tool", "assistant"]
    assert (found[0]["reasoning_content"], found[0]["content"]) == ("Hm.", "Look.")
    assert [call["id"] for call in found[0]["tool_calls"]] == ["c1", "c2"]
    assert found[2] == {"role": "assistant", "content": "", "reasoning_content": "Hm."}


def test_a_summary_is_the_thought_where_there_is_no_other():
    """And what is encrypted is nobody's."""
    summary = {"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}], "encrypted_content": "xyz"}
    assert messages(summary)[0]["reasoning_content"] == "a\nb"
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "xyz"}
    assert "reasoning_content" not in messages(hidden, CALL)[0]


def test_one_text_part_is_a_text_and_a_refusal_is_what_was_said():
    """Both spellings have one prefix."""
    assert messages(said("user", [{"type": "input_text", "text": "x"}])) == messages(said("user", "x"))
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert messages(said("assistant", refusal)) == [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (said("user", [{"type": "output_text", "text": "x"}]), "input[0].content[0].type"),
        (said("system", [{"type": "input_image", "image_url": PNG}]), "input[0].content[0].type"),
        (said("user", [{"type": "input_image", "image_url": "https://x/y.png"}]), "input[0].content[0].image_url"),
        (said("user", [{"type": "input_image", "file_id": "f"}]), "input[0].content[0].file_id"),
        (output([{"type": "input_image", "image_url": "file:///etc"}]), "input[0].output[0].image_url"),
        (output(3), "input[0].output"),
        (CALL | {"arguments": {}}, "input[0].arguments"),
        ({"type": "reasoning", "summary": "x"}, "input[0].summary"),
        (said("user", "x") | {"status": 5}, "input[0].status"),
        (said("user", "x") | {"id": 5}, "input[0].id"),
        ({"type": "web_search_call", "id": "ws_1"}, "input[0].type"),
        (said("user", None), "input[0].content"),
    ],
)
def test_a_wrong_item_is_named_by_its_whole_path(item, param):
    """Media by URL among them: no engine may fetch what a tenant names."""
    assert refused(item) == param


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (said("user", [{"type": "input_text", "text": ""}] * (MAX_PARTS + 1)), "input[0].content"),
        (output([{"type": "input_text", "text": ""}] * (MAX_PARTS + 1)), "input[0].output"),
        ({"type": "reasoning", "summary": [{"text": ""}] * (MAX_PARTS + 1)}, "input[0].summary"),
        (said("user", [1] * MAX_PARTS), "input[0].content[0]"),
    ],
)
def test_far_too_many_parts_are_refused_before_they_are_made(item, param):
    """A million of them hold up everybody else for a tenth of a second."""
    assert refused(item) == param
