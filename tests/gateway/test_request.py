"""From a client's bytes to a request: strict where we act, silent elsewhere, and never anything but `ClientError`."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gateway.errors import ClientError
from gateway.request import Surface, asked_lane, read
from policies.lane import Lane

MESSAGES = [{"role": "user", "content": "hi"}]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "n",
        "seed",
        "stop",
        "stop_token_ids",
        "tools",
        "max_tokens",
        "temperature",
        "service_tier",
        "top_k",
        "x",
    ]
)


def chat(**fields):
    """Bytes of a chat request."""
    return json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()


def raw_chat(member):
    """A chat request with one more member, spelled as given."""
    return b'{"model":"m","messages":[{"role":"user","content":"hi"}],' + member.encode() + b"}"


def refused(body, surface=Surface.CHAT):
    """The field that is blamed for a 400."""
    with pytest.raises(ClientError) as caught:
        read(surface, body)
    assert caught.value.problem.status == 400
    return caught.value.problem.param


def read_or_refuse(surface, body):
    """The request, or None if it is refused; anything else is a bug and comes out."""
    with contextlib.suppress(ClientError):
        return read(surface, body)
    return None


def segments(*messages, **fields):
    """The canonical prompt of these messages."""
    return read(Surface.CHAT, json.dumps({"model": "m", "messages": messages, **fields}).encode()).segments


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200), st.sampled_from(Surface))
def test_arbitrary_bytes_are_a_client_error(body, surface):
    """Nobody can make the reader fail in a way that looks like our bug."""
    with pytest.raises(ClientError):
        read(surface, body)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(KNOWN, JSON, max_size=6), st.sampled_from(Surface), st.booleans())
def test_arbitrary_json_is_a_request_or_a_client_error(fields, surface, is_likely):
    """Whatever stands in the fields we look into."""
    if is_likely:
        fields = {"model": "m", "messages": MESSAGES, "prompt": "p", **fields}
    request = read_or_refuse(surface, json.dumps(fields).encode())
    assert request is None or request.num_choices >= 1
    assert request is None or request.prompt_bytes == sum(map(len, request.segments))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_request_is_a_request_or_a_client_error(data):
    """One wrong byte anywhere."""
    body = bytearray(chat(temperature=0.5, stop=["a"], stream=True, metadata={"a": [1, "é"]}))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(Surface.CHAT, bytes(body))


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(TEXT.map("x_".__add__), JSON, max_size=5), st.booleans())
def test_fields_nobody_reads_pass_with_the_clients_own_bytes(extra, is_ascii):
    """An engine gets what the client meant, to the byte."""
    body = json.dumps({"model": "m", "messages": MESSAGES, **extra}, ensure_ascii=is_ascii, separators=(", ", " : "))
    request = read(Surface.CHAT, body.encode())
    for name, value in extra.items():
        assert (
            bytes(request.fields[name]) == json.dumps(value, ensure_ascii=is_ascii, separators=(", ", " : ")).encode()
        )
    assert json.loads(msgspec.json.encode(request.fields)) == json.loads(body)


def test_duplicate_and_escaped_keys_become_one():
    """Two spellings of a key must not mean one thing to us and another to the engine."""
    request = read(Surface.CHAT, raw_chat('"n":1,"\\u006e":3,"n":2'))
    assert bytes(request.fields["n"]) == b"2"
    assert request.num_choices == 2
    assert msgspec.json.encode(request.fields).count(b'"n"') == 1


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("max_tokens", 1, 10_000_000),
        ("max_completion_tokens", 1, 10_000_000),
        ("min_tokens", 0, 10_000_000),
        ("n", 1, 128),
        ("best_of", 1, 128),
        ("seed", -(2**63), 2**63 - 1),
        ("top_k", -1, 2**31 - 1),
        ("top_logprobs", 0, 1000),
        ("temperature", 0, 100),
        ("top_p", 0, 1),
        ("min_p", 0, 1),
        ("presence_penalty", -100, 100),
        ("frequency_penalty", -100, 100),
        ("repetition_penalty", 0, 100),
    ],
)
def test_every_number_has_two_ends(field, least, most):
    """The ends pass, one beyond is refused and named."""
    for value in (least, most, None):
        assert read(Surface.CHAT, chat(**{field: value}))
    for value in (least - 1, most + 1):
        assert refused(chat(**{field: value})) == field


@pytest.mark.parametrize("field", ["max_tokens", "n", "seed", "top_k", "temperature", "top_p"])
@pytest.mark.parametrize(
    "spelling", ["true", "false", '"1"', "[1]", "{}", "1e309", "-1e309", "9" * 30, "9" * 5000, "0.1e400"]
)
def test_what_is_no_such_number_is_refused_by_name(field, spelling):
    """`true` is no 1, "1" is no number, and nothing rounds to infinity."""
    assert refused(raw_chat(f'"{field}":{spelling}')) == field


@pytest.mark.parametrize(
    "spelling", ["NaN", "Infinity", "-Infinity", "nan", "01", "+1", ".5", "1.", "0x1", "1_000", "-"]
)
def test_what_json_does_not_know_is_no_number(spelling):
    """Other parsers are more generous than the standard."""
    refused(raw_chat(f'"temperature":{spelling}'))


@pytest.mark.parametrize("field", ["n", "seed", "max_tokens"])
def test_a_fraction_is_no_whole_number(field):
    """Nothing is rounded behind the client's back."""
    assert refused(chat(**{field: 1.5})) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", None),
        ("model", ""),
        ("model", 5),
        ("model", ["m"]),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", 5),
        ("stop", [5]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", [2**40]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", [1] * 1025),
        ("stream_options", []),
        ("stream_options", {"include_usage": 1}),
        ("service_tier", 1),
        ("messages", None),
        ("messages", []),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": ["text"]}]),
        ("messages", [{"role": 1, "content": "x"}]),
    ],
)
def test_a_wrong_field_is_named(field, value):
    """The client learns what to mend."""
    assert refused(chat(**{field: value}, **({"stream": True} if field == "stream_options" else {}))) == field


