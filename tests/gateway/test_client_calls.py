"""Each documented call of OpenAI's client on our surfaces, plain and raw, sync and async; what ends them early; what it waits for."""

import asyncio
import base64
import contextlib

import anyio
import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.gateway.inputs_kit import served, vector_of
from tests.gateway.kit import MODEL
from tests.gateway.test_anthropic_client import calling
from tests.gateway.test_openai_client import connect  # noqa: F401  # a fixture
from tests.scripted_engine import answer, status

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": MODEL, "messages": HELLO}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "strict": True, "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]
PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


class City(BaseModel):
    """What answers are parsed into."""

    name: str


def in_a_thread(gateway, work, **options):
    """What the synchronous client does, while the gateway serves it in this loop."""

    def run():
        with httpx.Client(verify=False, trust_env=False, timeout=10) as transport:
            settings = {"base_url": gateway.url, "api_key": gateway.key, "max_retries": 0, "http_client": transport}
            return work(openai.OpenAI(**settings | options))

    return asyncio.to_thread(run)


# Every argument of `chat.completions.create` that means something to an engine, or to nobody but its caller.
ARGUMENTS = {
    "frequency_penalty": 0.5, "presence_penalty": 0.25, "logit_bias": {"50": -100}, "logprobs": True, "top_logprobs": 2,
    "max_completion_tokens": 5, "n": 2, "seed": 7, "stop": ["a", "b"], "temperature": 0.5, "top_p": 0.9,
    "parallel_tool_calls": False, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "time"}},
    "response_format": {"type": "json_object"}, "reasoning_effort": "low", "verbosity": "low",
    "prompt_cache_key": "k", "user": "u", "safety_identifier": "s", "metadata": {"a": "b"}, "service_tier": "auto",
    "store": False, "modalities": ["text"], "prediction": {"type": "content", "content": "Hel"},
    "prompt_cache_retention": "24h",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server", "openai"])
async def test_every_argument_of_a_chat_is_taken(launch, connect, kind):  # noqa: F811
    """Whatever engine is behind; what decides the answer reaches it as it was said."""
    gateway = await launch(kind=kind)
    content = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": content, "name": "n"}]
    got = await connect(gateway).chat.completions.create(model=MODEL, messages=messages, **ARGUMENTS)
    assert got.choices[0].message.content == "Hello world"
    sent = (await gateway.received()).json
    deciding = (
        "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "n", "seed", "stop",
        "temperature", "top_p", "parallel_tool_calls", "tools", "tool_choice", "response_format",
    )  # fmt: skip
    assert {name: sent[name] for name in deciding} == {name: ARGUMENTS[name] for name in deciding}
    assert sent["messages"][-1] == messages[-1]


async def test_the_synchronous_client_makes_every_call(launch):
    """Whole, streamed, helped, raw; of all surfaces."""
    gateway = await launch()

    def work(client):
        whole = client.chat.completions.create(**CHAT)
        assert whole.choices[0].message.content == "Hello world"
        chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].usage.total_tokens == 12
        with client.chat.completions.stream(**CHAT) as stream:
            assert [event.delta for event in stream if event.type == "content.delta"] == ["", "Hello", " world"]
            assert stream.get_final_completion().choices[0].message.content == "Hello world"
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        assert raw.parse().choices[0].message.content == "Hello world"
        assert raw.headers["x-request-id"].startswith("req_")
        with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as response:
            assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]
        assert client.completions.create(model=MODEL, prompt="x").choices[0].text == "Hello world"
        pieces = client.completions.create(model=MODEL, prompt="x", stream=True)
        assert "".join(chunk.choices[0].text for chunk in pieces) == "Hello world"
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        response = client.responses.create(model=MODEL, input="x")
        assert client.responses.retrieve(response.id).output_text == "Hello world"
        assert [event.type for event in client.responses.create(model=MODEL, input="x", stream=True)][
            -1
        ] == "response.completed"
        assert client.responses.with_raw_response.create(model=MODEL, input="x").parse().output_text == "Hello world"
        assert [item.role for item in client.responses.input_items.list(response.id)] == ["user"]
        with pytest.raises(openai.BadRequestError):
            client.responses.cancel(response.id)
        client.responses.delete(response.id)
        return whole._request_id

    assert (await in_a_thread(gateway, work)).startswith("req_")
    gateway.script(served())

    def embed(client):
        return client.embeddings.create(model=MODEL, input=["Hello"], dimensions=None or openai.NOT_GIVEN, user="u")

    assert (await in_a_thread(gateway, embed)).data[0].embedding == vector_of("Hello")
    assert (await gateway.received(len(gateway.engines.requests))).json["encoding_format"] == "base64"


