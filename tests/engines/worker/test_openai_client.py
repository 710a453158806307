"""The official client against a worker process: what it offers for chat, completions, embeddings and models works.

Most of it on the fake engine, which says what its prompt tells it to; some on the demo model.
"""

import asyncio
import base64
import json
from typing import Literal

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from tests.engines.worker.processes import WorkerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "unit": "C"}}\n</tool_call>'


class Verdict(BaseModel):
    """What an answer is parsed into."""

    colour: Literal["red", "green"]
    is_sure: bool


@pytest.fixture
def official(fake_worker):
    with openai.OpenAI(base_url=fake_worker.ready.url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def official_async(fake_worker):
    async with openai.AsyncOpenAI(base_url=fake_worker.ready.url, api_key="unused", max_retries=0) as client:
        yield client


def asked(text, **fields):
    messages = [{"role": "user", "content": text}]
    return {"model": "fake", "messages": messages, "temperature": 0, "max_tokens": 300, **fields}


def test_chat_whole(official):
    """Content, finish, usage, fingerprint, with fields that are accepted and change nothing."""
    answer = official.chat.completions.create(
        **asked("[[say hello]]", user="u", store=False, metadata={"a": "b"}, service_tier="auto", seed=1)
    )
    assert answer.choices[0].message.content == "hello"
    assert (answer.choices[0].finish_reason, answer.choices[0].message.role) == ("stop", "assistant")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens is not None
    assert answer.system_fingerprint.startswith("fp_")
    again = official.chat.completions.create(**asked("[[say hello]]"))
    assert again.system_fingerprint == answer.system_fingerprint


def test_chat_streamed(official):
    """By the plain iterator, with usage at the end, and by the event helper."""
    body = asked("[[say the time of day]]")
    chunks = list(official.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "the time of day"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens > 0) == ([], True)
    assert {chunk.system_fingerprint for chunk in chunks} == {chunks[0].system_fingerprint}
    with official.chat.completions.stream(**body) as stream:
        done = [event.content for event in stream if event.type == "content.done"]
        assert done == ["the time of day"] == [stream.get_final_completion().choices[0].message.content]


def test_several_choices_with_log_probabilities_and_stops(official):
    """n, seed, stop, logit_bias, logprobs and top_logprobs in one request."""
    answer = official.chat.completions.create(
        **asked("tell me", n=3, seed=7, max_tokens=8, logprobs=True, top_logprobs=2, stop=["\u2028"])
        | {"temperature": 1.5, "logit_bias": {"400": -100}}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        entries = choice.logprobs.content
        assert "".join(entry.token for entry in entries) == choice.message.content
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools_whole_and_streamed(official, choice):
    """The same calls both ways, put together by the client's own helper."""
    body = asked(f"[[say {CALL}]]", tools=[WEATHER], tool_choice=choice)
    answer = official.chat.completions.create(**body)
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments).keys() == {"city", "unit"}
    with official.chat.completions.stream(**body) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == [("get_weather", call.function.arguments)]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == call.function.arguments


def test_a_conversation_with_a_tool(official):
    """The client sends back the very message it was given, and the result."""
    body = asked(f"[[say {CALL}]]", tools=[WEATHER])
    message = official.chat.completions.create(**body).choices[0].message
    body["messages"] += [
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 degrees"},
        {"role": "user", "content": "[[say it is cold]]"},
    ]
    assert official.chat.completions.create(**body).choices[0].message.content == "it is cold"


def test_parse_gives_an_object(official):
    """`parse` sends the strict schema of a pydantic model; the answer follows it whatever the model would say."""
    answer = official.chat.completions.parse(**asked("tell me a story"), response_format=Verdict)
    assert isinstance(answer.choices[0].message.parsed, Verdict)
    said = official.chat.completions.parse(
        **asked('[[say {"colour":"green","is_sure":true}]]'), response_format=Verdict
    )
    assert said.choices[0].message.parsed == Verdict(colour="green", is_sure=True)


def test_parse_gives_tool_arguments_as_objects(official):
    """`pydantic_function_tool` makes a strict tool of a model."""
    tool = openai.pydantic_function_tool(Verdict, name="judge")
    body = asked("tell me", tools=[tool], tool_choice="required", parallel_tool_calls=False)
    answer = official.chat.completions.parse(**body)
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Verdict)


