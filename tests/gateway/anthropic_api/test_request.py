"""Anthropic's requests as chats: what is said arrives, what cannot is refused by its whole path."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ClientError
from gateway.fields import LARGE_BYTES
from gateway.prompt import MAX_MESSAGES, MAX_PARTS
from gateway.request import GENERATING, Surface, read
from policies.lane import Lane

USER = {"role": "user", "content": "Hello"}
TOOL = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def text(said, **more):
    """A text block."""
    return {"type": "text", "text": said, **more}


def body(*messages, **fields):
    """A body of /v1/messages."""
    return json.dumps({"model": "m", "max_tokens": 9, "messages": list(messages) or [USER], **fields}).encode()


def asked(*messages, **fields):
    """(the request, its chat's fields as objects)."""
    request = read(Surface.MESSAGES, body(*messages, **fields))
    return request, {name: json.loads(bytes(value)) for name, value in request.fields.items()}


def chat_of(*messages, **fields):
    """The chat's messages."""
    return asked(*messages, **fields)[1]["messages"]


def refused(*messages, surface=Surface.MESSAGES, **fields):
    """(field to blame, what is said) of a refusal."""
    with pytest.raises(ClientError) as caught:
        read(surface, body(*messages, **fields))
    return caught.value.problem.param, caught.value.problem.message


def turn(role, *blocks):
    """A message of content blocks."""
    return {"role": role, "content": list(blocks)}


def test_a_request_is_a_chat_with_a_translation():
    """One lifecycle: engines, queue and prefix keys see a chat."""
    request, fields = asked(stream=True, temperature=0.5, top_p=0.9, top_k=40, stop_sequences=["END"])
    assert (request.surface, request.is_streaming, request.max_output_tokens) == (Surface.CHAT, True, 9)
    assert request.translate is not None
    assert fields == {
        "model": "m", "max_tokens": 9, "messages": [USER], "stream": True,
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop": ["END"],
    }  # fmt: skip
    assert Surface.MESSAGES in GENERATING


def test_what_has_no_word_in_a_chat_is_passed_over():
    """An allow-list: an engine reads nothing that was meant for another one."""
    own = {"cache_control": {"type": "ephemeral"}, "inference_geo": "eu", "speed": "fast", "betas": ["x"], "n": 5}
    steering = {"cache_salt": "x", "priority": 1, "stream_options": {"include_usage": True}, "service_tier": "auto"}
    request, fields = asked(**own, **steering)
    assert fields.keys() == {"model", "max_tokens", "messages"}
    assert request.num_choices == 1


@pytest.mark.parametrize(
    ("system", "said"),
    [("Be kind.", "Be kind."), ([text("Be", cache_control={"type": "ephemeral"}), text("kind.")], "Be\nkind.")],
)
def test_the_system_prompt_is_the_first_message(system, said):
    """A text or several, whatever else they say."""
    assert chat_of(system=system) == [{"role": "system", "content": said}, USER]


@pytest.mark.parametrize("system", ["", [], None])
def test_an_empty_system_prompt_is_none(system):
    """An engine's template may put its own in its place."""
    assert chat_of(system=system) == [USER]


def test_one_text_block_is_a_text_and_several_are_parts():
    """So that both spellings of the same message have one prefix."""
    assert chat_of(turn("user", text("Hello"))) == [USER]
    assert read(Surface.MESSAGES, body(turn("user", text("Hello")))).segments == read(Surface.MESSAGES, body()).segments
    assert chat_of(turn("user", text("a"), text("b")))[0]["content"] == [text("a"), text("b")]
    assert chat_of({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_a_picture_is_a_data_url():
    """The only form in which engines are given media."""
    [message] = chat_of(turn("user", PNG, text("What?")))
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        text("What?"),
    ]


def test_an_assistants_turn_has_text_thought_and_calls():
    """What our own answers hold comes back with the next turn."""
    blocks = (
        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
        {"type": "redacted_thinking", "data": "x"},
        text("I look."),
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris", "n": 1}},
    )
    assert chat_of(USER, turn("assistant", *blocks), USER)[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "toolu_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Paris", "n": 1}'},
            }
        ],
    }
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    assert chat_of(USER, turn("assistant", call), USER)[1]["content"] is None


