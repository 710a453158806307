"""Embeddings, rankings, scores and tokens of engines that differ, in the one shape that clients know."""

import base64
import json
import math
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import surfaces
from engines.contract import Fault, ReplicaError
from gateway.input_relay import shaped
from gateway.vector_answers import AnswerHead
from gateway.wanted import Inputs, Ranking, Scores, Text, TokenList, Vectors

HEAD = AnswerHead("req_1", "as-asked", 1_700_000_000, 11)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def answer_of(body, wanted):
    """(the client's answer as an object, the prompt tokens reported or None)."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    shown, usage = shaped(raw, Inputs(surfaces.EMBEDDINGS, wanted, b""), HEAD)
    return json.loads(shown), usage.prompt_tokens if usage is not None else None


def refused(body, wanted):
    """The error of an answer that is none."""
    with pytest.raises(ReplicaError) as caught:
        answer_of(body, wanted)
    return caught.value


def listed(*vectors, **more):
    """An engine's list of embeddings, each as it is given."""
    return {"data": [{"index": number, "embedding": one} for number, one in enumerate(vectors)], **more}


def packed(*numbers):
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def test_an_embedding_answer_has_openais_members_and_no_others():
    """The name is the one that was asked for; an engine's ids and times are its own."""
    body = listed([0.5, 1.5], id="embd-1", created=5, model="engine/x", usage={"prompt_tokens": 3, "total_tokens": 3})
    assert answer_of(body, Vectors(1, as_base64=False, dimensions=None)) == (
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.5]}],
            "model": "as-asked",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        },
        3,
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_every_form_becomes_the_one_that_was_asked_for_bit_by_bit(vectors, comes_packed, wants_packed):
    """Float to base64 and back is exact; what needs no other form is not touched."""
    body = listed(*(packed(*one) if comes_packed else one for one in vectors))
    found, _ = answer_of(body, Vectors(len(vectors), as_base64=wants_packed, dimensions=3))
    for entry, vector in zip(found["data"], vectors, strict=True):
        shown = entry["embedding"]
        assert isinstance(shown, str) is wants_packed
        numbers = struct.unpack("<3f", base64.b64decode(shown)) if wants_packed else shown
        assert struct.pack("<3f", *numbers) == struct.pack("<3f", *vector)


def test_numbers_keep_the_text_that_the_engine_gave_them():
    """Nothing is rounded on the way, whatever its digits."""
    raw = b'{"data":[{"index":0,"embedding":[0.1000000014901161193847,-1E-9,3]}]}'
    shown, _ = shaped(raw, Inputs(surfaces.EMBEDDINGS, Vectors(1, as_base64=False, dimensions=None), b""), HEAD)
    assert b"[0.1000000014901161193847,-1E-9,3]" in shown


def test_vectors_stand_in_the_order_of_the_texts():
    """Whatever order they came in; without numbers they stand as they came."""
    shuffled = {"data": [{"index": 1, "embedding": [1.0]}, {"index": 0, "embedding": [0.0]}]}
    plain = {"data": [{"embedding": [0.0]}, {"embedding": [1.0]}]}
    for body in (shuffled, plain):
        found, _ = answer_of(body, Vectors(2, as_base64=False, dimensions=None))
        assert [(entry["index"], entry["embedding"]) for entry in found["data"]] == [(0, [0.0]), (1, [1.0])]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b"nonsense", b'{"data": null}', b'{"error": {"message": "x"}}', b"\xff",
        b'{"data":' + b"[" * 5000,
        listed([1.0]), listed([1.0], [2.0], [3.0]), listed([1.0], [1.0, 2.0]), listed([1.0], []), listed([1.0], None),
        listed([1.0], [None]), listed([1.0], ["1"]), listed([1.0], [[1.0]]), listed([1.0], "no base64!"),
        listed([1.0], packed(1.0)[:-2]), listed([1.0], ""), listed([1.0], "AAA="), listed([1.0], packed(math.nan)),
        listed([1.0], packed(math.inf)), listed([1.0], 5), b'{"data":[{"index":0,"embedding":[1e999]},{"embedding":[1]}]}',
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [1.0]}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_base64", [True, False])
def test_what_is_no_list_of_two_embeddings_is_the_engines_fault(body, as_base64):
    """Too few, too many, of several sizes, of no numbers: another replica is tried."""
    assert refused(body, Vectors(2, as_base64=as_base64, dimensions=None)).fault is Fault.PROTOCOL