def test_lists_at_their_bounds_pass():
    """One fewer than what is refused."""
    request = read(Surface.CHAT, chat(stop=["x"] * 64, stop_token_ids=[2**31 - 1] * 1024))
    assert request.fields.keys() >= {"stop", "stop_token_ids"}


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ('"user":"tea \\ud83d"', "user"),
        ('"user":"tea \\udE00"', "user"),
        ('"user":"\\uD83D\\ud83d"', "user"),
        ('"stop":["a","\\ud83d"]', "stop"),
        ('"metadata":{"a":{"\\ud83d":1}}', "metadata"),
        ('"a":"\\\\ud83d fine","user":"\\ude00\\ud83d"', "user"),
    ],
)
def test_half_of_a_character_is_refused_by_the_name_of_its_field(member, field):
    """P01: it would break an engine, or become another text."""
    assert refused(raw_chat(member)) == field


@pytest.mark.parametrize("member", ['"user":"tea \\ud83d\\ude00"', '"user":"\\\\ud83d"', '"user":"\\\\\\\\ud83d"'])
def test_whole_characters_and_escaped_backslashes_pass(member):
    """The control of P01."""
    assert read(Surface.CHAT, raw_chat(member))


def test_half_a_character_in_a_key_or_a_huge_body_is_still_refused():
    """Without a name then: none can be given, or looking for it would cost too much."""
    assert refused(raw_chat('"\\ud83d":1')) is None
    assert refused(raw_chat('"user":"' + "x" * 300_000 + '\\ud83d"')) is None


@pytest.mark.parametrize("opener", ["[", '{"a":'])
@pytest.mark.parametrize("place", ["top", "messages", "content", "tool_calls", "part"])
def test_nesting_without_end_is_a_client_error(opener, place):
    """A body of brackets must not exhaust the stack, wherever it stands."""
    deep = opener * 50_000 + "1" + ("]" if opener == "[" else "}") * 50_000
    body = {
        "top": raw_chat(f'"x":{deep}'),
        "messages": f'{{"model":"m","messages":{deep}}}'.encode(),
        "content": f'{{"model":"m","messages":[{{"role":"u","content":{deep}}}]}}'.encode(),
        "tool_calls": f'{{"model":"m","messages":[{{"role":"u","tool_calls":{deep}}}]}}'.encode(),
        "part": f'{{"model":"m","messages":[{{"role":"u","content":[{{"type":"x","y":{deep}}}]}}]}}'.encode(),
    }[place]
    refused(body)