def test_tool_results_are_messages_before_the_rest():
    """An engine wants them right after the calls; pictures in them go with the user's words."""
    results = (
        {"type": "tool_result", "tool_use_id": "a", "content": "sunny"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("one"), text("two"), PNG]},
        {"type": "tool_result", "tool_use_id": "c", "content": "no such city", "is_error": True},
        {"type": "tool_result", "tool_use_id": "d"},
    )
    found = chat_of(turn("user", *results, text("And?")))
    assert [(one["role"], one.get("tool_call_id")) for one in found] == [
        ("tool", "a"), ("tool", "b"), ("tool", "c"), ("tool", "d"), ("user", None),
    ]  # fmt: skip
    assert [one["content"] for one in found[:4]] == ["sunny", "one\ntwo", "Error: no such city", ""]
    assert [part["type"] for part in found[4]["content"]] == ["image_url", "text"]
    assert len(chat_of(turn("user", results[0]))) == 1


def test_a_system_message_among_the_others_stays_where_it_is():
    """As newer clients may send it."""
    assert chat_of(USER, turn("system", text("Be brief.")))[1] == {"role": "system", "content": "Be brief."}


def test_an_answer_that_is_begun_is_gone_on_with():
    """Anthropic's prefill, in the words of vLLM, SGLang and our workers."""
    _, fields = asked(USER, {"role": "assistant", "content": "The answer is ("})
    assert (fields["continue_final_message"], fields["add_generation_prompt"]) == (True, False)
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    for last in (turn("assistant", text("x"), call), turn("assistant")):
        assert "continue_final_message" not in asked(USER, last)[1]


def test_tools_and_the_choice_among_them():
    """Functions, their schemas with the client's own bytes."""
    _, fields = asked(tools=[TOOL, {**TOOL, "type": "custom", "strict": True, "cache_control": {}}])
    function = {"name": "weather", "description": "of a city", "parameters": TOOL["input_schema"]}
    assert fields["tools"] == [
        {"type": "function", "function": function},
        {"type": "function", "function": function | {"strict": True}},
    ]
    assert "tool_choice" not in fields
    assert "tools" not in asked(tools=[], tool_choice={"type": "auto"})[1]


@pytest.mark.parametrize(
    ("choice", "said", "is_parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": False},
            {"type": "function", "function": {"name": "weather"}},
            True,
        ),
    ],
)
def test_a_tool_choice_has_a_word_in_chats(choice, said, is_parallel):
    """All four, and whether several may be called."""
    _, fields = asked(tools=[TOOL], tool_choice=choice)
    assert (fields["tool_choice"], fields.get("parallel_tool_calls")) == (said, is_parallel)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"metadata": {"user_id": "u1"}}, "user", "u1"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "chat_template_kwargs", {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, "chat_template_kwargs", {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, "chat_template_kwargs", None),
        ({"chat_template_kwargs": {"enable_thinking": 1}, "thinking": {"type": "disabled"}},
         "chat_template_kwargs", {"enable_thinking": 1}),
        ({"output_config": {"effort": "max"}}, "reasoning_effort", "high"),
        ({"output_config": {"effort": "low", "format": None}}, "reasoning_effort", "low"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, "response_format",
         {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True}}),
        ({"seed": 3}, "seed", 3),
        ({"metadata": {}}, "user", None),
    ],
)  # fmt: skip
def test_a_field_has_another_name_in_a_chat(fields, name, value):
    """Or means as much as another one."""
    assert asked(**fields)[1].get(name) == value


