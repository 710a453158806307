"""What clients are told against OpenAI's published schema of its answers, from a scripted engine: whole, chunk by chunk, refused."""

import pytest

from tests.gateway.inputs_kit import embeddings, served
from tests.gateway.kit import MODEL, chat, completion, respond
from tests.gateway.test_anthropic_client import calling
from tests.openai_schema.published import assert_valid, assert_valid_event, validator
from tests.scripted_engine import answer, status

UNSTRICT = {"type": "function", "name": "time"}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
FORMAT = {"type": "json_schema", "name": "city", "schema": {"type": "object", "properties": {}}}
RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
USAGE_SHAPES = ["separate", "finish", "null_then_separate", "always", "none"]
usages = pytest.mark.parametrize("usage", USAGE_SHAPES)


def test_the_schema_can_tell_a_wrong_answer():
    """Else nothing below would mean anything."""
    assert not validator("CreateChatCompletionResponse").is_valid({"id": "x"})
    assert not validator("ResponseStreamEvent").is_valid({"type": "response.created", "sequence_number": 0})
    with pytest.raises(AssertionError, match="choices/0/index"):
        choice = {"index": "0", "finish_reason": None, "delta": {}}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        assert_valid("CreateChatCompletionStreamResponse", chunk)


async def test_whole_answers(launch):
    """Of each surface that OpenAI has; calls of tools also in a stream."""
    gateway = await launch()
    gateway.script(calling, calling, answer("Hel", "lo", cached=3), answer("Hello"), served(), served())
    assert_valid("CreateChatCompletionResponse", (await gateway.post(chat())).json)
    for chunk in (await gateway.post(chat(stream=True))).chunks:
        assert_valid("CreateChatCompletionStreamResponse", chunk)
    assert_valid("CreateChatCompletionResponse", (await gateway.post(chat())).json)
    assert_valid("CreateCompletionResponse", (await gateway.post(completion(), path=COMPLETIONS)).json)
    assert_valid("CreateEmbeddingResponse", (await gateway.post(embeddings(), path="/v1/embeddings")).json)
    counted = await gateway.post(respond(), path=RESPONSES + "/input_tokens")
    assert_valid("TokenCountsResource", counted.json)
    assert_valid("ListModelsResponse", (await gateway.get("/v1/models")).json)
    assert_valid("Model", (await gateway.get(f"/v1/models/{MODEL}")).json)


@usages
async def test_every_chunk(launch, usage):
    """Wherever the engine says its usage; asked for and not."""
    gateway = await launch()
    for wants in ({}, {"stream_options": {"include_usage": True}}):
        for body, path, name in (
            (chat(), "/v1/chat/completions", "CreateChatCompletionStreamResponse"),
            (completion(), COMPLETIONS, "CreateCompletionResponse"),
        ):
            gateway.script(answer("Hel", "lo", usage=usage))
            told = await gateway.post({**body, "stream": True, **wants}, path=path)
            assert told.is_done
            for chunk in told.chunks:
                assert_valid(name, chunk)


ASKED = [
    {},
    {"tools": [TOOL, UNSTRICT], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False},
    {"text": {"format": FORMAT}, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"instructions": "Be brief.", "metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "max_output_tokens": 9},
    {
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "store": False,
        "temperature": 0,
        "user": "u",
    },
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    "engine", [lambda: answer("Hel", "lo"), lambda: answer("Hel", finish_reason="length"), lambda: calling]
)
async def test_responses(launch, asked, engine):
    """Whole and each event, whatever was asked and whatever came of it; read again, with its input."""
    gateway = await launch()
    gateway.script(engine(), engine())
    whole = await gateway.post(respond() | asked, path=RESPONSES)
    assert_valid("Response", whole.json)
    told = await gateway.post(respond(stream=True) | asked, path=RESPONSES)
    for event in told.chunks:
        assert_valid_event(event)
    assert_valid("Response", told.chunks[-1]["response"])
    if whole.json["store"]:
        again = await gateway.get(f"{RESPONSES}/{whole.json['id']}")
        assert again.json == whole.json


async def test_input_items(launch):
    """Of a conversation with every kind of item that can be in it, page by page, and a page of none."""
    gateway = await launch()
    gateway.script(calling, answer("Rain."))
    first = (
        await gateway.post(respond([{"role": "system", "content": "s"}, picture()], tools=[TOOL]), path=RESPONSES)
    ).json
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "wet"} for call in calls]
    body = respond(results, previous_response_id=first["id"], tools=[TOOL])
    second = (await gateway.post(body, path=RESPONSES)).json
    for query in ("", "?order=asc&limit=2"):
        page = await gateway.get(f"{RESPONSES}/{second['id']}/input_items{query}")
        assert_valid("ResponseItemList", page.json)
    last = (await gateway.get(f"{RESPONSES}/{second['id']}/input_items?order=asc")).json["last_id"]
    page = await gateway.get(f"{RESPONSES}/{second['id']}/input_items?order=asc&after={last}")
    assert page.json["data"] == []
    assert_valid("ResponseItemList", page.json)


def picture():
    """A user's message with a picture, and a text."""
    url = "data:image/png;base64,iVBORw0KGgo="
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    return {"role": "user", "content": parts}


async def test_errors(launch):
    """Of the gateway and of engines, before an answer and inside a stream."""
    gateway = await launch(retries={"max_attempts": 1}, gateway={"max_body_mb": 0.01})
    gateway.script(status(400), status(500), status(503))
    wrong = [
        await gateway.post(chat(), key="wl-unknown"),
        await gateway.post(chat(temperature=-1)),
        await gateway.post(b"{"),
        await gateway.post(chat("x" * 20_000)),
        await gateway.post(chat() | {"model": "gone"}),
        await gateway.post(chat()),
        await gateway.post(chat()),
        await gateway.post(chat()),
        await gateway.get("/v1/models/gone"),
        await gateway.get("/v1/nowhere"),
        await gateway.get("/v1/responses/resp_00"),
        await gateway.post(respond(background=True), path=RESPONSES),
    ]
    await gateway.limit(gateway.project, '{"rpm": 0}')
    wrong.append(await gateway.post(chat()))
    assert {one.status for one in wrong} == {400, 401, 404, 413, 429, 502, 503}
    for one in wrong:
        assert_valid("ErrorResponse", one.json)


@pytest.mark.parametrize(("body", "path"), [(chat, "/v1/chat/completions"), (respond, RESPONSES)])
async def test_a_failure_inside_a_stream(launch, body, path):
    """After content: the last event is an error, or a response that failed."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", cut_before=2))
    *_, last = (await gateway.post(body(stream=True), path=path)).chunks
    assert_valid_event(last) if path == RESPONSES else assert_valid("ErrorResponse", last)
