"""Tool calls read from a growing text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.worker.output.parts import CallArguments, CallBroken, CallStart, Content, merged
from engines.worker.output.reply import ReplyStyle
from engines.worker.output.tool_formats import FORMATS, HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, QWEN_CODER, format_of

TOOLS = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "array"}}},
    "stop": {},
}
# P51: nested quotes, braces in strings, escapes, Unicode, and an empty object.
HARD = {
    "city": 'a "quoted" } { ] [ <tool_call> \\ \n\t 🫖 é \u2028',
    "days": -1.5e3,
    "near": [{"x": {}}, [], None, True],
}


def hermes(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name, arguments):
    return f'{{"name": "{name}", "parameters": {arguments}}}'


HARD_JSON = json.dumps(HARD, ensure_ascii=False)
XML = "\n<parameter=city>\nold\n town</parameter>\n<parameter=days>\n3\n</parameter>\n"
WRITTEN = {
    "hermes": (HERMES, f"{hermes('weather', HARD_JSON)}\n{hermes('stop', '{}')}", HARD_JSON),
    "hermes, arguments first": (
        HERMES,
        f'<tool_call>{{"arguments": {HARD_JSON}, "id": 1, "name": "weather"}}</tool_call>{hermes("stop", "{}")}',
        HARD_JSON,
    ),
    "an array, as SmolLM2": (
        HERMES,
        f'<tool_call>[{{"name": "weather", "arguments": {HARD_JSON}}}, {{"name": "stop"}}]</tool_call>',
        HARD_JSON,
    ),
    "arguments in a string": (
        HERMES,
        f'<tool_call>{{"name": "weather", "arguments": {json.dumps(HARD_JSON)}}}</tool_call>{hermes("stop", "null")}',
        HARD_JSON,
    ),
    "without end tags": (HERMES, hermes("weather", HARD_JSON)[:-12] + hermes("stop", "{}")[:-12], HARD_JSON),
    "bare": (HERMES, f"{hermes('weather', HARD_JSON)[12:-12]}\n{hermes('stop', '{}')[12:-12]}", HARD_JSON),
    "bare array": (
        FORMATS["json"],
        f'[{{"name": "weather", "arguments": {HARD_JSON}}},{{"name": "stop", "arguments": {{}}}}]',
        HARD_JSON,
    ),
    "qwen-coder": (
        QWEN_CODER,
        f"<tool_call>\n<function=weather>{XML}</function>\n</tool_call>\n<function=stop>\n</function>",
        '{"city": "old\\n town", "days": 3}',
    ),
    "glm": (
        FORMATS["glm"],
        (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>old town</arg_value>\n<arg_key>near</arg_key>\n"
            "<arg_value>[1]</arg_value>\n</tool_call><tool_call>stop\n</tool_call>"
        ),
        '{"city": "old town", "near": [1]}',
    ),
    "llama": (LLAMA, f"{llama('weather', HARD_JSON)}; {llama('stop', '{}')}", HARD_JSON),
    "llama, tagged": (LLAMA, f"<|python_tag|>{llama('weather', HARD_JSON)}; {llama('stop', '{}')}", HARD_JSON),
    "functionary": (
        FORMATS["functionary"],
        f"<function=weather>{HARD_JSON}</function><function=stop>{{}}</function>",
        HARD_JSON,
    ),
    "mistral": (
        MISTRAL,
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {HARD_JSON}}}, {{"name": "stop", "arguments": {{}}}}]',
        HARD_JSON,
    ),
    "mistral, by name": (MISTRAL, f"[TOOL_CALLS]weather{HARD_JSON}[TOOL_CALLS]stop{{}}", HARD_JSON),
    "mistral, with ids": (
        MISTRAL_ARGS,
        f"[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{HARD_JSON}[TOOL_CALLS]stop[ARGS]{{}}",
        HARD_JSON,
    ),
    "granite": (
        FORMATS["granite"],
        f'<|tool_call|>[{{"name": "weather", "arguments": {HARD_JSON}}}, {{"name": "stop"}}]',
        HARD_JSON,
    ),
    "deepseek": (
        FORMATS["deepseek"],
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{HARD_JSON}<｜tool▁call▁end｜>"
            "<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        HARD_JSON,
    ),
    "deepseek-r1": (
        FORMATS["deepseek-r1"],
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{HARD_JSON}\n```"
            "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>"
        ),
        HARD_JSON,
    ),
}
CASES = pytest.mark.parametrize("case", WRITTEN)


def read(style, pieces, *, is_cut=False):
    """All parts of a text that came in `pieces`, and whether it ended in calls."""
    reader = ReplyStyle(tool_format=style, tools=TOOLS).reader()
    parts = [part for piece in pieces for part in reader.feed(piece)]
    parts += reader.finish(is_cut=is_cut)
    return merged(parts), reader.ends_in_calls


def raw(parts) -> str:
    """What is content, without white space."""
    texts = [
        part.text if isinstance(part, Content) else part.raw for part in parts if isinstance(part, Content | CallBroken)
    ]
    return "".join("".join(texts).split())


@CASES
def test_two_calls_are_read_in_each_family_between_content(case):
    """P51: name first, then arguments that are the JSON that was written."""
    style, text, expected = WRITTEN[case]
    lead = "" if case.startswith(("bare", "llama")) and "tagged" not in case else "Let me see.\n"
    parts, ends_in_calls = read(style, [lead + text])
    if lead:
        assert parts[0] == Content("Let me see.")
        parts = parts[1:]
    assert ends_in_calls
    first, arguments, second, nothing = parts
    assert (first, second) == (CallStart(0, "weather"), CallStart(1, "stop"))
    assert json.loads(arguments.text) == json.loads(expected)
    assert (nothing.index, json.loads(nothing.text)) == (1, {})


@CASES
def test_every_division_into_two_pieces_reads_the_same(case):
    """P51, exhaustively."""
    style, text, _ = WRITTEN[case]
    whole = read(style, [text])
    for place in range(len(text) + 1):
        assert read(style, [text[:place], text[place:]]) == whole
    assert read(style, text) == whole


@CASES
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_random_divisions_of_damaged_texts_read_the_same_and_lose_nothing(case, data):
    """A parse that fails falls back to content, whatever the division; no call is left open without a word."""
    style, text, _ = WRITTEN[case]
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    damaged = text[:start] + data.draw(st.text(alphabet='{}[]",:<>=/ ax\n', max_size=4)) + text[end:]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(damaged)), max_size=4)))
    pieces = [damaged[a:b] for a, b in zip([0, *cuts], [*cuts, len(damaged)], strict=True)]
    parts, ends_in_calls = read(style, pieces)
    assert (parts, ends_in_calls) == read(style, [damaged])
    starts = [part.index for part in parts if isinstance(part, CallStart)]
    broken = [part.index for part in parts if isinstance(part, CallBroken)]
    assert starts == list(range(len(starts)))
    assert ends_in_calls == (bool(starts) and not broken)
    for index in set(starts) - set(broken):
        arguments = "".join(p.text for p in parts if isinstance(p, CallArguments) and p.index == index)
        assert isinstance(json.loads(arguments), dict)
    if not starts:
        assert raw(parts) == "".join(damaged.split())


@given(
    text=st.text(alphabet='<tool_cal>{"name": fuction=|[TOOL_CALLS]}\n x', max_size=60),
    style=st.sampled_from(list(FORMATS.values())),
)
@settings(max_examples=300, deadline=None)
def test_text_without_a_call_comes_out_as_it_is(text, style):
    """Nothing is lost and nothing added when no tool is called, white space included."""
    parts, ends_in_calls = read(style, text)
    assert not ends_in_calls
    assert "".join(part.text for part in parts) == text


@pytest.mark.parametrize("end", [{"a": {"b": {}}}, {"a": "x"}, {"a": 1}])
@CASES
def test_the_last_piece_of_arguments_is_there(case, end):
    """P52: endings in }} , "} and a number, with the finish in the same step as the last token."""
    style = WRITTEN[case][0]
    form = style.form
    text = form.begin.replace("NAME", "weather") + json.dumps(end) + form.end
    parts, ends_in_calls = read(style, [text])
    assert ends_in_calls
    assert parts == (CallStart(0, "weather"), CallArguments(0, json.dumps(end)))


