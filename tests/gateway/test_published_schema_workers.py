"""What our own worker says through the gateway, against OpenAI's published schema: the demo model on llama.cpp's kernels."""

import pytest

from gateway.settings import Settings
from tests.engines.worker.conftest import demo_model  # noqa: F401  # a fixture
from tests.engines.worker.processes import WorkerProcess
from tests.gateway.kit import Engines, running_gateway
from tests.openai_schema.published import assert_valid, assert_valid_event

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(180)]

MODEL = "demo"
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"}
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS}
SCHEMA = {"name": "place", "schema": PARAMETERS, "strict": True}
HELLO = [{"role": "user", "content": "Say hello."}]
BODIES = [
    ("chat", {"messages": HELLO, "max_tokens": 4}),
    ("chat", {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2, "seed": 1}),
    ("chat", {"messages": HELLO, "max_tokens": 40, "response_format": {"type": "json_schema", "json_schema": SCHEMA}}),
    ("chat", {
        "messages": HELLO, "max_tokens": 60, "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "required", "parallel_tool_calls": False,
    }),
    ("completions", {"prompt": ["One, two,", "A, b,"], "max_tokens": 3, "logprobs": 2, "echo": False}),
    ("completions", {"prompt": "One, two,", "max_tokens": 2, "logit_bias": {"5": -100}, "stop": ["\n"]}),
    ("responses", {"input": "Say hello.", "max_output_tokens": 4, "top_logprobs": 2}),
    ("responses", {
        "input": "Weather?", "max_output_tokens": 60, "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
    }),
    ("responses", {"input": "Where?", "max_output_tokens": 40, "text": {"format": {"type": "json_schema", **SCHEMA}}}),
]  # fmt: skip
WHOLE = {"chat": "CreateChatCompletionResponse", "completions": "CreateCompletionResponse", "responses": "Response"}
CHUNK = {"chat": "CreateChatCompletionStreamResponse", "completions": "CreateCompletionResponse"}


@pytest.fixture(scope="module")
def worker(demo_model):  # noqa: F811
    """One that answers and embeds."""
    options = ("--path", str(demo_model), "--model", MODEL, "--max-seqs", "4", "--kv-tokens", "4096", "--embeddings")
    with WorkerProcess(*options) as worker:
        yield worker
        assert worker.stop() == 0


@pytest.fixture
async def gateway(worker, tmp_path):
    """A gateway before it."""
    settings = Settings(replicas=[{"name": "r1", "model": MODEL, "engine": "warmlane", "url": worker.url}])
    async with running_gateway(settings, tmp_path / "store.sqlite3", Engines(0)) as running:
        yield running


async def test_whole_answers_and_every_chunk(gateway):
    """Texts, choices, log probabilities, calls and schemas; with the usage that was asked for, and without."""
    for surface, fields in BODIES:
        body = {"model": MODEL, "temperature": 0, **fields}
        whole = await gateway.post(body, path=PATHS[surface])
        assert whole.status == 200, whole.body
        assert_valid(WHOLE[surface], whole.json)
        usage = {} if surface == "responses" else {"stream_options": {"include_usage": True}}
        told = await gateway.post({**body, "stream": True, **usage}, path=PATHS[surface])
        assert told.chunks
        for chunk in told.chunks:
            assert_valid_event(chunk) if surface == "responses" else assert_valid(CHUNK[surface], chunk)


async def test_vectors_and_models(gateway):
    """Numbers, and the list that names the model."""
    embedded = await gateway.post({"model": MODEL, "input": ["a cat", "a dog"]}, path="/v1/embeddings")
    assert_valid("CreateEmbeddingResponse", embedded.json)
    assert_valid("ListModelsResponse", (await gateway.get("/v1/models")).json)


async def test_refusals_of_the_worker(gateway):
    """What the gateway lets through and the worker does not."""
    wrong = [
        await gateway.post({"model": MODEL, "messages": HELLO, "stop": [""] * 99}),
        await gateway.post({"model": MODEL, "messages": [{"role": "user", "content": "x " * 9000}]}),
        await gateway.post({"model": MODEL, "messages": HELLO, "tools": [{"type": "function"}]}),
        await gateway.post({"model": MODEL, "prompt": "x", "logprobs": 99}, path=PATHS["completions"]),
    ]
    for one in wrong:
        assert one.status == 400, one.body
        assert_valid("ErrorResponse", one.json)
