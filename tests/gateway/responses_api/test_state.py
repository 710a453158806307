"""What is kept of a response: items with ids that are nobody else's, and nothing that has no meaning."""

import json

import pytest
from msgspec import Raw

from gateway.responses_api.state import Answered, id_of, read_kept, written

OUTPUT = [{"type": "message", "id": "msg_0a_0", "role": "assistant", "content": []}]
TOLD = json.dumps({"id": "resp_0a", "output": OUTPUT}).encode()


def kept(*items, before=()):
    """The items as they are kept; `before`: those of earlier turns."""
    given = [Raw(json.dumps(item).encode()) for item in items]
    earlier = [Raw(json.dumps(item).encode()) for item in before]
    found = read_kept(written(Answered("resp_0a", [*earlier, *given], len(given), TOLD)))
    assert [json.loads(bytes(item)) for item in found.output] == OUTPUT
    return [json.loads(bytes(item)) for item in found.items]


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (
            {"role": "user", "content": "x"},
            {"type": "message", "id": "msg_0a_in0", "content": [{"type": "input_text", "text": "x"}]},
        ),
        (
            {"role": "assistant", "content": "x", "id": None, "status": None},
            {"content": [{"type": "output_text", "text": "x", "annotations": []}], "status": "completed"},
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"id": "fc_0a_in0", "call_id": "c"},
        ),
        ({"type": "function_call_output", "call_id": "c", "output": [], "status": "incomplete"}, {"output": []}),
        ({"type": "reasoning", "encrypted_content": "z"}, {"id": "rs_0a_in0", "summary": [], "encrypted_content": "z"}),
        ({"role": "user", "content": [], "id": "mine"}, {"id": "mine", "content": []}),
    ],
)
def test_an_item_is_shown_as_clients_expect_it(item, shown):
    """With an id, a kind, a status and parts; what it has of these stays."""
    (found,) = kept(item)
    assert found.items() >= shown.items()
    assert found["type"] == item.get("type", "message")
    if found["type"] != "reasoning":
        assert found["status"] == (item.get("status") or "completed")


def test_an_id_that_comes_again_gets_another():
    """Pages begin behind an id: with two of them a client would turn the same page for ever."""
    same = {"role": "user", "content": [], "id": "msg_same"}
    found = kept(same, same, same, before=[same | {"type": "message"}])
    assert [one["id"] for one in found] == ["msg_same", "msg_0a_in0", "msg_0a_in1", "msg_0a_in2"]


def test_what_has_no_meaning_is_not_kept():
    """A million members would hold up everybody while they are written."""
    (found,) = kept({"role": "user", "content": [], **{f"x{number}": number for number in range(100)}})
    assert found.keys() == {"id", "type", "status", "role", "content"}


def test_an_item_without_an_id_has_none():
    """Of which nothing can be found."""
    assert id_of(Raw(b"{}")) == ""