def test_deep_but_reasonable_parts_are_looked_through():
    """The search for places goes as deep as the parser."""
    depth = 200
    deep = '{"a":' * depth + '{"url":"http://inner"}' + "}" * depth
    body = f'{{"model":"m","messages":[{{"role":"u","content":[{{"type":"x","y":{deep}}}]}}]}}'
    assert refused(body.encode()) == "messages"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "image_url", "image_url": {"url": "HTTP://EXAMPLE.ORG"}},
        {"type": "image_url", "image_url": {"url": " http://example.org"}},
        {"type": "image_url", "image_url": {"url": "\n\tfile:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "file:/etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "/etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AA"}},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": "http://example.org"},
        {"type": "image_url", "image_url": [{"url": "http://example.org"}]},
        {"type": "image_url", "image_url": {"url": {"url": "http://example.org"}}},
        {"type": "image_url", "image_url": {"URL": "http://example.org"}},
        {"type": "image_url", "image_url": {"uri": "s3://bucket/key"}},
        {"type": "image", "image": "http://example.org"},
        {"type": "video", "video": ["file:///tmp/1.jpg"]},
        {"type": "input_audio", "input_audio": {"data": "https://example.org/a.wav"}},
        {"type": "text", "text": "look", "image_url": {"url": "http://example.org"}},
        {"image_url": "gopher://example.org"},
        {"type": "x", "a": {"b": [{"c": "FILE:///etc"}]}},
    ],
)
def test_no_engine_is_sent_to_a_place_that_a_tenant_names(part):
    """Only inline data passes, however the URL is wrapped."""
    assert refused(chat(messages=[{"role": "user", "content": [part]}])) == "messages"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "read http://example.org and file:///etc"},
        {"type": "text", "text": "http://example.org", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "refusal", "refusal": "https://example.org is not allowed"},
        {"type": "image_url", "image_url": None},
    ],
)
def test_text_and_inline_media_pass(part):
    """A URL that is only talked about is no URL."""
    assert segments({"role": "user", "content": [part]})


# The canonical prompt.


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "u", "us"]) | TEXT, "content": TEXT | st.none()},
    optional={"name": TEXT, "tool_call_id": TEXT, "reasoning_content": TEXT, "refusal": TEXT},
)


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGE, min_size=1, max_size=4), st.randoms(use_true_random=False), st.booleans())
def test_equal_conversations_are_equal_however_they_are_spelled(messages, random, is_ascii):
    """White space, order of keys and escapes are not part of what is said."""
    shuffled = [dict(random.sample(list(one.items()), len(one))) for one in messages]
    spelled = json.dumps({"messages": shuffled, "model": "m"}, indent=random.choice([None, 1]), ensure_ascii=is_ascii)
    assert read(Surface.CHAT, spelled.encode()).segments == segments(*messages)


NASTY = st.text(st.sampled_from("\x1f\x1e,;0123us"), max_size=6)
NASTY_MESSAGE = st.fixed_dictionaries(
    {"role": NASTY, "content": NASTY | st.lists(NASTY, max_size=3)},
    optional={"name": NASTY, "tool_call_id": NASTY, "reasoning_content": NASTY, "refusal": NASTY},
)


def said(message):
    """What distinguishes a message: absent and empty are the same, and so are a text and a list of just it."""
    content = message["content"]
    parts = tuple(content) if isinstance(content, list) else (content,)
    return (
        message["role"],
        parts,
        *(message.get(key) or "" for key in ("name", "tool_call_id", "reasoning_content", "refusal")),
    )


def with_parts(message):
    """The message with a list of texts as content parts."""
    content = message["content"]
    parts = [{"type": "text", "text": text} for text in content] if isinstance(content, list) else content
    return {**message, "content": parts}


@settings(deadline=None, max_examples=400)
@given(NASTY_MESSAGE, NASTY_MESSAGE)
@example({"role": "u", "content": "\x1fx"}, {"role": "u\x1f", "content": "x"})
@example({"role": "u", "content": ["a", "b"]}, {"role": "u", "content": "a\x1eb"})
@example({"role": "u", "content": "x\x1f1"}, {"role": "u", "content": "x"})
@example({"role": "us", "content": "er"}, {"role": "user", "content": ""})
def test_different_messages_differ(one, other):
    """No text can pretend to be another role, name, part or message."""
    assume(said(one) != said(other))
    assert segments(with_parts(one)) != segments(with_parts(other))


