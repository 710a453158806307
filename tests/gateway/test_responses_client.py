"""The official OpenAI client's `responses` against the gateway, sync and async: what an application sees."""

import asyncio
import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from policies.store import StoreError
from tests.gateway.kit import MODEL, chat, respond
from tests.gateway.test_anthropic_client import calling
from tests.gateway.test_openai_client import connect  # noqa: F401  # a fixture
from tests.scripted_engine import Reply, answer, dropped, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
WORDS = "a text that is long enough to have a border of its own " * 60


def output_of(response):
    """What it said, without ids, which differ from request to request."""
    dumped = response.model_dump(exclude={"id", "created_at"})["output"]
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in dumped]


async def upstream(gateway, number):
    """The body of the how-manieth upstream request, from 1."""
    return (await gateway.received(number)).json


@both_ways
async def test_a_whole_response(launch, connect):  # noqa: F811
    """Text, status, usage, and what was asked said again."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", cached=3))
    asked = {"instructions": "Be brief.", "max_output_tokens": 9, "metadata": {"a": "b"}, "temperature": 0.5}
    got = await connect(gateway).responses.create(model=MODEL, input="Hello", **asked)
    assert (got.output_text, got.status, got.error) == ("Hello", "completed", None)
    assert (got.usage.input_tokens, got.usage.input_tokens_details.cached_tokens, got.usage.output_tokens) == (10, 3, 2)
    assert (got.instructions, got.max_output_tokens, got.metadata, got.temperature) == tuple(asked.values())
    sent = await upstream(gateway, 1)
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (sent["max_completion_tokens"], sent["temperature"]) == (9, 0.5)
    (record,) = await gateway.until_recorded(1)
    assert (record.surface, "resp_" + record.request_id.removeprefix("req_")) == ("/v1/responses", got.id)


@both_ways
@pytest.mark.parametrize("engine", [lambda: answer("Hel", "lo"), lambda: calling])
async def test_a_stream_tells_what_a_whole_answer_would(launch, connect, way, engine):  # noqa: F811
    """Numbered events of the client's own types, whose last holds the same response."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(engine(), engine())
    whole = await client.responses.create(model=MODEL, input="Hello", tools=[TOOL])
    async with client.responses.stream(model=MODEL, input="Hello", tools=[TOOL]) as stream:
        assert (await stream.get_final_response()).output_text == whole.output_text
    gateway.script(engine())
    stream = await client.responses.create(model=MODEL, input="Hello", tools=[TOOL], stream=True)
    events = [event async for event in stream]
    final = events[-1].response
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert output_of(final) == output_of(whole)
    assert final.usage == whole.usage


async def test_a_tool_loop(launch, connect):  # noqa: F811
    """Calls come out, their results go in, and the engine sees one conversation of a chat."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(calling, answer("Rain."))
    first = await client.responses.create(model=MODEL, input="Weather?", tools=[TOOL], tool_choice="auto")
    calls = [item for item in first.output if item.type == "function_call"]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("weather", {"city": "Paris"}), ("time", {})]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "wet"} for call in calls]
    second = await client.responses.create(model=MODEL, previous_response_id=first.id, input=results, tools=[TOOL])
    assert second.output_text == "Rain."
    messages = (await upstream(gateway, 2))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["weather", "time"]


async def test_a_schema_is_parsed(launch, connect):  # noqa: F811
    """`text.format` becomes the chat's response format."""

    class City(BaseModel):
        name: str

    gateway = await launch()
    gateway.script(answer('{"name": ', '"Paris"}'))
    got = await connect(gateway).responses.parse(model=MODEL, input="Where?", text_format=City)
    assert got.output_parsed == City(name="Paris")
    wanted = (await upstream(gateway, 1))["response_format"]
    assert wanted["json_schema"]["schema"]["properties"]["name"]["type"] == "string"