def test_a_tier_and_a_hint_count_as_in_a_chat():
    """Lanes by `service_tier`, homes by `prompt_cache_key`; neither is Anthropic's, nor are its tiers ours."""
    assert asked(service_tier="flex", prompt_cache_key="k")[0].tier_lane is Lane.BULK
    assert asked(prompt_cache_key="k")[0].home_hint == b'"k"'
    assert asked(service_tier="standard_only")[0].tier_lane is None


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([USER, USER, turn("user", {"type": "video"})], "messages[2].content[0].type"),
        ([turn("user", {"text": "x"})], "messages[0].content[0]"),
        ([turn("user", {"type": "text"})], "messages[0].content[0]"),
        ([turn("user", text(3))], "messages[0].content[0].text"),
        ([{"role": "developer", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user"}], "messages[0]"),
        ([turn("user", {"type": "tool_use", "id": "a", "name": "f", "input": {}})], "messages[0].content[0].type"),
        ([turn("assistant", text("x"), PNG)], "messages[0].content[1].type"),
        ([turn("system", PNG)], "messages[0].content[0].type"),
        ([turn("assistant", {"type": "tool_use", "id": "a", "name": "f", "input": "x"})],
         "messages[0].content[0].input"),
        ([turn("user", {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]})],
         "messages[0].content[0].content[0].type"),
        ([turn("user", {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}})],
         "messages[0].content[0].source.type"),
        ([turn("user", {"type": "tool_result", "tool_use_id": "a",
                        "content": [{"type": "image", "source": {"type": "url", "url": "file:///etc/passwd"}}]})],
         "messages[0].content[0].content[0].source.type"),
        ([turn("user", {"type": "image", "source": {"type": "file", "file_id": "f"}})],
         "messages[0].content[0].source.type"),
        ([turn("user", {"type": "image", "source": {"type": "base64", "media_type": "text/html,", "data": "x"}})],
         "messages[0].content[0].source.media_type"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named_by_its_whole_path(messages, path):
    """Also to whoever only counts."""
    for surface in (Surface.MESSAGES, Surface.COUNT_TOKENS):
        param, message = refused(*messages, surface=surface)
        assert param == path
        assert message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"system": [PNG]}, "system[0].type"),
        ({"system": 3}, "system"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": "x"}, "top_k"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0]"),
        ({"tools": [TOOL, {**TOOL, "input_schema": 3}]}, "tools[1].input_schema"),
        ({"tools": [TOOL] * 4097}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 3}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"metadata": 3}, "metadata"),
        ({"stream": 1}, "stream"),
    ],
)
def test_a_wrong_field_is_named(fields, path):
    """400, in the words of its own path."""
    assert refused(**fields)[0] == path


def test_far_too_many_are_refused_before_they_are_made():
    """Messages, blocks and the parts of one tool result each have a bound."""
    assert refused(*[USER] * (MAX_MESSAGES + 1))[0] == "messages"
    many = [text("")] * (MAX_PARTS + 1)
    assert refused(turn("user", *many))[0] == "messages"
    result = {"type": "tool_result", "tool_use_id": "a", "content": many}
    assert refused(USER, turn("user", result))[0] == "messages[1].content[0].content"