def test_a_text_part_is_the_text_and_media_is_not():
    """What looks like media in a text is a text."""
    media = {"type": "image_url", "image_url": {"url": "data:x"}}
    as_text = {"type": "text", "text": json.dumps(media)}
    assert segments({"role": "u", "content": [{"type": "text", "text": "x"}]}) == segments(
        {"role": "u", "content": "x"}
    )
    assert segments({"role": "u", "content": [media]}) != segments({"role": "u", "content": [as_text]})


def test_tools_and_tool_calls_count():
    """They are part of what an engine reads."""
    plain = segments({"role": "user", "content": "x"})
    with_tools = segments({"role": "user", "content": "x"}, tools=[{"type": "function"}])
    assert with_tools[0].startswith(b"tools")
    assert with_tools[1:] == plain
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert segments(call) != segments({"role": "assistant", "content": None})


def test_a_long_message_that_grows_keeps_its_beginning():
    """Messages that begin alike must share borders: what is only known at their end stands at their end."""
    short, long = (
        segments({"role": "user", "content": "x" * 5000})[0],
        segments({"role": "user", "content": "x" * 9000})[0],
    )
    assert long[:5000] == short[:5000]


@pytest.mark.parametrize(
    ("roles", "home"), [(["user"], 1), (["system", "user", "assistant", "user"], 2), (["system"], 1), (["x", "y"], 1)]
)
def test_the_home_ends_with_the_first_word_of_the_user(roles, home):
    """What all turns of a conversation share, plus the tools before it."""
    messages = [{"role": role, "content": "x"} for role in roles]
    assert read(Surface.CHAT, chat(messages=messages)).home_segments == home
    assert read(Surface.CHAT, chat(messages=messages, tools=[])).home_segments == home + 1


@pytest.mark.parametrize("name", ["tools", "functions", "documents", "chat_template_kwargs"])
def test_all_that_a_template_writes_into_the_prompt_is_counted(name):
    """Else a long text would be asked about for the price of a short one, by whoever leaves before the end."""
    plain = read(Surface.CHAT, chat())
    longer = read(Surface.CHAT, chat(**{name: [{"text": "x" * 10_000}]}))
    assert longer.prompt_bytes > plain.prompt_bytes + 10_000
    assert set(plain.segments) < set(longer.segments)
    assert longer.segments[longer.home_segments - 1] == plain.segments[plain.home_segments - 1]


def test_documents_are_part_of_what_a_prefix_is():
    """Two conversations about different documents share nothing, whatever they say."""
    one, other = (read(Surface.CHAT, chat(documents=[{"text": text}])).segments for text in ("a", "b"))
    assert one[0] != other[0]


@pytest.mark.parametrize("prompt", ["hi", ["hi"]])
def test_a_suffix_is_counted_too(prompt):
    """It is read as the prompt is."""
    body = {"model": "m", "prompt": prompt}
    plain, longer = (
        read(Surface.COMPLETIONS, json.dumps(fields).encode()) for fields in (body, body | {"suffix": "y" * 1000})
    )
    assert longer.prompt_bytes > plain.prompt_bytes + 1000
    assert longer.segments[: len(plain.segments)] == plain.segments


@pytest.mark.parametrize(
    ("prompt", "num"),
    [
        ("hi", 1),
        ("", 1),
        (["a"], 1),
        (["a", "b"], 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        (["x"] * 128, 128),
        ([7] * 5000, 1),
    ],
)
def test_every_form_of_a_prompt_is_counted(prompt, num):
    """A list of strings or of token lists is several prompts, a list of tokens is one."""
    body = json.dumps({"model": "m", "prompt": prompt, "n": 3, "max_tokens": 5}).encode()
    request = read(Surface.COMPLETIONS, body)
    assert request.num_choices == num * 3
    assert request.max_output_tokens == num * 3 * 5


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        5,
        {"a": 1},
        [1, "a"],
        ["a", 1],
        ["a", [1]],
        [[1], 2],
        [[]],
        [True],
        [[True]],
        [-1],
        [2**31],
        [[2**40]],
        [1.5],
        ["x"] * 129,
    ],
)
def test_what_is_no_prompt_is_refused(prompt):
    """Mixed forms and impossible token ids included."""
    assert refused(json.dumps({"model": "m", "prompt": prompt}).encode(), Surface.COMPLETIONS) == "prompt"


