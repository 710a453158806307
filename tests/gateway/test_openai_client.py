"""The official client against the gateway: what an application sees without reading our documentation."""

import asyncio

import httpx
import openai
import pytest

from tests.gateway.kit import MODEL
from tests.scripted_engine import Cut, Reply, answer, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def connect():
    """Makes clients: `connect(gateway, key=…)`; closed at the end."""
    clients = []

    def client(gateway, key=None, **options):
        transport = httpx.AsyncClient(verify=False, trust_env=False, timeout=10)
        clients.append(transport)
        settings = {"base_url": gateway.url, "api_key": key or gateway.key, "max_retries": 0, "http_client": transport}
        return openai.AsyncOpenAI(**settings | options)

    yield client
    for transport in clients:
        await transport.aclose()


@both_ways
async def test_a_whole_answer(launch, connect):
    """Text, finish reason and usage."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", cached=3))
    got = await connect(gateway).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert (got.choices[0].message.content, got.choices[0].finish_reason) == ("Hello", "stop")
    assert (got.usage.completion_tokens, got.usage.prompt_tokens_details.cached_tokens) == (2, 3)


@both_ways
async def test_a_stream(launch, connect):
    """Chunk by chunk, and the usage last where it was asked for."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    stream = await connect(gateway).chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello"
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 12)


@both_ways
async def test_completions_whole_and_streamed(launch, connect):
    """The older surface."""
    gateway = await launch()
    client = connect(gateway)
    assert (await client.completions.create(model=MODEL, prompt="Hello")).choices[0].text == "Hello world"
    stream = await client.completions.create(model=MODEL, prompt=["Hello"], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == "Hello world"


@both_ways
async def test_models(launch, connect):
    """List and retrieve."""
    gateway = await launch()
    client = connect(gateway)
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "warmlane"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


@both_ways
@pytest.mark.parametrize("stream", [True, False])
async def test_errors_are_the_clients_own_classes(launch, connect, stream):
    """Each status is the exception that applications catch, with our code in it."""
    gateway = await launch(retries={"max_attempts": 1})
    await gateway.limit(gateway.project, '{"models": ["small-a", "gone"], "rpm": 4}')
    client = connect(gateway)

    async def fails(kind, code, *, using=client, **fields):
        with pytest.raises(kind) as raised:
            await using.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "stream": stream} | fields)
        assert raised.value.code == code
        return raised.value

    await fails(openai.AuthenticationError, "invalid_api_key", using=connect(gateway, "wl-unknown"))
    assert (await fails(openai.NotFoundError, "model_not_found", model="gone")).param == "model"
    assert (await fails(openai.BadRequestError, None, temperature=-1)).param == "temperature"
    narrow = await gateway.new_key(await gateway.new_project('{"models": []}'))
    await fails(openai.PermissionDeniedError, "model_not_allowed", using=connect(gateway, narrow))
    gateway.script(status(500), status(503), status(400), answer("ok"))
    await fails(openai.InternalServerError, "replica_error")
    busy = await fails(openai.InternalServerError, "replica_busy")
    assert int(busy.response.headers["retry-after"]) >= 1
    gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0
    await fails(openai.BadRequestError, None)
    await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    limited = await fails(openai.RateLimitError, "rpm")
    assert limited.response.headers["x-ratelimit-remaining-requests"] == "0"


async def test_the_clients_own_retries_get_through(launch, connect):
    """It retries 502 by itself, and waits as long as we say."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(status(500), answer("second"))
    client = connect(gateway, max_retries=1)
    got = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert got.choices[0].message.content == "second"


@both_ways
async def test_a_failure_in_the_stream_is_raised_while_it_is_read(launch, connect):
    """The client does not take a cut stream for a whole one."""
    gateway = await launch()
    token = sse('{"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]}')
    gate = asyncio.Event()
    gateway.script(Reply([token, gate, Cut.RESET], headers=[("content-type", "text/event-stream")]))
    stream = await connect(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    seen = []
    with pytest.raises(openai.APIError) as raised:
        async for chunk in stream:
            seen.append(chunk.choices[0].delta.content)
            gate.set()
    assert seen == ["Hel"]
    assert raised.value.code == "502"


@both_ways
async def test_closing_the_stream_early_aborts_the_engine(launch, connect):
    """What an application does that has seen enough."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    stream = await connect(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == "a":
            break
    await stream.close()
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"


async def test_comments_of_a_waiting_stream_do_not_disturb_the_client(launch, connect, monkeypatch):
    """Heartbeats and queue positions are invisible to it."""
    monkeypatch.setattr("gateway.answer.COMMIT_AFTER_S", 0.02)
    gateway = await launch(timeouts={"keepalive_s": 0.02})
    gate = asyncio.Event()
    gateway.script(answer("late", gates={1: gate}))
    stream = await connect(gateway).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    gate.set()
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == "late"


async def test_tools_and_structured_output_pass_through_as_they_were_written(launch, connect):
    """What the gateway does not act on reaches the engine with the client's own bytes."""
    gateway = await launch()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    await connect(gateway).chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=tools,
        response_format=schema,
        logprobs=True,
        extra_body={"guided_regex": "a+"},
    )
    sent = (await gateway.received()).json
    assert (sent["tools"], sent["response_format"], sent["guided_regex"]) == (tools, schema, "a+")