@pytest.mark.parametrize("surface", [Surface.MESSAGES, Surface.COUNT_TOKENS])
@pytest.mark.parametrize("block", ["x" * LARGE_BYTES, *[[1, "x" * LARGE_BYTES]], None])
def test_what_is_no_block_is_refused_in_a_large_body_too(surface, block):
    """By its path: it is looked at before it is read, and was once a failure of the gateway."""
    blocks = [block] if block else [1] * LARGE_BYTES
    assert refused(USER, turn("user", *blocks), surface=surface)[0] == "messages[1].content[0]"


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_sequences": ["a"] * LARGE_BYTES},
        {"chat_template_kwargs": {f"x{number}": 1 for number in range(LARGE_BYTES // 8)}},
    ],
)
def test_members_without_end_are_refused_before_they_are_made(fields):
    """A million of them take a part of a second, in which nobody else is served."""
    assert refused(**fields)[0] == next(iter(fields))


def test_nesting_without_end_is_refused():
    """However deep, and wherever."""
    deep = "[" * 5000 + "]" * 5000
    raw = b'{"model":"m","max_tokens":1,"messages":%s}' % deep.encode()
    with pytest.raises(ClientError):
        read(Surface.MESSAGES, raw)


_texts = st.text(max_size=20)
_blocks = st.lists(st.builds(text, _texts), min_size=1, max_size=3)
_calls = st.builds(
    lambda name, given: {"type": "tool_use", "id": "t", "name": name, "input": given},
    _texts,
    st.dictionaries(_texts, st.one_of(st.none(), st.booleans(), _texts, st.integers(0, 9)), max_size=2),
)
_turns = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, st.one_of(_texts, _blocks)),
    st.builds(
        lambda blocks, calls: {"role": "assistant", "content": blocks + calls}, _blocks, st.lists(_calls, max_size=2)
    ),
)


@given(st.lists(_turns, min_size=2, max_size=6), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_a_later_turn_begins_with_the_segments_of_an_earlier_one(messages, cut):
    """What was said before has the same prefix keys, so that the conversation finds its cache."""
    cut = min(cut, len(messages) - 1)
    earlier, later = (read(Surface.MESSAGES, body(*some, system="S")) for some in (messages[:cut], messages))
    assert later.segments[: len(earlier.segments)] == earlier.segments


def test_a_conversation_has_the_segments_of_the_chat_that_it_is():
    """Whoever changes the client keeps the cache."""
    said = [{"role": "system", "content": "S"}, USER, {"role": "assistant", "content": "Hi"}, USER]
    chat = read(Surface.CHAT, json.dumps({"model": "m", "messages": said}).encode())
    found = read(Surface.MESSAGES, body(USER, turn("assistant", text("Hi")), USER, system=[text("S")]))
    assert (found.segments, found.home_segments) == (chat.segments, chat.home_segments)


def test_what_is_counted_is_what_would_be_read():
    """The prompt of a count is the chat's: system, tools and template variables."""
    fields = {"system": "S", "tools": [TOOL], "thinking": {"type": "enabled", "budget_tokens": 1024}}
    request = read(Surface.COUNT_TOKENS, body(USER, **fields))
    counted = {name: json.loads(bytes(value)) for name, value in request.fields.items()}
    _, generated = asked(USER, **fields)
    del generated["max_tokens"]
    assert counted == generated
    assert request.inputs.is_free


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)),
    max_leaves=6,
)
_kinds = [
    "text",
    "image",
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "base64",
    "url",
    "custom",
    "tool",
]
_words = ["text", "source", "media_type", "data", "id", "name", "input", "tool_use_id", "content", "thinking", "schema"]
_odd = st.one_of(
    _json, st.dictionaries(st.sampled_from([*_words, "type"]), st.one_of(_json, st.sampled_from(_kinds)), max_size=5)
)
_known = ["messages", "system", "tools", "tool_choice", "thinking", "output_config", "metadata", "stop_sequences",
          "max_tokens", "stream", "top_k", "chat_template_kwargs", "container", "service_tier"]  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(_known), st.one_of(_odd, st.lists(_odd, max_size=3)), max_size=4), st.lists(_odd)
)
@settings(deadline=None, max_examples=50)
def test_whatever_is_sent_is_read_or_refused(fields, blocks):
    """Nothing that a client says is a bug, and what is read is a chat."""
    message = {"role": "assistant", "content": blocks}
    raw = json.dumps({"model": "m", "max_tokens": 1, "messages": [USER, message], **fields}).encode()
    for surface in (Surface.MESSAGES, Surface.COUNT_TOKENS):
        with contextlib.suppress(ClientError):
            request = read(surface, raw)
            chat = {"model": "m", **{name: json.loads(bytes(value)) for name, value in request.fields.items()}}
            assert read(Surface.CHAT, json.dumps(chat).encode()).segments
