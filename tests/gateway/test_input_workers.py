"""Real workers on tiny embedding and rerank models behind the gateway, asked by the official client and over HTTP."""

import asyncio
import base64
import contextlib
import struct

import httpx
import openai
import pytest

from gateway.settings import Settings
from tests.engines.gguf.tiny_bert import write_tiny_bert
from tests.engines.worker.processes import WorkerProcess
from tests.gateway.kit import Engines, running_gateway

pytestmark = pytest.mark.e2e
TEXTS = ["hello world", "cat sat", "hello world"]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """(the worker that embeds, the one that ranks)."""
    folder = tmp_path_factory.mktemp("models")
    with contextlib.ExitStack() as stack:
        found = []
        for name, ranks in (("embeds", False), ("ranks", True)):
            path = folder / f"{name}.gguf"
            write_tiny_bert(path, ranks=ranks)
            options = ("--path", str(path), "--model", "bert", "--threads", "1")
            found.append(stack.enter_context(WorkerProcess(*options)))
        yield found
        for worker in found:
            worker.signal()


@pytest.fixture
async def gateway(workers, tmp_path):
    """A gateway before them; the models are called otherwise than the workers call theirs."""
    replicas = [
        {"name": name, "model": name, "engine": "warmlane", "url": worker.url, "upstream_model": "bert"}
        for name, worker in zip(("embedder", "ranker"), workers, strict=True)
    ]
    settings = Settings(replicas=replicas, models=[{"name": "embedder", "aliases": ["text-embedding-3-small"]}])
    async with running_gateway(settings, tmp_path / "store.sqlite3", Engines(0)) as running:
        await running.limit(running.project, '{"tokens_per_day": 100000}')
        yield running


def client(gateway, kind=openai.OpenAI, transport=httpx.Client):
    """The official client, without the environment's proxies."""
    http = transport(verify=False, trust_env=False, timeout=30)
    return kind(base_url=gateway.url, api_key=gateway.key, max_retries=0, http_client=http)


def unpacked(text):
    return list(struct.unpack(f"<{len(text) * 3 // 16}f", base64.b64decode(text)))


async def test_the_official_clients_embed(gateway):
    """Both of them, by an alias; base64, which they ask for unasked, gives the numbers that floats give, bit by bit."""

    def ask():
        with client(gateway) as one:
            whole = one.embeddings.create(model="text-embedding-3-small", input=TEXTS)
            return whole, one.embeddings.create(model="embedder", input=TEXTS, encoding_format="float")

    whole, floats = await asyncio.to_thread(ask)
    assert (whole.model, whole.object, len(whole.data)) == ("text-embedding-3-small", "list", 3)
    assert [entry.embedding for entry in whole.data] == [entry.embedding for entry in floats.data]
    assert [entry.index for entry in whole.data] == [0, 1, 2]
    assert sum(number**2 for number in whole.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (12, 12)
    async with client(gateway, openai.AsyncOpenAI, httpx.AsyncClient) as other:
        again = await other.embeddings.create(model="embedder", input=[[2, 5, 6, 3]], encoding_format="base64")
        assert unpacked(again.data[0].embedding) == pytest.approx(whole.data[0].embedding, abs=1e-4)
        assert again.usage.prompt_tokens == 4
    records = await gateway.until_recorded(3)
    assert [one.charged_tokens for one in records] == [12, 12, 4]
    assert records[2].reserved_tokens == 4
    sent = await gateway.post({"model": "embedder", "input": TEXTS, "encoding_format": "base64"}, path="/v1/embeddings")
    plain = await gateway.post({"model": "embedder", "input": TEXTS}, path="/v1/embeddings")
    for packed, numbers in zip(sent.json["data"], plain.json["data"], strict=True):
        assert unpacked(packed["embedding"]) == numbers["embedding"]


async def test_the_client_raises_its_own_errors(gateway):
    """With the field that is wrong, whether the gateway or the worker found it."""
    async with client(gateway, openai.AsyncOpenAI, httpx.AsyncClient) as one:
        with pytest.raises(openai.BadRequestError) as raised:
            await one.embeddings.create(model="embedder", input=[])
        assert raised.value.param == "input"
        with pytest.raises(openai.BadRequestError) as raised:
            await one.embeddings.create(model="embedder", input="hello", dimensions=4)
        assert (raised.value.param, raised.value.code) == ("dimensions", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as raised:
            await one.embeddings.create(model="embedder", input="hello " * 100)
        assert raised.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as raised:
            await one.embeddings.create(model="ranker", input="hello")
        assert raised.value.code == "unsupported_model"
        assert "'embedder' does" in str(raised.value)
        with pytest.raises(openai.BadRequestError) as raised:
            await one.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "hello"}])
        assert raised.value.code == "unsupported_model"
        shown = {model.id: model.model_dump()["tasks"] async for model in one.models.list()}
        assert shown == {"embedder": ["embed", "score"], "ranker": ["score"]}


@pytest.mark.parametrize("model", ["embedder", "ranker"])
async def test_documents_are_ranked_and_pairs_scored(gateway, model):
    """By the cosine of two vectors, and by a model that reads both texts at once."""
    documents = ["cat sat", {"text": "hello world"}, "hello cat"]
    asked = {"model": model, "query": "hello world", "documents": documents, "top_n": 2}
    ranked = (await gateway.post(asked, path="/v1/rerank")).json
    assert ranked["model"] == model
    assert len(ranked["results"]) == 2
    scores = [one["relevance_score"] for one in ranked["results"]]
    assert scores == sorted(scores, reverse=True)
    texts = ["cat sat", "hello world", "hello cat"]
    assert [one["document"]["text"] for one in ranked["results"]] == [texts[one["index"]] for one in ranked["results"]]
    scored = (await gateway.post({"model": model, "text_1": "hello world", "text_2": texts}, path="/v1/score")).json
    for one in ranked["results"]:
        assert scored["data"][one["index"]]["score"] == pytest.approx(one["relevance_score"], abs=1e-3)
    if model == "embedder":
        assert ranked["results"][0]["index"] == 1
    ranking, scoring = await gateway.until_recorded(2)
    assert ranking.charged_tokens == ranked["usage"]["total_tokens"] > 0
    assert scoring.charged_tokens == scored["usage"]["total_tokens"] > 0


async def test_texts_become_tokens_and_tokens_texts(gateway):
    """The worker's own tokenizer, at no cost."""
    got = await gateway.post({"model": "embedder", "prompt": "hello world"}, path="/v1/tokenize")
    assert (got.json["tokens"], got.json["count"], got.json["max_model_len"]) == ([2, 5, 6, 3], 4, 64)
    named = {"model": "embedder", "prompt": "hello world", "return_token_strs": True, "add_special_tokens": False}
    got = await gateway.post(named, path="/v1/tokenize")
    assert len(got.json["token_strs"]) == len(got.json["tokens"]) == 2
    got = await gateway.post({"model": "embedder", "tokens": [5, 6]}, path="/v1/detokenize")
    assert "world" in got.json["prompt"]
    assert [one.charged_tokens for one in await gateway.until_recorded(3)] == [0, 0, 0]
