"""The official Anthropic client against the gateway, sync and async: what an application sees."""

import asyncio
import json

import anthropic
import httpx2
import pytest

from tests.gateway.kit import MODEL
from tests.scripted_engine import Cut, Reply, answer, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
ASKED = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object", "properties": {}}}
CHAT_OBJECT = {"id": "chatcmpl-scripted", "created": 1_700_000_000, "model": "engine/small-a"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 4}}


def settings_of(gateway, key):
    """What a client is given; its URL has no `/v1`."""
    return {"base_url": gateway.url.removesuffix("/v1"), "api_key": key or gateway.key, "max_retries": 0}


@pytest.fixture
async def connect():
    """Makes clients: `connect(gateway, key=…)`; closed at the end."""
    clients = []

    def client(gateway, key=None, **options):
        transport = httpx2.AsyncClient(verify=False, trust_env=False, timeout=10)
        clients.append(transport)
        return anthropic.AsyncAnthropic(**settings_of(gateway, key) | {"http_client": transport} | options)

    yield client
    for transport in clients:
        await transport.aclose()


def in_a_thread(gateway, work):
    """What the synchronous client does, while the gateway serves it in this loop."""

    def run():
        with httpx2.Client(verify=False, trust_env=False, timeout=10) as transport:
            return work(anthropic.Anthropic(**settings_of(gateway, None), http_client=transport))

    return asyncio.to_thread(run)


