"""Tools, reasoning and constrained answers over HTTP, on the fake engine, which says what its prompt tells it to."""

import asyncio
import json

import httpx
import msgspec
import pytest

from engines.worker.app import build_app

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
# A template as Qwen3's: takes tools, reasons, and can be told not to.
THINKING = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if opens %}<think>\n{% endif %}{% endif %}"
)


def chat(text, **fields):
    return {
        "model": "fake",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 400,
        **fields,
    }


def client_of(service):
    return httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://worker")


async def post(client, body, status=200, path="/v1/chat/completions"):
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


async def whole(client, body):
    return (await post(client, body)).json()["choices"][0]


async def streamed(client, body):
    """The choices of a streamed answer put together, as the official client does."""
    lines = [line.removeprefix("data: ") for line in (await post(client, body | {"stream": True})).text.split("\n\n")]
    assert lines[-2:] == ["[DONE]", ""]
    message, calls, finish = {"content": "", "reasoning": "", "reasoning_content": ""}, [], None
    for event in map(msgspec.json.decode, lines[:-2]):
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            for field in message:
                message[field] += delta.get(field) or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(calls):
                    assert (call["type"], bool(call["id"])) == ("function", True)
                    calls.append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert "id" not in call
                    assert "name" not in call["function"]
                calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
    return message, calls, finish


async def test_a_call_is_an_answer_in_openais_shape(client):
    """Content null, a call with an id, and the reason."""
    choice = await whole(client, chat(f"[[say {CALL}]]", tools=[WEATHER]))
    message = choice["message"]
    assert (message["content"], choice["finish_reason"]) == (None, "tool_calls")
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Köln", "days": 3}


async def test_a_streamed_call_is_the_whole_call_in_pieces(client):
    """Name first, then pieces of the arguments, with content before them (P51, P52)."""
    body = chat(f"[[say Let me see. {CALL}\n{CALL}]]", tools=[WEATHER])
    message, calls, finish = await streamed(client, body)
    assert (message["content"], finish) == ("Let me see.", "tool_calls")
    assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Köln", "days": 3}] * 2
    unstreamed = (await whole(client, body))["message"]
    assert unstreamed["content"] == "Let me see."
    assert [call["function"] for call in unstreamed["tool_calls"]] == calls


async def test_fifty_streams_at_once_have_whole_calls(client):
    """P52: none loses its last piece."""
    bodies = [chat(f"{number} [[say {CALL}]]", tools=[WEATHER]) for number in range(50)]
    for _, calls, finish in await asyncio.gather(*(streamed(client, body) for body in bodies)):
        assert finish == "tool_calls"
        assert json.loads(calls[0]["arguments"]) == {"city": "Köln", "days": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_cut_by_length_says_so(client, stream):
    """P52: the arguments are the generated prefix."""
    body = chat(f"[[say {CALL}]]", tools=[WEATHER], max_tokens=70)
    if stream:
        _, (call,), finish = await streamed(client, body)
    else:
        choice = await whole(client, body)
        call, finish = choice["message"]["tool_calls"][0]["function"], choice["finish_reason"]
    assert finish == "length"
    assert '{"city": "Köln", "days": 3}'.startswith(call["arguments"])


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_call_is_content(client, stream):
    """Nothing is lost, and the reason is the plain one (P51)."""
    said = '<tool_call>{"name": "get_weather", "arguments": {"city": oops</tool_call>'
    body = chat(f"[[say {said}]]", tools=[WEATHER])
    if stream:
        message, _, finish = await streamed(client, body)
    else:
        choice = await whole(client, body)
        message, finish = choice["message"], choice["finish_reason"]
        assert "tool_calls" not in message
    assert (message["content"], finish) == (said, "stop")


async def test_without_tools_or_with_none_the_text_stays(client):
    """A call is only one where a tool was offered."""
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = await whole(client, chat(f"[[say {CALL}]]", **fields))
        assert choice["message"]["content"] == CALL


async def test_one_call_is_enough_where_they_may_not_be_parallel(client):
    """The answer ends there."""
    body = chat(f"[[say {CALL}\n{CALL}]]", tools=[WEATHER], parallel_tool_calls=False)
    choice = await whole(client, body)
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "clock"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
    ],
)
async def test_a_required_call_is_made_whatever_the_model_would_say(client, choice, names):
    """The grammar leaves it nothing else; arguments follow the schema."""
    body = chat("tell me a story", tools=[WEATHER, CLOCK], tool_choice=choice, max_tokens=400, temperature=1, seed=1)
    answer = await whole(client, body | {"parallel_tool_calls": False})
    assert answer["finish_reason"] in ("tool_calls", "length")
    call = answer["message"]["tool_calls"][0]["function"]
    assert call["name"] in names
    if answer["finish_reason"] == "tool_calls":
        assert isinstance(json.loads(call["arguments"]), dict)


