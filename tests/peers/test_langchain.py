"""LangChain's chat models against a gateway: OpenAI's by chat and by responses, and Anthropic's."""

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


QUESTION = "What is the capital city of France? Answer in one sentence."
KINDS = {
    "chat": lambda g, **more: ChatOpenAI(
        base_url=g.url, api_key=g.key, model=g.model, max_retries=0, stream_usage=True, **more
    ),
    "responses": lambda g, **more: ChatOpenAI(
        base_url=g.url, api_key=g.key, model=g.model, max_retries=0, use_responses_api=True, **more
    ),
    "anthropic": lambda g, **more: ChatAnthropic(
        base_url=g.root, api_key=g.key, model=g.model, max_tokens=200, max_retries=0, **more
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_invoke_and_stream(gateway, kind):
    """Text and usage, whole and piece by piece."""
    model = KINDS[kind](gateway)
    whole = model.invoke("Hello")
    assert whole.text == "Hello world"
    assert whole.usage_metadata["input_tokens"] == 10
    pieces = list(model.stream("Hello"))
    assert "".join(piece.text for piece in pieces) == "Hello world"
    assert len(pieces) > 2
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert total.usage_metadata["output_tokens"] == 2


@kinds
def test_a_loop_of_tools(gateway, kind):
    """Bound, called, and answered with their results; streamed as well."""
    model = KINDS[kind](gateway).bind_tools([weather])
    asked = [HumanMessage("weather in Paris?")]
    said = model.invoke(asked)
    [call] = said.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([*asked, said, result]).text == "It is sunny."
    pieces = list(model.stream(asked))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert [(one["name"], one["args"]) for one in total.tool_calls] == [("weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("chat", "json_schema"),
        ("chat", "function_calling"),
        ("responses", "json_schema"),
        ("anthropic", "function_calling"),
        ("anthropic", "json_schema"),
    ],
)
def test_structured_output(gateway, kind, method):
    """By the schema of the answer and by a tool that must be called; whole and streamed."""
    model = KINDS[kind](gateway).with_structured_output(City, method=method)
    assert model.invoke("Which city?") == City(name="Paris", population=2)
    assert list(model.stream("Which city?"))[-1] == City(name="Paris", population=2)


@kinds
def test_batch(gateway, kind):
    """Several at once."""
    assert [one.text for one in KINDS[kind](gateway).batch(["a", "b", "c"])] == ["Hello world"] * 3


@kinds
async def test_the_asynchronous_half(gateway, kind):
    """Invoke, stream, batch, and events of a chain."""
    model = KINDS[kind](gateway)
    assert (await model.ainvoke("Hello")).text == "Hello world"
    assert "".join([piece.text async for piece in model.astream("Hello")]) == "Hello world"
    assert [one.text for one in await model.abatch(["a", "b"])] == ["Hello world"] * 2
    names = {event["event"] async for event in model.astream_events("Hello")}
    assert {"on_chat_model_start", "on_chat_model_stream", "on_chat_model_end"} <= names


def test_tokens_are_counted_by_the_gateway(gateway):
    """What Anthropic's model asks before it cuts a conversation."""
    assert KINDS["anthropic"](gateway).get_num_tokens_from_messages([HumanMessage("Hello")]) > 0


def test_log_probabilities_seeds_and_stops_are_bound(gateway):
    """What a chain binds reaches the gateway; nothing of it is refused."""
    model = KINDS["chat"](gateway, seed=3, temperature=0.5, n=1, stop=["x"]).bind(logprobs=True, top_logprobs=2)
    assert model.invoke("Hello").text == "Hello world"


def test_completions_and_embeddings(gateway):
    """The older surface, and vectors, which are asked for as base64 or as token ids."""
    old = OpenAI(base_url=gateway.url, api_key=gateway.key, model=gateway.model, max_retries=0)
    assert old.invoke("Hello") == "Hello world"
    assert "".join(old.stream("Hello")) == "Hello world"
    plain = OpenAIEmbeddings(
        base_url=gateway.url, api_key=gateway.key, model="text-embedding-3-small", check_embedding_ctx_length=False
    )
    assert plain.embed_documents(["a", "bcd"]) == [[1.0, 0.5, -0.25], [3.0, 0.5, -0.25]]
    assert plain.embed_query("ab") == [2.0, 0.5, -0.25]


@kinds
def test_a_refusal_is_the_clients_own_error(gateway, kind):
    """With our words in it."""
    with pytest.raises(Exception, match="400") as raised:
        KINDS[kind](gateway).invoke("wrong")
    assert type(raised.value).__name__ in (
        "BadRequestError",
        "OpenAIInvalidRequestError",
        "AnthropicInvalidRequestError",
    )


def test_the_demo_model_answers_calls_and_fills_a_schema(demo):
    """The real one, by its own workers."""
    model = KINDS["chat"](demo, temperature=0, max_tokens=80)
    assert "Paris" in model.invoke(QUESTION).text
    [call] = model.bind_tools([weather], tool_choice="weather").invoke("What is the weather in Paris?").tool_calls
    assert call["name"] == "weather"
    assert isinstance(call["args"]["city"], str)
    found = model.with_structured_output(City, method="json_schema").invoke("Name a city and its population.")
    assert isinstance(found, City)
    told = "".join(piece.text for piece in KINDS["anthropic"](demo, temperature=0).stream(QUESTION))
    assert "Paris" in told