@pytest.mark.parametrize("vector", [[1.0, 2.0], packed(1.0, 2.0)])
def test_dimensions_that_an_engine_ignored_are_told_to_the_client(vector):
    """llama-server embeds as it always does: nobody can serve that, and it is not held against the engine."""
    error = refused(listed(vector), Vectors(1, as_base64=True, dimensions=8))
    assert (error.fault, error.status) == (Fault.CLIENT, 400)
    told = json.loads(error.body)["error"]
    assert (told["param"], told["code"]) == ("dimensions", "unsupported_parameter")
    assert "2 dimensions" in told["message"]
    assert answer_of(listed(vector), Vectors(1, as_base64=True, dimensions=2))


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, 5),
        ({"total_tokens": 6}, 6),
        ({"prompt_tokens": 4, "total_tokens": 9, "completion_tokens": 3}, 4),
        ({"prompt_tokens": 0, "total_tokens": 0}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": "5"}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_is_read_as_each_engine_tells_it(usage, tokens):
    """vLLM's older rankings tell only the total. What was not told is estimated, for the client too."""
    found, reported = answer_of(listed([1.0], usage=usage), Vectors(1, as_base64=False, dimensions=None))
    assert reported == tokens
    shown = tokens or HEAD.estimated_tokens
    assert found["usage"] == {"prompt_tokens": shown, "total_tokens": shown}


DOCUMENTS = ("a", "b", "c")
RANKED = [(0, 0.25), (1, 0.75), (2, 0.5)]


@pytest.mark.parametrize(
    "body",
    [
        {"results": [{"index": index, "relevance_score": score, "document": {"text": "?"}} for index, score in RANKED]},
        {"results": [{"index": index, "relevance_score": score} for index, score in reversed(RANKED)], "id": "x"},
        {"results": [{"index": index, "score": score} for index, score in RANKED], "usage": {"total_tokens": 2}},
        [{"index": index, "score": score, "text": "?"} for index, score in RANKED],
    ],
    ids=["vllm", "llama-server", "named score", "tei"],
)
@pytest.mark.parametrize(("num", "shows"), [(3, True), (2, True), (3, False), (1, False)])
def test_rankings_of_all_engines_look_alike(body, num, shows):
    """The best first, as many as wanted, the client's own texts, whether the engine cut and showed them or not."""
    found, _ = answer_of(body, Ranking(DOCUMENTS, num, shows))
    assert (found["id"], found["model"]) == ("rerank-req_1", "as-asked")
    best = [{"index": 1, "relevance_score": 0.75}, {"index": 2, "relevance_score": 0.5}]
    best = [*best, {"index": 0, "relevance_score": 0.25}][:num]
    texts = [{"document": {"text": DOCUMENTS[one["index"]]}} if shows else {} for one in best]
    assert found["results"] == [one | text for one, text in zip(best, texts, strict=True)]


def test_equally_good_documents_keep_their_order():
    """So that two replicas answer alike."""
    body = {"results": [{"index": index, "relevance_score": 1} for index in (2, 0, 1)]}
    found, _ = answer_of(body, Ranking(DOCUMENTS, 3, shows=False))
    assert [one["index"] for one in found["results"]] == [0, 1, 2]


@pytest.mark.parametrize(
    "results",
    [
        [], [{"index": 0, "relevance_score": 1}], [{"index": 0, "score": 1}, {"index": 0, "score": 2}],
        [{"index": 0, "score": 1}, {"index": 3, "score": 2}], [{"index": -1, "score": 1}, {"index": 0, "score": 2}],
        [{"index": 0, "score": 1}, {"index": 1}], [{"index": 0, "score": 1}, {"index": 1, "score": None}],
        [{"score": 1}, {"score": 2}], [{"index": 0, "score": 1}, {"index": "1", "score": 2}], None, "x",
    ],
)  # fmt: skip
def test_what_ranks_too_few_or_nobody_is_the_engines_fault(results):
    """Two of three were wanted."""
    assert refused({"results": results}, Ranking(DOCUMENTS, 2, shows=True)).fault is Fault.PROTOCOL


def test_scores_stand_in_the_order_of_the_pairs():
    """As vLLM has them."""
    data = [{"index": 1, "score": 0.5, "object": "score"}, {"index": 0, "score": -1}]
    found, tokens = answer_of({"data": data, "usage": {"prompt_tokens": 4}}, Scores(2))
    assert (found["id"], found["object"], found["created"], found["model"]) == (
        "score-req_1",
        "list",
        1_700_000_000,
        "as-asked",
    )
    assert found["data"] == [
        {"index": 0, "object": "score", "score": -1.0},
        {"index": 1, "object": "score", "score": 0.5},
    ]
    assert (found["usage"]["prompt_tokens"], tokens) == (4, 4)


@pytest.mark.parametrize("data", [[], [{"score": 1}], [{"score": 1}] * 3, [{"score": 1}, {"score": None}], None])
def test_what_scores_others_than_the_pairs_is_the_engines_fault(data):
    """Two were asked for."""
    assert refused({"data": data}, Scores(2)).fault is Fault.PROTOCOL


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}, (2, 64, [1, 2], None)),
        ({"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": ["a", "b"]}, (2, 64, [1, 2], ["a", "b"])),
        ({"tokens": [1, 2]}, (2, None, [1, 2], None)),
        ({"tokens": []}, (0, None, [], None)),
        ({"tokens": [{"id": 1, "piece": "a"}, {"id": 2, "piece": [195, 188]}]}, (2, None, [1, 2], ["a", "ü"])),
        ({"tokens": [{"id": 1, "piece": [255]}]}, (1, None, [1], ["\N{REPLACEMENT CHARACTER}"])),
    ],
)
def test_tokens_of_all_engines_look_alike(body, shown):
    """vLLM's shape; llama-server gives only ids, or pieces that may be bytes."""
    found, usage = answer_of(body, TokenList())
    assert tuple(found[name] for name in ("count", "max_model_len", "tokens", "token_strs")) == shown
    assert usage is None


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "a"}, "a"),
        ({"text": "b"}, "b"),
        ({"content": "c"}, "c"),
        ({"prompt": ""}, ""),
        ({"content": "ü"}, "ü"),
    ],
)
def test_texts_of_all_engines_look_alike(body, text):
    """vLLM's, SGLang's and llama-server's name for it; a text may be empty."""
    assert answer_of(body, Text()) == ({"prompt": text}, None)


@pytest.mark.parametrize("body", [{}, {"tokens": None}, {"tokens": ["a"]}, {"tokens": [{"id": 1, "piece": [256]}]},
                                  {"tokens": [1], "token_strs": []}, {"prompt": 5}, [], "x", b""])  # fmt: skip
@pytest.mark.parametrize("wanted", [TokenList(), Text()])
def test_what_has_no_tokens_or_text_is_the_engines_fault(body, wanted):
    """Another replica is tried."""
    assert refused(body, wanted).fault is Fault.PROTOCOL


@settings(deadline=None, max_examples=150)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "data",
                        "results",
                        "index",
                        "embedding",
                        "score",
                        "tokens",
                        "prompt",
                        "usage",
                        "prompt_tokens",
                        "piece",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    st.sampled_from(
        [Vectors(1, as_base64=True, dimensions=None), Ranking(("a",), 1, shows=True), Scores(1), TokenList(), Text()]
    ),
)
def test_whatever_an_engine_answers_is_an_answer_or_its_fault(body, wanted):
    """Nothing that it says is a bug of ours."""
    raw = msgspec.json.encode(body)
    try:
        answer_of(raw, wanted)
    except ReplicaError as error:
        assert error.fault is Fault.PROTOCOL  # noqa: PT017
