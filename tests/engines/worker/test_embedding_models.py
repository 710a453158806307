"""Files that only embed or rank, served by a worker: vectors and scores are answered, chats refused."""

import contextlib

import httpx
import numpy as np
import pytest

from tests.engines.gguf.tiny_bert import write_tiny_bert
from tests.engines.worker.processes import WorkerProcess

pytestmark = pytest.mark.e2e


@pytest.fixture
def serve(tmp_path):
    """Starts a worker on a tiny BERT; all end with 0."""
    with contextlib.ExitStack() as stack:

        def start(*, ranks):
            path = tmp_path / "bert.gguf"
            write_tiny_bert(path, ranks=ranks)
            options = ("--path", str(path), "--model", "bert", "--threads", "1", "--kv-events", "--log-level", "debug")
            worker = stack.enter_context(WorkerProcess(*options))
            stack.callback(lambda: worker.process.poll() is None and worker.stop())
            return worker

        yield start


def post(worker, path, body, status=200):
    answer = httpx.post(f"{worker.url}{path}", json={"model": "bert"} | body)
    assert answer.status_code == status, answer.text
    return answer.json()


def refused_text(worker):
    """The sentence with which generating routes are refused."""
    messages = [{"role": "user", "content": "hello"}]
    sentences = set()
    for path, body in (("/v1/chat/completions", {"messages": messages}), ("/v1/completions", {"prompt": "hello"})):
        error = post(worker, path, body, 400)["error"]
        assert (error["code"], error["param"]) == ("unsupported_model", "model")
        sentences.add(error["message"])
    (sentence,) = sentences
    return sentence


def test_an_embedding_model_embeds_ranks_by_cosine_and_refuses_to_chat(serve):
    """Ready, healthy, told in /v1/models, counted in /load; no cache, hence no events; ends with 0."""
    worker = serve(ranks=False)
    data = post(worker, "/v1/embeddings", {"input": ["hello world", "cat sat", "hello world"]})["data"]
    first, second, third = (np.array(entry["embedding"]) for entry in data)
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-5)
    assert np.allclose(first, third, atol=1e-4)
    assert not np.allclose(first, second, atol=1e-2)
    ranked = post(worker, "/v1/rerank", {"query": "hello world", "documents": ["cat sat", "hello world"]})["results"]
    assert ranked[0]["index"] == 1
    assert ranked[0]["relevance_score"] == pytest.approx(1, abs=1e-3)
    assert "embeds texts" in refused_text(worker)
    card = httpx.get(f"{worker.url}/v1/models").json()["data"][0]
    assert (card["tasks"], card["max_model_len"]) == (["embed", "score"], 64)
    assert post(worker, "/tokenize", {"prompt": "hello world"})["tokens"] == [2, 5, 6, 3]
    assert httpx.get(f"{worker.url}/health").status_code == 200
    assert httpx.get(f"{worker.url}/kv_event_sources").json() == []
    load = worker.load()
    assert (load["max_seqs"], load["kv_tokens"], load["running"], load["server_load"]) == (0, 0, 0, 0)
    assert load["vectors"]["requests"] == 2
    assert "warmlane:embedding_requests_total" in httpx.get(f"{worker.url}/metrics").text
    assert worker.stop() == 0
    finished = [line for line in worker.logs if line["event"] == "request.finished"]
    assert [line["outcome"] for line in finished] == ["completed", "completed", "refused", "refused"]


def test_a_model_that_ranks_scores_and_gives_no_vectors(serve):
    """Its own scores; /v1/models says so."""
    worker = serve(ranks=True)
    scores = post(worker, "/v1/score", {"text_1": "hello", "text_2": ["world", "cat"]})["data"]
    assert len({round(entry["score"], 6) for entry in scores}) == 2
    assert len(post(worker, "/v1/rerank", {"query": "hello", "documents": ["world", "cat"]})["results"]) == 2
    assert "ranks documents" in post(worker, "/v1/embeddings", {"input": "hello"}, 400)["error"]["message"]
    assert "ranks documents" in refused_text(worker)
    assert httpx.get(f"{worker.url}/v1/models").json()["data"][0]["tasks"] == ["score"]
    assert worker.stop() == 0