def calling(request):
    """An engine that thinks, speaks and calls two tools, as vLLM does."""
    ids = [{"index": 0, "id": "call_a", "type": "function"}, {"index": 1, "id": "call_b", "type": "function"}]
    if not request.json.get("stream"):
        functions = [{"name": "weather", "arguments": '{"city": "Paris"}'}, {"name": "time", "arguments": "{}"}]
        calls = [one | {"function": function} for one, function in zip(ids, functions, strict=True)]
        said = {"role": "assistant", "content": "I look.", "refusal": None, "reasoning": "Hm.", "tool_calls": calls}
        choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": "tool_calls"}
        body = CHAT_OBJECT | {"object": "chat.completion", "choices": [choice], "usage": USAGE}
        return Reply([json.dumps(body).encode()])
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning": "Hm."},
        {"content": "I "},
        {"content": "look."},
        {"tool_calls": [ids[0] | {"function": {"name": "weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
        {"tool_calls": [ids[1] | {"function": {"name": "time", "arguments": "{}"}}]},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}, {"choices": [], "usage": USAGE}]
    events = [sse(json.dumps(CHAT_OBJECT | {"object": "chat.completion.chunk"} | one)) for one in chunks]
    return Reply([*events, sse("[DONE]")], headers=[("content-type", "text/event-stream")])


@both_ways
async def test_a_whole_message(launch, connect, way):
    """Text, ending, usage, and the id that the record has."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", cached=3))
    got = await connect(gateway).messages.create(**ASKED)
    assert (got.content[0].text, got.stop_reason, got.stop_sequence) == ("Hello", "end_turn", None)
    assert (got.usage.input_tokens, got.usage.cache_read_input_tokens, got.usage.output_tokens) == (7, 3, 2)
    [record] = await gateway.until_recorded(1)
    assert got._request_id == record.request_id


@both_ways
async def test_a_stream_accumulates_to_the_whole_message(launch, connect, way):
    """Thought, text and two calls, by the client's own helper."""
    gateway = await launch()
    gateway.script(calling, calling)
    client = connect(gateway)
    whole = await client.messages.create(**ASKED, tools=[TOOL])
    async with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (whole.content[2].input, whole.content[2].id, whole.stop_reason) == ({"city": "Paris"}, "call_a", "tool_use")
    assert text == "I look."
    told = [{**block.to_dict(), "parsed_output": None} for block in streamed.content]
    assert told == [{**block.to_dict(), "parsed_output": None} for block in whole.content]
    assert (streamed.usage, streamed.stop_reason, streamed.model) == (whole.usage, whole.stop_reason, whole.model)


async def test_raw_events_of_a_stream(launch, connect):
    """`stream=True` without the helper."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    stream = await connect(gateway).messages.create(**ASKED, stream=True)
    found = [event async for event in stream]
    assert found[0].type == "message_start"
    assert [event.delta.text for event in found if event.type == "content_block_delta"] == ["Hel", "lo"]
    assert found[-1].type == "message_stop"


async def test_the_synchronous_client_does_the_same(launch):
    """Whole, streamed, counted, refused."""
    gateway = await launch(kind="vllm")
    gateway.script(answer("Hello"), calling, Reply([b'{"tokens": [1, 2, 3], "count": 3}']))

    def work(client):
        whole = client.messages.create(**ASKED)
        with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
            final = stream.get_final_message()
        count = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**ASKED | {"model": "gone"})
        return whole.content[0].text, [block.type for block in final.content], count.input_tokens

    assert await in_a_thread(gateway, work) == ("Hello", ["thinking", "text", "tool_use", "tool_use"], 3)


async def test_a_loop_of_tools(launch, connect):
    """The answer's own blocks are sent back with results; the engine gets a chat's messages of tools."""
    gateway = await launch()
    gateway.script(calling, answer("Sunny."))
    client = connect(gateway)
    first = await client.messages.create(**ASKED, tools=[TOOL], tool_choice={"type": "any"})
    results = [
        {"type": "tool_result", "tool_use_id": "call_a", "content": [{"type": "text", "text": "sunny"}]},
        {"type": "tool_result", "tool_use_id": "call_b", "content": "no clock", "is_error": True},
    ]
    turns = [*ASKED["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    second = await client.messages.create(**ASKED | {"messages": turns}, tools=[TOOL])
    assert second.content[0].text == "Sunny."
    assert (await gateway.received(1)).json["tool_choice"] == "required"
    said = (await gateway.received(2)).json["messages"]
    assert [(one["role"], one["content"]) for one in said] == [
        ("user", "Hello"), ("assistant", "I look."), ("tool", "sunny"), ("tool", "Error: no clock"),
    ]  # fmt: skip
    assert said[1]["reasoning_content"] == "Hm."
    assert [json.loads(call["function"]["arguments"]) for call in said[1]["tool_calls"]] == [{"city": "Paris"}, {}]


async def test_a_stop_sequence_is_named(launch, connect):
    """Where the engine names it."""
    gateway = await launch()
    body = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop", "stop_reason": "END"}]}
    gateway.script(Reply([json.dumps(body | {"usage": USAGE}).encode()]))
    got = await connect(gateway).messages.create(**ASKED, stop_sequences=["END"])
    assert (got.stop_reason, got.stop_sequence) == ("stop_sequence", "END")
    assert (await gateway.received()).json["stop"] == ["END"]


@both_ways
@pytest.mark.parametrize("stream", [True, False])
async def test_errors_are_the_clients_own_classes(launch, connect, stream, way):
    """Each status is the exception that applications catch, with Anthropic's type and our code in it."""
    gateway = await launch(retries={"max_attempts": 1}, gateway={"max_body_mb": 0.01})
    await gateway.limit(gateway.project, '{"models": ["small-a", "gone"], "rpm": 4}')
    client = connect(gateway)

    async def fails(kind, name, code=None, *, using=client, **fields):
        with pytest.raises(kind) as raised:
            await using.messages.create(**ASKED | fields, stream=stream)
        error = raised.value.body["error"]
        assert (raised.value.type, error.get("code")) == (name, code)
        return raised.value

    await fails(
        anthropic.AuthenticationError, "authentication_error", "invalid_api_key", using=connect(gateway, "wl-x")
    )
    await fails(anthropic.NotFoundError, "not_found_error", "model_not_found", model="gone")
    await fails(anthropic.RequestTooLargeError, "request_too_large", "body_too_large", system="x" * 20_000)
    wrong = {"messages": [{"role": "user", "content": [{"type": "video"}]}]}
    found = await fails(anthropic.BadRequestError, "invalid_request_error", **wrong)
    assert "messages[0].content[0].type" in found.message
    narrow = await gateway.new_key(await gateway.new_project('{"models": []}'))
    named = "permission_error", "model_not_allowed"
    await fails(anthropic.PermissionDeniedError, *named, using=connect(gateway, narrow))
    gateway.script(status(500), status(503), status(400), answer("ok"))
    await fails(anthropic.InternalServerError, "api_error", "replica_error")
    busy = await fails(anthropic.InternalServerError, "overloaded_error", "replica_busy")
    assert int(busy.response.headers["retry-after"]) >= 1
    gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0
    assert (await fails(anthropic.BadRequestError, "invalid_request_error")).request_id.startswith("req_")
    await client.messages.create(**ASKED)
    limited = await fails(anthropic.RateLimitError, "rate_limit_error", "rpm")
    assert int(limited.response.headers["retry-after"]) >= 1


@both_ways
async def test_a_failure_in_the_stream_is_raised_while_it_is_read(launch, connect, way):
    """The client does not take a cut stream for a whole one."""
    gateway = await launch()
    token = sse('{"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]}')
    gate = asyncio.Event()
    gateway.script(Reply([token, gate, Cut.RESET], headers=[("content-type", "text/event-stream")]))
    seen = []
    with pytest.raises(anthropic.APIError) as raised:
        async with connect(gateway).messages.stream(**ASKED) as stream:
            async for text in stream.text_stream:
                seen.append(text)
                gate.set()
    assert seen == ["Hel"]
    assert raised.value.body["error"]["type"] == "api_error"


async def test_pings_of_a_waiting_stream_do_not_disturb_the_client(launch, connect, quick_commit):
    """Also before the message has begun."""
    gateway = await launch(timeouts={"keepalive_s": 0.02})
    gate = asyncio.Event()
    gateway.script(answer("late", gates={1: gate}))
    async with connect(gateway).messages.stream(**ASKED) as stream:
        gate.set()
        assert (await stream.get_final_message()).content[0].text == "late"


async def test_closing_the_stream_early_aborts_the_engine(launch, connect):
    """What an application does that has seen enough."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    async with connect(gateway).messages.stream(**ASKED) as stream:
        async for text in stream.text_stream:
            if text == "a":
                break
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"
