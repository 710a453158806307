"""Each documented call of Anthropic's client on our surfaces, raw and helped; answers against the client's own strict types."""

import asyncio
import base64
import contextlib

import anthropic
import anyio
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.gateway.kit import MODEL, message
from tests.gateway.test_anthropic_client import ASKED, TOOL, calling, connect, in_a_thread  # noqa: F401  # a fixture
from tests.scripted_engine import Reply, answer, status

PICTURE = {
    "type": "base64",
    "media_type": "image/png",
    "data": base64.b64encode(b"\x89PNG\r\n\x1a\n").decode(),
}
MESSAGES = "/v1/messages"


class City(BaseModel):
    """What answers are parsed into."""

    name: str


engines = pytest.mark.parametrize(
    "engine", [lambda: answer("Hel", "lo"), lambda: answer("Hel", finish_reason="length"), lambda: calling]
)


@engines
async def test_answers_are_what_the_clients_types_say(launch, engine):
    """Read strictly, which the client itself does not: no member may be missing or of another kind."""
    gateway = await launch()
    gateway.script(engine(), engine())
    whole = await gateway.post(message(tools=[TOOL]), path=MESSAGES)
    Message.model_validate_json(whole.body, strict=True)
    told = await gateway.post(message(tools=[TOOL], stream=True), path=MESSAGES)
    event = TypeAdapter(RawMessageStreamEvent)
    found = [event.validate_json(payload, strict=True) for payload in told.payloads]
    assert (found[0].type, found[-1].type) == ("message_start", "message_stop")


# Every argument of `messages.create` that means something to an engine, or to nobody but its caller.
ARGUMENTS = {
    "max_tokens": 64, "extra_body": {"temperature": 0.5}, "stop_sequences": ["END"],
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}, "service_tier": "auto",
    "tools": [TOOL | {"cache_control": {"type": "ephemeral"}}], "tool_choice": {"type": "tool", "name": "weather"},
    "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"}, "inference_geo": "eu",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server", "openai"])
async def test_every_argument_of_a_message_is_taken(launch, connect, kind):  # noqa: F811
    """Whatever engine is behind, with a picture."""
    gateway = await launch(kind=kind)
    content = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": PICTURE}]
    got = await connect(gateway).messages.create(
        model=MODEL, messages=[{"role": "user", "content": content}], **ARGUMENTS
    )
    assert got.content[0].text == "Hello world"
    sent = (await gateway.received()).json
    assert (sent["temperature"], sent["stop"]) == (0.5, ["END"])
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert sent["messages"][-1]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PICTURE['data']}"


async def test_raw_answers(launch, connect):  # noqa: F811
    """Headers beside an answer, and an answer that is read while it comes."""
    gateway = await launch()
    client = connect(gateway)
    raw = await client.messages.with_raw_response.create(**ASKED)
    assert raw.headers["x-request-id"] == raw.headers["request-id"]
    assert (await raw.parse()).content[0].text == "Hello world"
    async with client.messages.with_streaming_response.create(**ASKED, stream=True) as response:
        lines = [line async for line in response.iter_lines()]
    assert lines[0] == "event: message_start"


async def test_structured_output_is_parsed(launch, connect):  # noqa: F811
    """Whole and streamed, sync and async."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(*[answer('{"name": ', '"Paris"}')] * 3)
    got = await client.messages.parse(**ASKED, output_format=City)
    assert got.parsed_output == City(name="Paris")
    wanted = (await gateway.received()).json["response_format"]["json_schema"]["schema"]
    assert wanted["properties"]["name"]["type"] == "string"
    async with client.messages.stream(**ASKED, output_format=City) as stream:
        assert (await stream.get_final_message()).parsed_output == City(name="Paris")

    def work(sync):
        return sync.messages.parse(**ASKED, output_format=City).parsed_output

    assert await in_a_thread(gateway, work) == City(name="Paris")


async def test_arguments_of_a_call_while_they_come(launch, connect):  # noqa: F811
    """The helper's events, whose snapshots grow to the whole object."""
    gateway = await launch()
    gateway.script(calling)
    async with connect(gateway).messages.stream(**ASKED, tools=[TOOL]) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "input_json"]
    assert {"city": "Paris"} in snapshots


async def test_the_tool_runner_runs_tools(launch, connect):  # noqa: F811
    """The client's own loop, which asks by the beta's address."""
    gateway = await launch()
    asked = []

    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Of a city."""
        asked.append(city)
        return "sunny"

    @anthropic.beta_async_tool
    async def time() -> str:
        """Now."""
        return "noon"

    gateway.script(calling, answer("Sunny."))
    runner = connect(gateway).beta.messages.tool_runner(**ASKED, tools=[weather, time])
    final = await runner.until_done()
    assert (final.content[0].text, asked) == ("Sunny.", ["Paris"])
    said = (await gateway.received(2)).json["messages"]
    assert [(one["role"], one["content"]) for one in said[2:]] == [("tool", "sunny"), ("tool", "noon")]


async def test_tokens_of_tools_and_pictures_are_counted(launch, connect):  # noqa: F811
    """By the plain call and the beta's."""
    gateway = await launch(kind="vllm")
    gateway.script(*[Reply([b'{"tokens": [1, 2, 3], "count": 3}'])] * 2)
    client = connect(gateway)
    body = {"model": MODEL, "messages": ASKED["messages"], "system": "s", "tools": [TOOL]}
    assert (await client.messages.count_tokens(**body)).input_tokens == 3
    assert (await client.beta.messages.count_tokens(**body)).input_tokens == 3


async def test_the_client_waits_as_long_as_it_is_told(launch, connect, monkeypatch):  # noqa: F811
    """Its retry sleeps for our `retry-after`, and not by its own guess."""
    gateway = await launch(retries={"max_attempts": 1})
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0

    monkeypatch.setattr(anyio, "sleep", sleep)
    gateway.script(status(429, headers={"retry-after": "3"}), answer("second"))
    got = await connect(gateway, max_retries=1).messages.create(**ASKED)
    assert (got.content[0].text, waits) == ("second", [3.0])


async def test_timeouts_and_cancelled_calls_abort_the_engine(launch, connect):  # noqa: F811
    """The client's own class for the first; nothing runs on."""
    gateway = await launch()
    gateway.script(*[answer("x", hold_head=asyncio.Event())] * 2)
    with pytest.raises(anthropic.APITimeoutError):
        await connect(gateway).messages.create(**ASKED, timeout=0.05)
    await (await gateway.received()).until_aborted()
    task = asyncio.ensure_future(connect(gateway).messages.create(**ASKED))
    request = await gateway.received(2)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await request.until_aborted()


async def test_models_are_listed_and_found(launch, connect):  # noqa: F811
    """With what the client's type says of a model."""
    gateway = await launch()
    client = connect(gateway)
    [model] = [one async for one in client.models.list()]
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert model.created_at.year >= 2026
    assert (await client.models.retrieve(MODEL)).display_name == MODEL
    with pytest.raises(anthropic.NotFoundError) as raised:
        await client.models.retrieve("gone")
    assert raised.value.type == "not_found_error"
