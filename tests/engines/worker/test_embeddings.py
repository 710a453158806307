"""Vectors, rankings and scores over HTTP, and the batches behind them."""

import asyncio
import base64
import threading

import httpx
import numpy as np
import pytest
import structlog

from engines.core.plan import EngineFault
from engines.fake.embeddings import FakeEmbeddings
from engines.worker.app import build_app
from engines.worker.batcher import Batcher
from engines.worker.errors import ApiError


@pytest.fixture
async def ranking(make_service):
    """A client of a service whose model ranks."""
    service = make_service(embeddings=FakeEmbeddings(can_rank=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://worker") as client:
        yield client


async def post(client, path, body, status=200):
    response = await client.post(path, json={"model": "fake"} | body)
    assert response.status_code == status, response.text
    return response.json()


async def test_texts_become_vectors_in_openais_shape(client):
    """In order, with usage, as numbers or as base64 of float32."""
    answer = await post(client, "/v1/embeddings", {"input": ["the time", "the time", "abc"]})
    assert (answer["object"], answer["model"]) == ("list", "fake")
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [("embedding", n) for n in range(3)]
    first, second, third = (np.array(entry["embedding"]) for entry in answer["data"])
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 3
    packed = await post(client, "/v1/embeddings", {"input": "the time", "encoding_format": "base64"})
    decoded = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    assert np.allclose(decoded, first)


async def test_tokens_are_taken_as_well_as_text(client):
    """One text or several."""
    tokens = (await post(client, "/tokenize", {"prompt": "the time"}))["tokens"]
    by_text = await post(client, "/v1/embeddings", {"input": "the time"})
    one = await post(client, "/v1/embeddings", {"input": tokens})
    two = await post(client, "/v1/embeddings", {"input": [tokens, tokens]})
    assert one["data"] == by_text["data"]
    assert [entry["embedding"] for entry in two["data"]] == [by_text["data"][0]["embedding"]] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1, 512]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": "x" * 513}, "input"),
        ({"input": "x" * 1_000_000}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": "x", "dimensions": 63}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({}, "input"),
    ],
)
async def test_bad_inputs_are_refused_by_field(client, fields, param):
    """As everywhere."""
    assert (await post(client, "/v1/embeddings", fields, 400))["error"]["param"] == param


async def test_own_dimensions_may_be_asked_for(client):
    """Any other number cannot be had."""
    answer = await post(client, "/v1/embeddings", {"input": "x", "dimensions": 64})
    assert len(answer["data"][0]["embedding"]) == 64