async def test_the_asynchronous_client_reads_raw_answers(launch, connect):  # noqa: F811
    """Headers with a whole answer, and an answer that is read while it comes."""
    gateway = await launch()
    client = connect(gateway)
    raw = await client.chat.completions.with_raw_response.create(**CHAT)
    assert raw.headers["x-warmlane-lane"] == "interactive"
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    async with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as response:
        lines = [line async for line in response.iter_lines()]
    assert lines[-2:] == ["data: [DONE]", ""]
    async with client.responses.with_streaming_response.create(model=MODEL, input="x") as response:
        assert (await response.parse()).output_text == "Hello world"
    page = await client.models.with_raw_response.list()
    assert [model.id for model in page.parse().data] == [MODEL]
    gateway.script(served())
    raw = await client.embeddings.with_raw_response.create(model=MODEL, input=["Hello"])
    assert raw.parse().data[0].embedding == vector_of("Hello")


async def test_structured_output_is_parsed_whole_and_streamed(launch, connect):  # noqa: F811
    """By `parse` and by the stream's helper, as text and as a call's arguments."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(*[answer('{"name": ', '"Paris"}')] * 3, calling)
    got = await client.chat.completions.parse(**CHAT, response_format=City)
    assert got.choices[0].message.parsed == City(name="Paris")
    async with client.chat.completions.stream(**CHAT, response_format=City) as stream:
        kinds = {event.type async for event in stream}
        assert (await stream.get_final_completion()).choices[0].message.parsed == City(name="Paris")
    assert kinds >= {"chunk", "content.delta", "content.done"}
    async with client.responses.stream(model=MODEL, input="x", text_format=City) as stream:
        assert (await stream.get_final_response()).output_parsed == City(name="Paris")
    async with client.chat.completions.stream(**CHAT, tools=TOOLS[:1]) as stream:
        ended = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in ended] == [("weather", '{"city": "Paris"}'), ("time", "{}")]
    assert ended[0].parsed_arguments == {"city": "Paris"}


async def test_statuses_of_the_body_and_the_clock(launch, connect):  # noqa: F811
    """413 and 504, which the client has no class of its own for."""
    gateway = await launch(gateway={"max_body_mb": 0.01}, timeouts={"first_token_s": 0.05}, retries={"max_attempts": 1})
    client = connect(gateway)
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * 20_000}])
    assert (raised.value.status_code, raised.value.code) == (413, "body_too_large")
    gateway.script(answer("x", hold_head=asyncio.Event()))
    with pytest.raises(openai.InternalServerError) as raised:
        await client.chat.completions.create(**CHAT, stream=True)
    assert (raised.value.status_code, raised.value.code) == (504, "replica_timeout")


@pytest.mark.parametrize(
    "refusal", [lambda: status(429, headers={"retry-after": "3"}), lambda: status(503, headers={"retry-after": "3"})]
)
async def test_the_client_waits_as_long_as_it_is_told(launch, connect, monkeypatch, refusal):  # noqa: F811
    """Its retry sleeps for our `retry-after`, and not by its own guess."""
    gateway = await launch(retries={"max_attempts": 1})
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0

    monkeypatch.setattr(anyio, "sleep", sleep)
    gateway.script(refusal(), answer("second"))
    got = await connect(gateway, max_retries=1).chat.completions.create(**CHAT)
    assert (got.choices[0].message.content, waits) == ("second", [3.0])


async def test_a_limit_tells_the_client_when_to_come_again(launch, connect, monkeypatch):  # noqa: F811
    """The wait that it takes is the one until the minute's room is there."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"rpm": 1}')
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await gateway.limit(gateway.project, "{}")

    monkeypatch.setattr(anyio, "sleep", sleep)
    client = connect(gateway, max_retries=1)
    await client.chat.completions.create(**CHAT)
    await client.chat.completions.create(**CHAT)
    assert len(waits) == 1
    assert 1 <= waits[0] <= 61


@pytest.mark.parametrize("stream", [True, False])
async def test_the_clients_own_timeout_aborts_the_engine(launch, connect, stream):  # noqa: F811
    """It raises its own class, and nothing runs on."""
    gateway = await launch()
    gateway.script(answer("x", hold_head=asyncio.Event()))
    with pytest.raises(openai.APITimeoutError):
        await connect(gateway).chat.completions.create(**CHAT, stream=stream, timeout=0.05)
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"


async def test_a_cancelled_call_aborts_the_engine(launch, connect):  # noqa: F811
    """What a framework does whose own request was given up."""
    gateway = await launch()
    gateway.script(answer("x", hold_head=asyncio.Event()))
    task = asyncio.ensure_future(connect(gateway).chat.completions.create(**CHAT))
    request = await gateway.received()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await request.until_aborted()