async def test_a_strict_tool_is_held_to_its_schema(client):
    """The model would say days as a word; its grammar does not let it."""
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    said = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x", "days": "many"}}\n</tool_call>'
    free = await whole(client, chat(f"[[say {said}]]", tools=[WEATHER]))
    assert json.loads(free["message"]["tool_calls"][0]["function"]["arguments"])["days"] == "many"
    held = await whole(client, chat(f"[[say {said}]]", tools=[strict], max_tokens=200))
    arguments = held["message"]["tool_calls"][0]["function"]["arguments"]
    assert '"many"' not in arguments
    plain = await whole(client, chat("[[say the time of day]]", tools=[strict]))
    assert plain["message"]["content"] == "the time of day"


@pytest.mark.parametrize("template", [None, THINKING])
async def test_results_of_tools_go_back_to_the_model(make_service, template):
    """Several turns, with a template that takes tools and by the fallback that tells them in words."""
    service = make_service(template=template)
    messages = [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain <|im_end|>"},
        {"role": "tool", "tool_call_id": "c2", "content": "sun"},
        {"role": "user", "content": "[[say it rains]]"},
    ]
    async with client_of(service) as client:
        choice = await whole(client, {"model": "fake", "messages": messages, "tools": [WEATHER], "temperature": 0})
        assert choice["message"]["content"] == "it rains"
        tokens = (await post(client, {"messages": messages, "tools": [WEATHER]}, path="/tokenize")).json()["tokens"]
        text = (await post(client, {"tokens": tokens}, path="/detokenize")).json()["prompt"]
    for told in ("get_weather", "rain <|im_end|>", "sun", "The weather of a city."):
        assert told in text
    assert tokens.count(1) == len(messages) + (1 if template else 0) + 1  # <|im_start|>; results joined, system added


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].function.name"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "often"}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [CLOCK], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs"),
        ({"guided_grammar": "start: ("}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"json_schema": 5}, "json_schema"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"range": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"_spend": 1}}, "chat_template_kwargs"),
    ],
)
async def test_wishes_that_cannot_be_are_refused_by_field(client, fields, param):
    """Before anything is queued, and the next request is served."""
    error = (await post(client, chat("x") | fields, 400)).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    await post(client, chat("[[say x]]"))


@pytest.mark.parametrize(
    ("fields", "is_right"),
    [
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            lambda text: set(json.loads(text)) == {"ok"},
        ),
        ({"guided_json": json.dumps(SCHEMA)}, lambda text: set(json.loads(text)) == {"ok"}),
        ({"json_schema": SCHEMA}, lambda text: set(json.loads(text)) == {"ok"}),
        ({"structured_outputs": {"json": SCHEMA}}, lambda text: set(json.loads(text)) == {"ok"}),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, lambda text: len(text) == 3 and text.isdecimal()),
        ({"guided_choice": ["left", "right"]}, lambda text: text in ("left", "right")),
        ({"guided_grammar": 'start: "a" | "b"'}, lambda text: text in "ab"),
        ({"grammar": 'root ::= "x" | "y"'}, lambda text: text in "xy"),
    ],
)
async def test_an_answer_follows_its_grammar(client, fields, is_right):
    """Chat and completions, whatever the model would say."""
    body = {"model": "fake", "temperature": 0, "max_tokens": 300, **fields}
    answer = await whole(client, body | {"messages": [{"role": "user", "content": "tell me"}]})
    completed = (await post(client, body | {"prompt": "tell me"}, path="/v1/completions")).json()["choices"][0]
    for choice, text in ((answer, answer["message"]["content"]), (completed, completed["text"])):
        if choice["finish_reason"] == "stop":
            assert is_right(text)
        else:
            assert fields == {"response_format": {"type": "json_object"}}  # may go on for ever


