"""A chat's answers as Anthropic's: blocks, endings and usage, the same whole or streamed, however a stream is split."""

import asyncio
import json

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engines.contract import Fault, ReplicaError
from gateway.answer import ClientAnswer
from gateway.anthropic_api.translation import MessageTranslation
from gateway.chunks import read_answer
from gateway.settings import TimeoutSection
from gateway.translated import TranslatedStream, TranslatedWhole
from gateway.vector_answers import AnswerHead
from tests.gateway.scripted_sink import ScriptedExchange, ScriptedSink
from tests.scripted_engine import within_patience

HEAD = AnswerHead("req_00ff", "small-a", 1, 7)
USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
_event = TypeAdapter(RawMessageStreamEvent)


def translation(*stops, hides_thinking=False):
    """A translation of one answer."""
    return MessageTranslation(HEAD, stops=frozenset(stops), hides_thinking=hides_thinking)


def whole(message, *stops, finish="stop", usage=USAGE, hides_thinking=False, **choice):
    """The message of a chat's whole answer."""
    body = {"choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}]}
    body = json.dumps(body | ({"usage": usage} if usage else {})).encode()
    return json.loads(translation(*stops, hides_thinking=hides_thinking).whole(body, read_answer(body)))


def chunk(delta=None, finish=None, **choice):
    """The payload of one chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **choice}
    return json.dumps({"choices": [choice]}).encode()


def parsed(stream):
    """The events of a stream's bytes; each is named twice, alike."""
    events = []
    for block in stream.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def streamed(*deltas, finish="stop", usage=USAGE, stops=(), hides_thinking=False, **choice):
    """The events of a stream of these deltas."""
    one = translation(*stops, hides_thinking=hides_thinking)
    payloads = [*(chunk(delta) for delta in deltas), chunk(None, finish, **choice)]
    told = read_answer(json.dumps({"choices": [], "usage": usage}).encode()) if usage else None
    return parsed(b"".join([*map(one.chunk, payloads), one.end(told)]))


def accumulated(events):
    """The message that the official client makes of events."""
    snapshot, buffers = None, {}
    for one in events:
        event = _event.validate_python(one)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    found = snapshot.to_dict()
    found.pop("stop_details", None)
    for block in found["content"]:
        block.pop("parsed_output", None)
    return found


def call(name=None, arguments=None, index=0, **more):
    """A delta with a piece of a tool call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"tool_calls": [{"index": index, "function": function, **more}]}


def test_a_whole_answer_is_a_message():
    """Every member that clients read."""
    assert whole({"role": "assistant", "content": "Hello"}) == {
        "id": "msg_00ff",
        "type": "message",
        "role": "assistant",
        "model": "small-a",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 4,
        },
    }


def test_thought_text_and_calls_are_blocks_in_this_order():
    """Reasoning under either name; ids of our own where an engine gives none."""
    calls = [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}, {"function": {"name": "g"}}]
    for name in ("reasoning_content", "reasoning"):
        found = whole({"content": "I look.", name: "Hm.", "tool_calls": calls}, finish="tool_calls")
        assert found["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "toolu_00ff01", "name": "g", "input": {}},
        ]
        assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", '"x"', "x"])
def test_arguments_that_are_no_object_are_told_as_such(arguments):
    """A model's fault, or a cut at `max_tokens`: never the engine's."""
    found = whole({"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]})
    assert found["content"][0]["input"] == {"INVALID_JSON": arguments}


def test_arguments_may_be_an_object_already():
    """As some engines write them, against the standard."""
    calls = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": "é"}}}]
    found = whole({"content": None, "tool_calls": calls})
    assert found["content"][0]["input"] == {"x": "é"}
    assert accumulated(streamed({"tool_calls": calls}))["content"] == found["content"]


@pytest.mark.parametrize("arguments", ["", "{}", {}, None])
def test_no_arguments_are_an_empty_object(arguments):
    """However an engine says so."""
    found = whole({"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]})
    assert found["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("finish", "choice", "told"),
    [
        ("stop", {}, ("end_turn", None)),
        ("length", {}, ("max_tokens", None)),
        ("tool_calls", {}, ("tool_use", None)),
        ("content_filter", {}, ("refusal", None)),
        ("abort", {}, ("end_turn", None)),
        ("stop", {"stop_reason": "END"}, ("stop_sequence", "END")),
        ("stop", {"matched_stop": "END"}, ("stop_sequence", "END")),
        ("stop", {"stop_reason": 151645}, ("end_turn", None)),
        ("stop", {"matched_stop": "<|im_end|>"}, ("end_turn", None)),
        ("stop", {"stop_reason": None, "matched_stop": {"odd": 1}}, ("end_turn", None)),
        ("length", {"stop_reason": "END"}, ("max_tokens", None)),
    ],
)
def test_an_ending_has_anthropics_words(finish, choice, told):
    """The stop string only where the engine says which, and the client asked for it."""
    found = whole({"content": "x"}, "END", finish=finish, **choice)
    assert (found["stop_reason"], found["stop_sequence"]) == told
    last = streamed({"content": "x"}, finish=finish, stops=["END"], **choice)[-2]
    assert last["delta"] == {"stop_reason": told[0], "stop_sequence": told[1]}


def test_a_forced_call_that_ends_with_stop_is_a_use_of_a_tool():
    """As engines end a call that `tool_choice` named."""
    found = whole({"content": None, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]})
    assert found["stop_reason"] == "tool_use"
    assert streamed(call("f", "{}"))[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_refusal_is_a_text_with_an_ending_of_its_own():
    """OpenAI's `refusal` beside the content."""
    found = whole({"content": None, "refusal": "No."})
    assert (found["content"], found["stop_reason"]) == ([{"type": "text", "text": "No."}], "refusal")
    assert accumulated(streamed({"refusal": "No."})) == found


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, (10, None, None, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}, (10, 0, 0, 2)),
        (USAGE, (7, 0, 3, 4)),
        (None, (7, None, None, 2)),
    ],
)
def test_usage_leaves_out_what_was_cached(usage, told):
    """Null where the engine does not say; an estimate where it says nothing at all."""
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    found = whole({"content": "12345678"}, usage=usage)
    assert found["usage"] == dict(zip(names, told, strict=True))
    assert streamed({"content": "1234"}, {"content": "5678"}, usage=usage)[-2]["usage"] == found["usage"]