@CASES
def test_a_call_cut_by_length_is_the_prefix_that_was_written(case):
    """P52: and the reason says so: it does not end in calls."""
    style = WRITTEN[case][0]
    begin = style.form.begin.replace("NAME", "weather")
    parts, ends_in_calls = read(style, [begin + '{"city": "Par'], is_cut=True)
    assert not ends_in_calls
    assert parts == (CallStart(0, "weather"), CallArguments(0, '{"city": "Par'))


def test_a_call_that_breaks_is_given_back_as_text():
    """Stopped in the middle without a length limit: all that was written of it is content."""
    text = 'Well: <tool_call>{"name": "weather", "arguments": {"city": oops}}</tool_call> done'
    parts, ends_in_calls = read(HERMES, text)
    assert not ends_in_calls
    broken = next(part for part in parts if isinstance(part, CallBroken))
    rest = parts[-1]
    assert "Well: " + broken.raw.lstrip() + rest.text == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '{"answer": 42, "name": "weather"}',
        '{"name": "weather", "arguments": 5}',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call></tool_call>",
        '<tool_call>{"name": "weather", "name": "stop", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "{\\"a\\": \\"\\ud800' + '"}"}</tool_call>',
        "<tool_call>" + '{"name": "weather", "arguments": ' + '{"a":' * 500,
    ],
)
def test_what_is_no_call_of_an_offered_tool_is_content(text):
    """Never an empty call, never one of a tool that is not there."""
    parts, ends_in_calls = read(HERMES, text)
    assert not ends_in_calls
    if not any(isinstance(part, CallStart) for part in parts):
        assert raw(parts) == "".join(text.split())