async def test_another_model_is_a_404(client):
    """On these routes too."""
    for path, body in (
        ("/v1/embeddings", {"input": "x"}),
        ("/v1/rerank", {"query": "x", "documents": ["x"]}),
        ("/v1/score", {"text_1": "x", "text_2": "x"}),
    ):
        assert (await post(client, path, body | {"model": "other"}, 404))["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("by_cosine", [False, True])
async def test_documents_are_ranked_best_first(client, ranking, by_cosine):
    """By a model that ranks, and by the cosines of one that embeds."""
    client = client if by_cosine else ranking
    documents = ["how many people", {"text": "the water of the area"}, "the water"]
    body = {"query": "the water", "documents": documents}
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        answer = await post(client, path, body)
        assert [result["index"] for result in answer["results"]] == [2, 1, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1, abs=1e-5)
    assert answer["results"][1]["document"] == {"text": "the water of the area"}
    best = await post(client, "/v1/rerank", body | {"top_n": 1, "return_documents": False})
    assert best["results"] == [{"index": 2, "relevance_score": scores[0]}]


async def test_pairs_are_scored(ranking):
    """One text against several, or two lists side by side."""
    one = await post(ranking, "/v1/score", {"text_1": "water", "text_2": ["water", "people"]})
    assert (one["object"], [entry["index"] for entry in one["data"]]) == ("list", [0, 1])
    assert one["data"][0]["score"] == pytest.approx(1, abs=1e-5)
    two = await post(ranking, "/score", {"text_1": ["water", "people"], "text_2": ["water", "people"]})
    assert [entry["score"] for entry in two["data"]] == pytest.approx([1, 1], abs=1e-5)
    for fields, param in (
        ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": "x" * 600}, "text_2"),
    ):
        assert (await post(ranking, "/v1/score", fields, 400))["error"]["param"] == param
    for fields, param in (({"documents": []}, "documents"), ({"documents": ["a"], "top_n": -1}, "top_n")):
        assert (await post(ranking, "/v1/rerank", {"query": "a"} | fields, 400))["error"]["param"] == param


async def test_a_text_at_fault_is_named_by_its_own_field(client, ranking):
    """The query or the first text, not the documents beside it."""
    for at, fault in ((client, ""), (client, "x" * 513), (client, "x" * 1_000_000), (ranking, "x" * 1_000_000)):
        for path, good, field in (
            ("/v1/rerank", {"documents": ["a"]}, "query"),
            ("/v1/score", {"text_2": ["a", "b"]}, "text_1"),
            ("/v1/score", {"text_1": "a"}, "text_2"),
        ):
            assert (await post(at, path, good | {field: fault}, 400))["error"]["param"] == field
    error = (await post(client, "/v1/rerank", {"query": "a", "documents": ["a", ""]}, 400))["error"]
    assert error["param"] == "documents"


async def test_one_text_against_many_is_embedded_once(make_service):
    """Its vector is the same for all; the tokens of every pair count all the same."""
    model = FakeEmbeddings()
    service = make_service(embeddings=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://worker") as client:
        answer = await post(client, "/v1/rerank", {"query": "the water", "documents": ["a", "the water", "a"]})
        assert (sum(model.calls), answer["results"][0]["index"]) == (4, 1)
        pairs = await post(client, "/v1/score", {"text_1": ["the water", "a"], "text_2": ["the water", "a"]})
        assert sum(model.calls) == 8
        assert [entry["score"] for entry in pairs["data"]] == pytest.approx([1, 1], abs=1e-5)
    tokens = {text: len(model.text_tokens(text)) for text in ("the water", "a")}
    assert answer["usage"]["total_tokens"] == 4 * tokens["the water"] + 2 * tokens["a"]


async def test_a_model_that_cannot_says_so(ranking, make_service):
    """A model that ranks gives no vectors; one that generates gives neither."""
    error = (await post(ranking, "/v1/embeddings", {"input": "x"}, 400))["error"]
    assert "ranks documents" in error["message"]
    plain = make_service(embeddings=None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(plain)), base_url="http://worker") as client:
        for path in ("/v1/embeddings", "/v1/rerank", "/v1/score"):
            error = (await post(client, path, {"input": "x"}, 400))["error"]
            assert (error["code"], error["param"]) == ("unsupported_model", "model")
            assert "no embeddings" in error["message"]


async def test_requests_for_vectors_are_counted_and_logged(client, service):
    """Requests, texts and tokens, in metrics and load, and one line each; a refused one has a line and no count."""
    with structlog.testing.capture_logs() as lines:
        embedded = await post(client, "/v1/embeddings", {"input": ["the time", "abc"]})
        ranked = await post(client, "/v1/rerank", {"query": "x", "documents": ["x", "y", "z"]})
        await post(client, "/v1/score", {"text_1": "", "text_2": "x"}, 400)
    tokens = [answer["usage"]["total_tokens"] for answer in (embedded, ranked)]
    assert (await client.get("/load")).json()["vectors"] == {"requests": 2, "inputs": 5, "tokens": sum(tokens)}
    text = (await client.get("/metrics")).text
    for name, number in (("requests", 2), ("inputs", 5), ("tokens", sum(tokens))):
        assert f'warmlane:embedding_{name}_total{{engine="0",model_name="fake"}} {float(number)}' in text
    told = [(line["surface"], line["outcome"], line.get("num_inputs"), line.get("prompt_tokens")) for line in lines]
    assert told == [
        ("embeddings", "completed", 2, tokens[0]),
        ("rerank", "completed", 3, tokens[1]),
        ("score", "refused", None, None),
    ]


class Gate:
    """A call that waits until it is let go, once."""

    def __init__(self):
        self.calls = []
        self.go = threading.Event()
        self.fails = False

    def __call__(self, inputs):
        self.calls.append([list(tokens) for tokens in inputs])
        assert self.go.wait(10)
        if self.fails:
            raise EngineFault("broken")
        return np.array([[float(sum(tokens))] for tokens in inputs], dtype=np.float32)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.go.set()


async def entered(gate, number):
    while len(gate.calls) < number:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_what_waits_goes_into_one_call_up_to_a_batch(gate):
    """One call at a time; every request gets its own rows, in order."""
    batcher = Batcher(gate, max_batch_tokens=4)
    first = asyncio.ensure_future(batcher.rows([[1]]))
    await entered(gate, 1)
    others = [asyncio.ensure_future(batcher.rows([[n, 1], [n]])) for n in (5, 6)]
    await asyncio.sleep(0)
    gate.go.set()
    assert [rows.tolist() for rows in await asyncio.gather(first, *others)] == [[[1]], [[6], [5]], [[7], [6]]]
    assert gate.calls == [[[1]], [[5, 1], [5]], [[6, 1], [6]]]
    batcher.close()


async def test_a_request_that_leaves_is_left_out(gate):
    """Queued texts of it are never computed, and a call at work harms nobody."""
    batcher = Batcher(gate, max_batch_tokens=4)
    leaving, staying = (asyncio.ensure_future(batcher.rows([[n]])) for n in (1, 2))
    await entered(gate, 1)
    queued = asyncio.ensure_future(batcher.rows([[3]]))
    await asyncio.sleep(0)
    for task in (leaving, queued):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    gate.go.set()
    assert (await staying).tolist() == [[2]]
    assert (await batcher.rows([[4]])).tolist() == [[4]]
    assert gate.calls == [[[1], [2]], [[4]]]
    batcher.close()


async def test_too_many_texts_are_refused_and_a_fault_hits_its_batch_alone(gate):
    """503 and 500; the next is served."""
    batcher = Batcher(gate, max_batch_tokens=4, max_waiting=2)
    with pytest.raises(ApiError) as caught:
        await batcher.rows([[1]] * 3)
    assert caught.value.status == 503
    gate.fails = True
    gate.go.set()
    with pytest.raises(ApiError) as caught:
        await batcher.rows([[1], [2]])
    assert caught.value.status == 500
    gate.fails = False
    assert (await batcher.rows([[4]])).tolist() == [[4]]
    batcher.close()
    batcher.close()


async def test_an_error_nobody_foresaw_is_an_answer_too():
    """A request whose call ends in whatever way is not left waiting, nor are those behind it."""
    calls = []

    def breaks(inputs):
        calls.append(len(inputs))
        raise MemoryError

    batcher = Batcher(breaks, max_batch_tokens=1)
    with structlog.testing.capture_logs() as lines:
        asked = [asyncio.ensure_future(batcher.rows([[n]])) for n in (1, 2)]
        done, _ = await asyncio.wait(asked, timeout=10)
    assert [task.exception().status for task in asked if task in done] == [500, 500]
    told = [(line["event"], line["log_level"], type(line["exc_info"])) for line in lines]
    assert told == [("embeddings.call_failed", "error", MemoryError)] * 2
    batcher.close()
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(batcher.rows([[3]]), 10)
    assert caught.value.status == 500
    assert calls == [1, 1]


async def test_a_model_that_gives_too_few_rows_leaves_nobody_waiting():
    """Nobody can tell whose they are."""
    batcher = Batcher(lambda inputs: np.ones((len(inputs) - 1, 2), np.float32), max_batch_tokens=4)
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(batcher.rows([[1], [2]]), 10)
    assert caught.value.status == 500
    batcher.close()


async def test_a_stop_ends_what_waits_and_what_is_at_work(gate):
    """With an error that says so, at once; nothing new is taken, and a second stop is harmless."""
    batcher = Batcher(gate, max_batch_tokens=2)
    asked = [asyncio.ensure_future(batcher.rows([[n], [n]])) for n in (1, 2)]
    await entered(gate, 1)
    batcher.stop()
    batcher.stop()
    for refused in (*asked, batcher.rows([[3]])):
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(refused, 10)
        assert (caught.value.status, caught.value.code) == (503, "stopping")
    gate.go.set()
    await asyncio.to_thread(batcher.close)
    assert gate.calls == [[[1], [1]]]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
async def test_a_drain_that_runs_out_of_time_ends_them_with_an_error(make_service, gate, path):
    """As it ends generations, instead of a connection that just closes."""
    model = FakeEmbeddings()
    model.embed = gate
    service = make_service({"drain_s": 0.1}, embeddings=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(service)), base_url="http://worker") as client:
        body = {"input": "a", "query": "a", "documents": ["b"]}
        running = asyncio.ensure_future(post(client, path, body, 503))
        await entered(gate, 1)
        assert not await service.drain()
        assert (await asyncio.wait_for(running, 10))["error"]["code"] == "stopping"