def test_a_string_that_looks_like_tokens_is_another_prompt():
    """The text "[1, 2]" and the tokens 1, 2 share no prefix."""
    texts = [json.dumps({"model": "m", "prompt": prompt}).encode() for prompt in ("[1, 2]", [1, 2])]
    assert len({read(Surface.COMPLETIONS, text).segments for text in texts}) == 2


# What the request asks for.


def test_a_stream_may_ask_for_usage_and_only_a_stream():
    """`stream_options` without a stream is a mistake that OpenAI refuses, too."""
    assert read(Surface.CHAT, chat(stream=True, stream_options={"include_usage": True})).wants_usage
    assert not read(Surface.CHAT, chat(stream=True, stream_options={"include_usage": None})).wants_usage
    assert not read(Surface.CHAT, chat(stream=True)).wants_usage
    assert not read(Surface.CHAT, chat(stream_options=None)).is_streaming
    assert refused(chat(stream_options={})) == "stream_options"
    assert refused(chat(stream=False, stream_options={"include_usage": True})) == "stream_options"


@pytest.mark.parametrize(
    ("tier", "lane"), [("flex", Lane.BULK), ("priority", Lane.INTERACTIVE), ("auto", None), ("", None), (None, None)]
)
def test_a_service_tier_asks_for_a_lane(tier, lane):
    """Flex is bulk, priority is interactive, anything else is the key's own."""
    assert read(Surface.CHAT, chat(service_tier=tier)).tier_lane is lane


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_completion_tokens": 5, "max_tokens": 7}, 7),
        ({"max_tokens": 5, "n": 4}, 20),
        ({"max_tokens": 5, "n": 4, "best_of": 6}, 30),
        ({"max_tokens": 1, "n_predict": 100_000}, None),
        ({"max_tokens": 1, "max_new_tokens": 100_000}, None),
        ({"max_tokens": 1, "n_cmpl": 64}, None),
    ],
)
def test_the_output_is_bounded_for_all_choices_together(fields, bound):
    """Of two names the larger holds, for engines differ; where one has a word of its own for it, nothing is known."""
    assert read(Surface.CHAT, chat(**fields)).max_output_tokens == bound


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(model="x" * 257), "model"),
        (chat(service_tier="zzz"), "service_tier"),
        (raw_chat(",".join(f'"k{number}":1' for number in range(2000))), "k"),
        (raw_chat(",".join(f'"k{number}":1' for number in range(200_000))), "k"),
        (chat(messages=[{"role": "user"}] * 16_385), "messages"),
        (chat(messages=[{"role": "user", "content": "x" * 20}] * 20_000), "messages"),
        (chat(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 16_385}]), "messages"),
    ],
    ids=["model", "tier", "keys", "many keys", "messages", "many messages", "parts"],
)
def test_every_count_is_bounded_and_the_refusal_names_the_field(body, param):
    """D7, D9, D28: what no client needs is refused before it costs anything."""
    with pytest.raises(ClientError) as caught:
        read(Surface.CHAT, body if isinstance(body, bytes) else body.encode())
    assert caught.value.problem.param.startswith(param)


def test_bodies_at_the_bounds_pass():
    """One less is no fault, small or large."""
    assert read(Surface.CHAT, chat(model="x" * 256)).model == "x" * 256
    messages = [{"role": "user", "content": "x" * 20}] * 16_384
    assert len(read(Surface.CHAT, chat(messages=messages)).segments) == 16_384


def test_the_lane_of_a_body_is_found_without_reading_it():
    """D9: what is malformed asks for nothing; `read` will say why."""
    assert asked_lane(chat(service_tier="flex")) is Lane.BULK
    for body in (chat(), chat(service_tier="zzz"), chat(service_tier=5), b"", b"[]", b"\xff"):
        assert asked_lane(body) is None


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"prompt_cache_key": "checkout", "session_id": "s"}, b'"checkout"'),
        ({"session_id": "s"}, b'"s"'),
        ({"prompt_cache_key": None, "session_id": 7}, b""),
        ({"prompt_cache_key": ""}, b""),
        ({"prompt_cache_key": "x" * 2000}, b""),
    ],
)
def test_a_hint_for_the_home_is_taken_where_it_is_a_short_string(fields, hint):
    """And never refused: it is a hint."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    assert read(Surface.CHAT, json.dumps(body).encode()).home_hint == hint