@both_ways
async def test_a_conversation_goes_on_by_an_id(launch, connect, way):  # noqa: F811
    """Each turn by the id of the one before; the engine gets all of it, word for word as from a chat."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(answer("One."), answer("Two."), answer("Three."))
    first = await client.responses.create(model=MODEL, input="1?")
    second = await client.responses.create(model=MODEL, input="2?", previous_response_id=first.id)
    async with client.responses.stream(model=MODEL, input="3?", previous_response_id=second.id) as stream:
        third = await stream.get_final_response()
    assert (third.output_text, third.previous_response_id) == ("Three.", second.id)
    said = [(one["role"], one["content"]) for one in (await upstream(gateway, 3))["messages"]]
    assert said == [("user", "1?"), ("assistant", "One."), ("user", "2?"), ("assistant", "Two."), ("user", "3?")]


async def test_turns_share_the_prefix_of_a_chats(launch, connect):  # noqa: F811
    """A turn finds what the same conversation as a chat would find."""
    gateway = await launch(engines=3)
    client = connect(gateway)
    gateway.script(answer("One.", cached=None), answer("Two.", cached=None))
    first = await client.responses.create(model=MODEL, input=WORDS)
    await client.responses.create(model=MODEL, input="2?", previous_response_id=first.id)
    assert gateway.engines.requests[0][0] == gateway.engines.requests[1][0]
    gateway.script(answer("Two."))
    messages = [*chat(WORDS)["messages"], {"role": "assistant", "content": "One."}, {"role": "user", "content": "2?"}]
    assert (await gateway.post({"model": MODEL, "messages": messages})).status == 200
    first_decision, _, as_chat = [decision for _, decision in gateway.parts.recorder._remembered.values()]
    assert as_chat.chosen == first_decision.chosen
    assert as_chat.shadow_tokens > 0.9 * as_chat.prompt_tokens


@both_ways
async def test_what_was_told_can_be_read_and_deleted(launch, connect, way):  # noqa: F811
    """With its input, which has ids then; once deleted it is not there for anybody."""
    gateway = await launch()
    client = connect(gateway)
    got = await client.responses.create(model=MODEL, input=[{"role": "user", "content": "Hello"}])
    assert await client.responses.retrieve(got.id) == got
    items = [item async for item in client.responses.input_items.list(got.id, order="asc")]
    assert [(item.role, item.content[0].text) for item in items] == [("user", "Hello")]
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(got.id)
    await client.responses.delete(got.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await call(got.id)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model=MODEL, input="?", previous_response_id=got.id)
    assert caught.value.param == "previous_response_id"


async def test_tokens_of_a_response_are_counted_before_it(launch, connect):  # noqa: F811
    """With all that went before it and its tools, as the chat that it would be; by the engine, for nothing."""
    gateway = await launch(kind="vllm")
    client = connect(gateway)
    gateway.script(answer("One."), Reply([b'{"tokens": [1, 2, 3], "count": 3}']))
    first = await client.responses.create(model=MODEL, input="1?")
    asked = {"model": MODEL, "instructions": "Be brief.", "input": "2?", "tools": [TOOL]}
    got = await client.responses.input_tokens.count(**asked, previous_response_id=first.id)
    assert (got.input_tokens, got.object) == (3, "response.input_tokens")
    sent = await gateway.received(2)
    assert (sent.path, len(sent.json["tools"])) == ("/tokenize", 1)
    assert [one["content"] for one in sent.json["messages"]] == ["Be brief.", "1?", "One.", "2?"]
    _, record = await gateway.until_recorded(2)
    assert (record.surface, record.charged_tokens) == ("/v1/responses/input_tokens", 0)
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_tokens.count(**asked, previous_response_id="resp_00")


async def test_another_project_finds_nothing(launch, connect):  # noqa: F811
    """An id tells nobody anything."""
    gateway = await launch()
    got = await connect(gateway).responses.create(model=MODEL, input="secret")
    other = connect(gateway, await gateway.new_key(await gateway.new_project()))
    for call in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await call(got.id)
    with pytest.raises(openai.NotFoundError):
        await other.responses.create(model=MODEL, input="?", previous_response_id=got.id)
    assert (await connect(gateway).responses.retrieve(got.id)).id == got.id


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_input_end_whatever_ids_a_client_gave(launch, connect, order):  # noqa: F811
    """Each item once, in its order, though all came with one id; and what a page begins behind must be there."""
    gateway = await launch()
    client = connect(gateway)
    items = [{"role": "user", "content": str(number), "id": "msg_same"} for number in range(7)]
    first = await client.responses.create(model=MODEL, input=items)
    got = await client.responses.create(model=MODEL, input="7", previous_response_id=first.id)
    pages = client.responses.input_items.list(got.id, order=order, limit=3)
    told = [item.content[0].text async for item in pages]
    assert (told if order == "asc" else told[::-1]) == [*"0123456", "Hello world", "7"]
    with pytest.raises(openai.BadRequestError, match="after"):
        await client.responses.input_items.list(got.id, after="msg_other")
    for limit in (0, 101):
        with pytest.raises(openai.BadRequestError, match="limit"):
            await client.responses.input_items.list(got.id, limit=limit)


async def test_an_item_is_referred_to_by_its_id(launch, connect):  # noqa: F811
    """Of the output or the input of an earlier response; another project's is not there."""
    gateway = await launch()
    client = connect(gateway)
    first = await client.responses.create(model=MODEL, input="1?")
    (asked,) = (await client.responses.input_items.list(first.id)).data
    references = [{"type": "item_reference", "id": one} for one in (asked.id, first.output[0].id)]
    await client.responses.create(model=MODEL, input=[*references, {"role": "user", "content": "2?"}])
    said = [(one["role"], one["content"]) for one in (await upstream(gateway, 2))["messages"]]
    assert said == [("user", "1?"), ("assistant", "Hello world"), ("user", "2?")]
    other = connect(gateway, await gateway.new_key(await gateway.new_project()))
    with pytest.raises(openai.BadRequestError, match="there is no item"):
        await other.responses.create(model=MODEL, input=references)