def test_a_stream_is_one_block_after_another():
    """Each begun, told and ended; message_start is first and message_stop last."""
    events = streamed(
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm", "reasoning": "Hm"},
        {"content": "I "},
        {"content": "look."},
        call("f", "", id="a"),
        call(arguments='{"x":'),
        call(arguments="1}"),
        call("g", "{}", index=1, id="b"),
        finish="tool_calls",
    )
    assert [(one["type"], one.get("index")) for one in events] == [
        ("message_start", None),
        ("content_block_start", 0), ("content_block_delta", 0), ("content_block_stop", 0),
        ("content_block_start", 1), ("content_block_delta", 1), ("content_block_delta", 1), ("content_block_stop", 1),
        ("content_block_start", 2), ("content_block_delta", 2), ("content_block_delta", 2), ("content_block_stop", 2),
        ("content_block_start", 3), ("content_block_delta", 3), ("content_block_stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert events[0]["message"] == {
        "id": "msg_00ff", "type": "message", "role": "assistant", "model": "small-a", "content": [],
        "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 7, "cache_creation_input_tokens": None, "cache_read_input_tokens": None,
                  "output_tokens": 0},
    }  # fmt: skip
    assert [one["delta"] for one in events if one["type"] == "content_block_delta"] == [
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "text_delta", "text": "I "},
        {"type": "text_delta", "text": "look."},
        {"type": "input_json_delta", "partial_json": '{"x":'},
        {"type": "input_json_delta", "partial_json": "1}"},
        {"type": "input_json_delta", "partial_json": "{}"},
    ]


def test_an_answer_of_nothing_is_a_message_without_content():
    """Also where a stream has no chunk at all."""
    assert accumulated(streamed())["content"] == whole({"content": ""})["content"] == []
    assert [one["type"] for one in parsed(translation().end(None))] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_thinking_that_is_to_be_left_out_is():
    """`display: omitted`."""
    found = whole({"content": "x", "reasoning": "Hm."}, hides_thinking=True)
    assert found["content"] == [{"type": "text", "text": "x"}]
    assert accumulated(streamed({"reasoning": "Hm."}, {"content": "x"}, hides_thinking=True)) == found


def test_other_choices_are_nobodys():
    """A message is one."""
    one = translation()
    one.chunk(chunk({"content": "a"}))
    assert one.chunk(chunk({"content": "b"}, index=1)) == b""


@pytest.mark.parametrize(
    "payloads",
    [
        [chunk({"content": [{"type": "text", "text": "x"}]})],
        [chunk(call(arguments="{}"))],
        [chunk(call("f")), chunk(call("g", index=1)), chunk(call(arguments="{}"))],
        [chunk({"tool_calls": "x"})],
        [b'{"choices": [%s]}' % (b"[" * 3000 + b"]" * 3000)],
    ],
)
def test_what_is_no_chat_is_the_engines_fault(payloads):
    """Said before it is sent, so that another replica may be tried."""
    one = translation()
    with pytest.raises(ReplicaError) as caught:
        for payload in payloads:
            one.chunk(payload)
    assert caught.value.fault is Fault.PROTOCOL


