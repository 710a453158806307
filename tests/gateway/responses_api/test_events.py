"""The events of a response's stream, however an engine cuts its answer into chunks."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.chunks import Usage
from gateway.errors import Problem
from gateway.responses_api.events import ResponseEvents
from gateway.responses_api.response import Asked, response_of
from gateway.vector_answers import AnswerHead

HEAD = AnswerHead("req_00ff", "small-a", 1, 7)
ASKED = Asked(
    {"instructions": None, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, wants_logprobs=False
)
_event = TypeAdapter(ResponseStreamEvent)
TEXTS = st.text(min_size=1, max_size=12)


def pieces(draw, text):
    """A text cut anywhere, in order."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if text[start:end]]


@st.composite
def answers(draw):
    """(a chat's whole message, the deltas of a stream that says it)."""
    message, deltas = {"role": "assistant", "content": None}, [{"role": "assistant", "content": ""}]
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXTS)
        deltas += [{"reasoning_content": piece} for piece in pieces(draw, message["reasoning_content"])]
    if draw(st.booleans()):
        message["content"] = draw(TEXTS)
        deltas += [{"content": piece} for piece in pieces(draw, message["content"])]
    for index in range(draw(st.integers(0, 3))):
        call = {"id": f"call_{index}", "function": {"name": "look", "arguments": json.dumps({"at": draw(TEXTS)})}}
        message.setdefault("tool_calls", []).append(call | {"type": "function"})
        cut = pieces(draw, call["function"]["arguments"])
        deltas.append({"tool_calls": [call | {"index": index, "function": {"name": "look", "arguments": cut[0]}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in cut[1:]]
    return message, deltas


def told(raw):
    """The events in these bytes, each checked by the client's own types."""
    found = [json.loads(event.split(b"data: ", 1)[1]) for event in raw.split(b"\n\n") if event]
    for event in found:
        _event.validate_python(event)
    return found


@settings(deadline=None, max_examples=150)
@given(answers(), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_stream_tells_the_response_of_the_whole_answer(answer, finish):
    """Numbers without a gap, deltas that make up what is told at the end, and one and the same response."""
    message, deltas = answer
    usage = Usage(10, 3)
    events, raw = ResponseEvents(HEAD, ASKED), b""
    for delta in deltas:
        raw += events.chunk(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    raw += events.chunk(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}).encode())
    last, response = events.end(usage)
    found = told(raw + last)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()
    whole = json.loads(response_of(body, usage, HEAD, ASKED))
    assert json.loads(response) == found[-1]["response"] == whole
    Response.model_validate(whole | {"tools": []})
    said = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert said == (message["content"] or "")
    added = [event["item"]["id"] for event in found if event["type"] == "response.output_item.added"]
    done = [event["item"]["id"] for event in found if event["type"] == "response.output_item.done"]
    assert added == done == [item["id"] for item in whole["output"]]


@settings(deadline=None, max_examples=50)
@given(answers(), st.integers(1, 20))
def test_a_stream_that_breaks_tells_what_was_said(answer, after):
    """Wherever: `response.failed`, of the client's own type, with the item that had begun."""
    _, deltas = answer
    events, raw = ResponseEvents(HEAD, ASKED), b""
    for delta in deltas[:after]:
        raw += events.chunk(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())
    found = told(raw + events.failure(Problem(502, "broken", "upstream_error", "engine_failed")))
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["error"]["message"] == "broken"
    begun = [event for event in found if event["type"] == "response.output_item.added"]
    assert len(found[-1]["response"]["output"]) == len(begun)