def test_completions(official):
    """Text and tokens, several at once, echo, log probabilities, streamed."""
    body = {"model": "fake", "temperature": 0, "max_tokens": 30}
    answer = official.completions.create(**body, prompt=["[[say one]]", "[[say two]]"], logprobs=1)
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    assert answer.choices[0].logprobs.tokens
    echoed = official.completions.create(**body, prompt="[[say one]]", echo=True)
    assert echoed.choices[0].text == "[[say one]]one"
    streamed = official.completions.create(**body, prompt="[[say one]]", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "[[say one]]one"
    tokens = official.post("../tokenize", body={"prompt": "[[say one]]"}, cast_to=dict)["tokens"]
    by_tokens = official.completions.create(**body, prompt=[tokens, tokens], echo=True)
    assert [choice.text for choice in by_tokens.choices] == ["[[say one]]one"] * 2


def test_embeddings(official):
    """The client asks for base64 unless told otherwise, and unpacks it; both are the same numbers."""
    packed = official.embeddings.create(model="fake", input=["the time", "of day"])
    plain = official.embeddings.create(model="fake", input=["the time", "of day"], encoding_format="float")
    assert [entry.index for entry in packed.data] == [0, 1]
    assert np.allclose(packed.data[1].embedding, plain.data[1].embedding)
    raw = official.embeddings.create(model="fake", input="of day", encoding_format="base64").data[0].embedding
    assert np.allclose(np.frombuffer(base64.b64decode(raw), "<f4"), plain.data[1].embedding)
    assert packed.usage.prompt_tokens > 0


def test_models(official):
    """Listed and found by name; others are not."""
    assert [model.id for model in official.models.list()] == ["fake"]
    assert official.models.retrieve("fake").owned_by == "warmlane"
    with pytest.raises(openai.NotFoundError):
        official.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9}, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_errors_name_their_field(official, fields, param):
    """As the client's own exceptions."""
    with pytest.raises(openai.BadRequestError) as caught:
        official.chat.completions.create(**asked("x") | fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


async def test_the_asynchronous_client_does_the_same(official_async):
    """All of it at once."""
    chat = official_async.chat.completions

    async def streamed():
        return "".join(
            [c.choices[0].delta.content or "" async for c in await chat.create(**asked("[[say b]]"), stream=True)]
        )

    async def tools():
        async with chat.stream(**asked(f"[[say {CALL}]]", tools=[WEATHER])) as stream:
            async for _ in stream:
                pass
            return (await stream.get_final_completion()).choices[0].message.tool_calls[0].function.name

    whole, text, parsed, name, vectors, completed, models = await asyncio.gather(
        chat.create(**asked("[[say a]]")),
        streamed(),
        chat.parse(**asked("tell me"), response_format=Verdict),
        tools(),
        official_async.embeddings.create(model="fake", input="x"),
        official_async.completions.create(model="fake", prompt="[[say c]]", max_tokens=9, temperature=0),
        official_async.models.list(),
    )
    assert (whole.choices[0].message.content, text, name) == ("a", "b", "get_weather")
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    assert (len(vectors.data[0].embedding), completed.choices[0].text) == (64, "c")
    assert [model.id for model in models.data] == ["fake"]


@pytest.fixture(scope="module")
def demo(demo_model):
    with WorkerProcess(
        "--path", str(demo_model), "--model", "fake", "--max-seqs", "4", "--kv-tokens", "8192"
    ) as worker:
        with openai.OpenAI(base_url=worker.ready.url, api_key="unused", max_retries=0) as client:
            yield client
        assert worker.stop() == 0


@pytest.mark.model
def test_the_demo_model_calls_a_tool_it_must_call(demo):
    """Its template knows no tools: they are told in words, and the grammar does the rest."""
    body = asked("What is the weather in Paris, in Celsius?", tools=[WEATHER], tool_choice="required")
    body["parallel_tool_calls"] = False
    choice = demo.chat.completions.create(**body).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments).keys() == {"city", "unit"}
    with demo.chat.completions.stream(**body) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls[0].function.arguments == call.function.arguments


@pytest.mark.model
def test_the_demo_model_answers_by_a_schema(demo):
    """Strictly, and seen by `parse`."""
    answer = demo.chat.completions.parse(**asked("Is grass red or green? Answer in JSON."), response_format=Verdict)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


@pytest.mark.model
def test_the_demo_model_has_log_probabilities_and_no_embeddings(demo):
    """The chosen token of a greedy answer is the best one."""
    answer = demo.chat.completions.create(**asked("Say hello.", logprobs=True, top_logprobs=2, max_tokens=5))
    for entry in answer.choices[0].logprobs.content:
        assert entry.token == entry.top_logprobs[0].token
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        demo.embeddings.create(model="fake", input="x")


@pytest.mark.model
def test_the_demo_model_serves_embeddings_when_told_to(demo_model):
    """Beside what it generates: unit vectors, near for near texts, and scores by their cosines."""
    options = ("--path", str(demo_model), "--model", "fake", "--max-seqs", "2", "--kv-tokens", "2048", "--embeddings")
    texts = ["The cat sat on the mat.", "A cat was sitting on a mat.", "Interest rates rose by a quarter point."]
    with WorkerProcess(*options) as worker:
        with openai.OpenAI(base_url=worker.ready.url, api_key="unused", max_retries=0) as client:
            vectors = np.array([entry.embedding for entry in client.embeddings.create(model="fake", input=texts).data])
            body = {"model": "fake", "text_1": texts[0], "text_2": texts[1:]}
            scores = [entry["score"] for entry in client.post("/score", body=body, cast_to=dict)["data"]]
            assert client.chat.completions.create(**asked("Say hello.", max_tokens=2)).choices[0].message.content
        assert worker.stop() == 0
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    assert scores == pytest.approx([vectors[0] @ vectors[1], vectors[0] @ vectors[2]], abs=1e-3)