async def test_a_schema_and_tools_leave_the_model_the_choice(client):
    """Calls, or an answer by the schema, and nothing else."""
    fields = {
        "tools": [WEATHER],
        "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    }
    call = await whole(client, chat(f"[[say {CALL}]]", **fields))
    assert call["finish_reason"] == "tool_calls"
    answer = await whole(client, chat('[[say {"ok": true}]]', **fields))
    assert (answer["message"]["content"], answer["finish_reason"]) == ('{"ok": true}', "stop")
    neither = await whole(client, chat("[[say the time]]", **fields))
    assert "time" not in (neither["message"]["content"] or "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("opens", [False, True])
async def test_reasoning_is_told_from_the_answer(make_service, stream, opens):
    """Under both names in use, with its tokens counted; the prompt may have begun it."""
    service = make_service(template=THINKING)
    said = "<think>\nLet me think.\n</think>\n\nIt is so."  # what the prompt has of it, the fake model leaves out
    body = chat(f"[[say {said}]]", chat_template_kwargs={"opens": opens})
    async with client_of(service) as client:
        if stream:
            message, _, _ = await streamed(client, body)
        else:
            answer = (await post(client, body)).json()
            message = answer["choices"][0]["message"]
            counted = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
            assert 0 < counted < answer["usage"]["completion_tokens"]
        hidden = await whole(client, body | {"include_reasoning": False})
    assert (message["reasoning"], message["content"]) == ("Let me think.", "It is so.")
    assert message["reasoning_content"] == message["reasoning"]
    assert "reasoning" not in hidden["message"]
    assert hidden["message"]["content"] == "It is so."


async def test_reasoning_stays_in_the_answer_on_request(make_service):
    """By the operator's setting."""
    service = make_service({"reasoning_format": "none"}, template=THINKING)
    async with client_of(service) as client:
        choice = await whole(client, chat("[[say <think>a</think>b]]"))
    assert choice["message"]["content"] == "<think>a</think>b"


async def test_a_worker_told_to_read_no_calls_refuses_tools(make_service):
    """Rather than ignore them."""
    async with client_of(make_service({"tool_format": "none"})) as client:
        error = (await post(client, chat("x", tools=[CLOCK]), 400)).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")


async def test_template_variables_reach_the_template(make_service):
    """`enable_thinking`, and documents; special texts in them stay text."""
    template = "{{ documents | tojson }}{{ mood }}{{ reasoning_effort }}{{ messages[0].content }}"
    service = make_service(template=template)
    body = {"messages": [{"role": "user", "content": "x"}], "documents": [{"text": "a<|im_end|>"}]}
    async with client_of(service) as client:
        extra = {"chat_template_kwargs": {"mood": "calm", "reasoning_effort": "low"}}
        tokens = (await post(client, body | extra, path="/tokenize")).json()["tokens"]
        text = (await post(client, {"tokens": tokens}, path="/detokenize")).json()["prompt"]
    assert text == '[{"text": "a<|im_end|>"}]calmlowx'
    assert 2 not in tokens


async def test_a_client_that_leaves_while_its_grammar_compiles_leaves_nothing(service):
    """The compilation goes on for others; no sequence was queued (P50)."""
    schema = {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(2000)}}
    body = chat("x", guided_json=schema, max_tokens=1)
    async with client_of(service) as client:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.post("/v1/chat/completions", json=body), 0.001)
    assert service.link.num_open == 0


@pytest.mark.parametrize("kind", ["string", ["string", "null"], None, 5])
async def test_parameters_that_describe_no_object_are_refused(client, kind):
    """Arguments are an object; a grammar of anything else would force answers that are no calls."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": kind}}}
    response = await post(client, chat("a", tools=[tool], tool_choice="required"), 400)
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


async def test_parameters_that_may_be_null_are_an_object_all_the_same(client):
    """An enforced call is one, whatever else its schema would allow."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": ["object", "null"], "properties": {}}}}
    response = await post(client, chat("a", tools=[tool], tool_choice="required", parallel_tool_calls=False))
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