def test_mistakes_with_one_meaning_are_mended():
    """Raw line breaks in strings and needless backslashes would make arguments that are not JSON."""
    parts, _ = read(HERMES, [hermes("weather", '{"city": "a\nb\\\'c\\d"}')])
    assert json.loads(parts[1].text) == {"city": "a\nb'c\\d"}


def test_content_behind_a_call_is_content():
    """And the end tag between them is not."""
    parts, ends_in_calls = read(HERMES, [hermes("stop", "{}") + "\n\nThat was it."])
    assert parts[-1] == Content("That was it.")
    assert ends_in_calls


def test_values_of_elements_get_the_types_of_the_schema():
    """A string stays one though it looks like a number; what is no JSON stays text."""
    text = (
        "<function=weather><parameter=city>12</parameter><parameter=days>many</parameter>"
        "<parameter=near>None</parameter><parameter=more>true</parameter></function>"
    )
    parts, _ = read(QWEN_CODER, [text])
    assert json.loads(parts[1].text) == {"city": "12", "days": "many", "near": None, "more": "true"}


def test_long_arguments_take_time_that_grows_with_them():
    """No quadratic work: 200,000 characters in single pieces."""
    text = hermes("weather", json.dumps({"city": "x" * 200_000}))
    parts, ends_in_calls = read(HERMES, text)
    assert ends_in_calls
    assert len(parts[1].text) > 200_000


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("[TOOL_CALLS] x [ARGS]", "mistral-args"),
        ("<tool_call> <function=a> <parameter=b>", "qwen-coder"),
        ("<tool_call> {{ tools }}", "hermes"),
        ("<tool_call> <arg_key>", "glm"),
        ("<|python_tag|> {{ tools }}", "llama"),
        ("<｜tool▁call▁begin｜>", "deepseek"),
        ("<｜tool▁call▁begin｜> ```json", "deepseek-r1"),
        ("<|tool_call|> {{ tools }}", "granite"),
        ("<function= {{ tools }}", "functionary"),
        ("{{ tools }}", "json"),
        ("{{ messages }}", "hermes"),
    ],
)
def test_a_template_shows_its_family(template, name):
    """By the marks it writes itself; one without tools is told in words how to call."""
    assert format_of(template).name == name


def test_a_vocabulary_shows_llama():
    """Its small models' templates hold no mark."""
    assert format_of("{{ tools }}", frozenset({"<|python_tag|>"})).name == "llama"