async def test_a_few_bytes_cannot_stand_for_gigabytes(launch):
    """However often one large item is referred to."""
    gateway = await launch()
    first = (await gateway.post(respond("x" * (1 << 20)), path="/v1/responses")).json
    (asked,) = (await gateway.get(f"/v1/responses/{first['id']}/input_items")).json["data"]
    many = [{"type": "item_reference", "id": asked["id"]}] * 5000
    got = await gateway.post(respond(many), path="/v1/responses")
    assert (got.status, got.error["param"]) == (400, "input")


@both_ways
async def test_probabilities_of_a_text_are_passed_on(launch, connect, way):  # noqa: F811
    """As the engine wrote them, in the deltas and at the end; to nobody who did not ask."""
    token = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}
    choice = {"index": 0, "logprobs": {"content": [token]}, "finish_reason": "stop"}

    def engine(request):
        said = {"role": "assistant", "content": "Hi"}
        if request.json.get("stream"):
            return Reply([sse(json.dumps({"choices": [choice | {"delta": said}]})), sse("[DONE]")])
        return status(200, {"choices": [choice | {"message": said}]})

    gateway = await launch()
    client = connect(gateway)
    gateway.script(*[engine] * 3)
    wanted = {"model": MODEL, "input": "?", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = await client.responses.create(**wanted)
    events = [event async for event in await client.responses.create(**wanted, stream=True)]
    (delta,) = [event for event in events if event.type == "response.output_text.delta"]
    for found in (whole.output[0].content[0], events[-1].response.output[0].content[0], delta):
        assert [(one.token, one.logprob) for one in found.logprobs] == [("Hi", -0.5)]
    assert (await upstream(gateway, 1))["top_logprobs"] == 2
    assert (await client.responses.create(model=MODEL, input="?")).output[0].content[0].logprobs == []


async def test_many_go_on_from_one_response_at_once(launch, connect):  # noqa: F811
    """Each a conversation of its own, with ids of its own, while the first is deleted under them."""
    gateway = await launch()
    client = connect(gateway)
    first = await client.responses.create(model=MODEL, input="1?")
    going = [
        client.responses.create(model=MODEL, input=str(number), previous_response_id=first.id) for number in range(8)
    ]
    told = await asyncio.gather(*going)
    await client.responses.delete(first.id)
    assert len({one.id for one in told}) == 8
    third = await client.responses.create(model=MODEL, input="3?", previous_response_id=told[3].id)
    items = (await client.responses.input_items.list(third.id, order="asc")).data
    assert [item.content[0].text for item in items] == ["1?", "Hello world", "3", "Hello world", "3?"]


async def test_what_shall_not_be_kept_is_not(launch, connect):  # noqa: F811
    """`store: false`, and where the operator keeps nothing."""
    gateway = await launch()
    got = await connect(gateway).responses.create(model=MODEL, input="Hello", store=False)
    nowhere = await launch(responses={"keep_hours": 0})
    other = await connect(nowhere).responses.create(model=MODEL, input="Hello")
    for one, response in ((gateway, got), (nowhere, other)):
        assert response.store is False
        with pytest.raises(openai.NotFoundError):
            await connect(one).responses.retrieve(response.id)


async def test_what_is_kept_outlives_the_process(launch, connect):  # noqa: F811
    """It is in the store."""
    gateway = await launch()
    got = await connect(gateway).responses.create(model=MODEL, input="Hello")
    await gateway.until(lambda: not gateway.parts.conversations.num_pending)
    assert await gateway.store.kept_response(gateway.project, got.id) is not None
    assert await gateway.store.kept_response("proj_other", got.id) is None


async def test_a_store_that_fails_costs_nobody_an_answer(launch, connect, monkeypatch):  # noqa: F811
    """The response is told all the same; going on from it is refused as long as it cannot be read."""
    gateway = await launch()

    async def fails(*_):
        raise StoreError("away")

    monkeypatch.setattr(gateway.parts.conversations, "_pauses_s", ())
    monkeypatch.setattr(gateway.store, "keep_responses", fails)
    got = await connect(gateway).responses.create(model=MODEL, input="Hello")
    await gateway.until(lambda: gateway.parts.conversations.num_lost == 1)
    with pytest.raises(openai.NotFoundError):
        await connect(gateway).responses.retrieve(got.id)
    monkeypatch.setattr(gateway.store, "kept_response", fails)
    with pytest.raises(openai.InternalServerError):
        await connect(gateway).responses.create(model=MODEL, input="?", previous_response_id=got.id)


@both_ways
async def test_an_answer_that_was_cut_is_incomplete(launch, connect, way):  # noqa: F811
    """By its bound: told so, whole and streamed."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(answer("Hel", finish_reason="length"), answer("Hel", finish_reason="length"))
    whole = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=1)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    stream = await client.responses.create(model=MODEL, input="Hello", max_output_tokens=1, stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "Hel"


async def test_a_stream_that_breaks_ends_with_a_failed_response(launch, connect):  # noqa: F811
    """After the first content; what was said so far is in it, and nobody can go on from it."""
    gateway = await launch()
    client = connect(gateway)
    gateway.script(answer("Hel", "lo", cut_before=2))
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.output_text == "Hel"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(events[-1].response.id)


async def test_before_content_another_engine_is_tried(launch, connect):  # noqa: F811
    """As for a chat."""
    gateway = await launch(engines=2)
    gateway.script(dropped(), answer("Hello"))
    async with connect(gateway).responses.stream(model=MODEL, input="Hello") as stream:
        assert (await stream.get_final_response()).output_text == "Hello"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "image_generation_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x", "status": 5}]}, "input[0].status"),
        ({"input": []}, "input"),
        ({"metadata": {"a": "b" * 600}}, "metadata"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_what_cannot_be_done_is_refused_by_its_name(launch, asked, param):
    """400, and no engine is asked."""
    gateway = await launch()
    got = await gateway.post({"model": MODEL, "input": "Hello"} | asked, path="/v1/responses")
    assert (got.status, got.json["error"]["param"]) == (400, param)
    assert not gateway.engines.requests


async def test_limits_and_keys_hold_here_too(launch, connect):  # noqa: F811
    """A bad key, a surface that is not allowed, a rate."""
    gateway = await launch()
    with pytest.raises(openai.AuthenticationError):
        await connect(gateway, "wl-wrong").responses.create(model=MODEL, input="Hello")
    await gateway.limit(gateway.project, '{"surfaces": ["/v1/chat/completions"]}')
    with pytest.raises(openai.PermissionDeniedError):
        await connect(gateway).responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.PermissionDeniedError):
        await connect(gateway).responses.retrieve("resp_00")
    await gateway.limit(gateway.project, '{"rpm": 1}')
    await connect(gateway).responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.RateLimitError):
        await connect(gateway).responses.create(model=MODEL, input="Hello")


async def test_an_engines_refusal_is_told_as_one(launch, connect):  # noqa: F811
    """400 with its words."""
    gateway = await launch()
    gateway.script(status(400))
    with pytest.raises(openai.BadRequestError, match="scripted 400"):
        await connect(gateway).responses.create(model=MODEL, input="Hello")


async def test_a_client_that_leaves_keeps_nothing(launch):
    """Nothing is held, and there is no response to go on from."""
    gateway = await launch()
    gate = asyncio.Event()
    gateway.script(answer("Hel", "lo", gates={2: gate}))
    client = await gateway.start(respond(stream=True), path="/v1/responses")
    request = await gateway.received()
    client.close()
    await request.until_aborted()
    await gateway.until_quiet()
    (record,) = await gateway.until_recorded(1)
    response = "resp_" + record.request_id.removeprefix("req_")
    assert (await gateway.get(f"/v1/responses/{response}")).status == 404


async def test_the_synchronous_client(launch):
    """The same, from a thread."""
    gateway = await launch()
    gateway.script(answer("One."), answer("Two."))

    def work():
        with httpx.Client(verify=False, trust_env=False, timeout=10) as transport:
            client = openai.OpenAI(base_url=gateway.url, api_key=gateway.key, http_client=transport, max_retries=0)
            first = client.responses.create(model=MODEL, input="1?")
            with client.responses.stream(model=MODEL, input="2?", previous_response_id=first.id) as stream:
                return stream.get_final_response().output_text, client.responses.retrieve(first.id).output_text

    assert await asyncio.to_thread(work) == ("Two.", "One.")