@pytest.mark.parametrize(
    "body", [b'{"choices": [{"text": "x"}]}', b'{"choices": []}', b'{"choices": [{"message": 3}]}']
)
def test_a_whole_answer_that_is_no_chats_is_the_engines_fault(body):
    """As in a stream."""
    with pytest.raises(ReplicaError) as caught:
        translation().whole(body, None)
    assert caught.value.fault is Fault.PROTOCOL


_texts = st.text(max_size=12)
_objects = st.dictionaries(_texts, st.one_of(st.none(), st.booleans(), _texts, st.integers(-9, 9)), max_size=3)
_calls = st.lists(st.tuples(st.text(min_size=1, max_size=8), _objects, st.one_of(st.none(), st.just("id"))), max_size=3)


@st.composite
def answers(draw):
    """(the whole answer's body, the same answer as chunks' payloads)."""
    thought, text, calls = draw(_texts), draw(_texts), draw(_calls)
    usage = draw(st.sampled_from([USAGE, {"prompt_tokens": 5, "completion_tokens": 1}]))
    ending = {"finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls"])), "stop_reason": "END"}
    deltas = [{"reasoning": piece} for piece in pieces(draw, thought)] + [
        {"content": one} for one in pieces(draw, text)
    ]
    whole_calls = []
    for index, (name, given_object, id_) in enumerate(calls):
        said = json.dumps(given_object, ensure_ascii=draw(st.booleans()))
        ids = {} if id_ is None else {"id": f"{id_}{index}"}
        whole_calls.append({"function": {"name": name, "arguments": said}, **ids})
        deltas.append(call(name, "", index=index, **ids))
        deltas += [call(arguments=piece, index=index) for piece in pieces(draw, said)]
    message = {"role": "assistant", "content": text or None, "reasoning": thought, "tool_calls": whole_calls}
    body = {"choices": [{"index": 0, "message": message, **ending}], "usage": usage}
    payloads = [chunk({"role": "assistant", "content": ""}), *map(chunk, deltas)]
    payloads.append(json.dumps({"choices": [{"index": 0, "delta": {}, **ending}]}).encode())
    payloads.append(json.dumps({"choices": [], "usage": usage}).encode())
    return json.dumps(body).encode(), [*payloads, b"[DONE]"]


def pieces(draw, text):
    """The text cut at random."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


async def relayed(make, *reads):
    """What a client gets of these reads."""
    sink, exchange = ScriptedSink(), ScriptedExchange()
    answer = ClientAnswer(sink, [], 100.0)
    relay = make(answer, sink, TimeoutSection(), 50.0)
    task = asyncio.ensure_future(relay.run(exchange))
    await asyncio.sleep(0)
    relay.on_head(200, [])
    for data in reads:
        relay.on_data(data)
        relay.on_flush()
    relay.on_end()
    await within_patience(task)
    answer._stop()
    assert sink.endings == ["end"]
    return sink.body


def stream_relay(*args):
    """A relay of a streamed message."""
    return TranslatedStream(*args, on_first=lambda: None, num_choices=1, translation=translation("END"))


def whole_relay(*args):
    """A relay of a whole one."""
    return TranslatedWhole(*args, translation=translation("END"))


@given(answers(), st.lists(st.integers(0, 4000), max_size=12))
@settings(deadline=None, max_examples=60)
def test_any_split_of_a_stream_is_the_same_message_as_the_whole_answer(answer, cuts):
    """The official client's accumulation, through the relays: bytes of a stream may come in any pieces."""
    body, payloads = answer
    raw = b"".join(b"data: %b\n\n" % one for one in payloads)
    cuts = sorted({min(cut, len(raw)) for cut in cuts})
    reads = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    async def scenario():
        return await relayed(stream_relay, *reads), await relayed(stream_relay, raw), await relayed(whole_relay, body)

    split, unsplit, message = asyncio.run(scenario())
    assert split == unsplit
    assert accumulated(parsed(split)) == json.loads(message)


async def test_an_untranslatable_answer_can_still_be_tried_elsewhere():
    """Nothing was sent, and nothing says that it was."""
    for make, data in (
        (whole_relay, b'{"choices": [{"text": "x"}]}'),
        (stream_relay, b"data: " + chunk(call(arguments="{}")) + b"\n\n"),
    ):
        sink = ScriptedSink()
        answer = ClientAnswer(sink, [], 100.0)
        relay = make(answer, sink, TimeoutSection(), 50.0)
        task = asyncio.ensure_future(relay.run(ScriptedExchange()))
        await asyncio.sleep(0)
        relay.on_head(200, [])
        relay.on_data(data)
        relay.on_flush()
        relay.on_end()
        with pytest.raises(ReplicaError):
            await within_patience(task)
        assert (answer.has_content, sink.writes) == (False, [])
