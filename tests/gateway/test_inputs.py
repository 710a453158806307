"""What is asked of the surfaces that generate no text: bounds, names of what is wrong, and how much is to be read."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import surfaces
from gateway.errors import ClientError
from gateway.inputs import MAX_INPUTS
from gateway.request import FORMS, GENERATING, Surface, read
from gateway.wanted import Ranking, Scores, Text, TokenList, Vectors
from policies.lane import Lane

INPUT_SURFACES = [surface for surface in Surface if surface not in GENERATING + FORMS]


def asked(surface, **fields):
    """What a body of these fields asks for."""
    return read(surface, json.dumps({"model": "m", **fields}).encode()).inputs


def embedded(texts, **fields):
    return asked(Surface.EMBEDDINGS, input=texts, **fields)


def ranked(**fields):
    return asked(Surface.RERANK, **{"query": "abc", "documents": ["de", "f"]} | fields)


def scored(first, second):
    return asked(Surface.SCORE, text_1=first, text_2=second)


def refused(surface, **fields):
    """(field, sentence) of the refusal."""
    with pytest.raises(ClientError) as caught:
        asked(surface, **fields)
    assert caught.value.problem.status == 400
    return caught.value.problem.param, caught.value.problem.message


@pytest.mark.parametrize(
    ("texts", "num", "num_bytes", "num_tokens"),
    [
        ("Hello", 1, 5, None),
        (["Hello", "wörld"], 2, 11, None),
        ([1, 2, 3], 1, 0, 3),
        ([[1, 2], [3]], 2, 0, 3),
        (["x"] * MAX_INPUTS, MAX_INPUTS, MAX_INPUTS, None),
        (list(range(10_000)), 1, 0, 10_000),
    ],
)
def test_texts_and_tokens_to_embed_are_counted(texts, num, num_bytes, num_tokens):
    """One text, several, tokens of one, tokens of several; escapes count as what they stand for."""
    found = embedded(texts)
    assert (found.surface, found.wanted.num) == (surfaces.EMBEDDINGS, num)
    assert (found.num_bytes, found.num_tokens, found.is_free) == (num_bytes, num_tokens, False)


@pytest.mark.parametrize(
    "texts",
    [None, "", [], [""], ["a", ""], [[]], [[1], []], ["a", 1], [1, "a"], ["a", [1]], [1, [1]], 5, True, {"a": 1},
     [-1], [2**31], [1.5], [None], [[["a"]]], ["x"] * (MAX_INPUTS + 1), [[1]] * (MAX_INPUTS + 1)],
)  # fmt: skip
def test_what_is_no_input_is_refused_by_name(texts):
    """OpenAI's rules: nothing empty, nothing mixed, at most 2,048."""
    param, message = refused(Surface.EMBEDDINGS, input=texts)
    assert param == "input"
    assert len(message) < 300


def test_the_number_that_is_too_much_is_told():
    """With the most that may come."""
    assert "2048" in (told := refused(Surface.EMBEDDINGS, input=["x"] * 3000)[1])
    assert "3000" in told
    assert refused(Surface.EMBEDDINGS, input=["a", "b", ""])[1] == "input[2] is empty"


LARGE = 300_000  # bytes, above which a body is looked through before it is read


@pytest.mark.parametrize(
    ("surface", "name", "items", "told"),
    [
        (Surface.EMBEDDINGS, "input", ["a"] * LARGE, "at least 300000"),
        (Surface.EMBEDDINGS, "input", [[1]] * LARGE, "at least 300000"),
        (Surface.EMBEDDINGS, "input", ["a", *[[1]] * LARGE], "$[1]"),
        (Surface.EMBEDDINGS, "input", [[1], *["a"] * LARGE], "at least 300000"),
        (Surface.RERANK, "documents", ["a"] * LARGE, "at least 150000"),
        (Surface.RERANK, "documents", [{"text": "a"}] * LARGE, "at least 300000"),
        (Surface.SCORE, "text_2", ["\\"] * LARGE, "at least 150000"),
    ],
)
def test_far_too_many_are_refused_before_they_are_made(surface, name, items, told):
    """A few million lists take more than a second, in which nobody else would be served."""
    others = {Surface.RERANK: {"query": "q"}, Surface.SCORE: {"text_1": "a"}}.get(surface, {})
    param, message = refused(surface, **others, **{name: items})
    assert param == name
    assert told in message


@pytest.mark.parametrize(
    ("surface", "fields", "num"),
    [
        (Surface.EMBEDDINGS, {"input": ['"[]"' * LARGE]}, 1),
        (Surface.EMBEDDINGS, {"input": '"[]"' * LARGE}, 1),
        (Surface.EMBEDDINGS, {"input": [1] * LARGE}, 1),
        (Surface.EMBEDDINGS, {"input": [[1] * 200] * MAX_INPUTS}, MAX_INPUTS),
        (Surface.EMBEDDINGS, {"input": ['a"b[]' * 40] * MAX_INPUTS}, MAX_INPUTS),
        (Surface.SCORE, {"text_1": "a", "text_2": ["]" * LARGE]}, 1),
    ],
)
def test_many_bytes_of_few_inputs_are_not_too_many(surface, fields, num):
    """Whatever marks their texts hold."""
    assert asked(surface, **fields).wanted.num == num


def test_documents_of_many_bytes_are_not_too_many():
    """As texts and as objects."""
    for document in ("]" * LARGE, {"text": '"]' * LARGE}):
        assert len(asked(Surface.RERANK, query="a", documents=[document]).wanted.documents) == 1
    objects = [{"text": '"x"' * 50}] * MAX_INPUTS
    assert asked(Surface.RERANK, query="a", documents=objects).wanted.num == MAX_INPUTS


@pytest.mark.parametrize(
    ("fields", "as_base64", "dimensions"),
    [
        ({}, False, None),
        ({"encoding_format": None, "dimensions": None}, False, None),
        ({"encoding_format": "float", "dimensions": 1}, False, 1),
        ({"encoding_format": "base64", "dimensions": 65_536}, True, 65_536),
    ],
)
def test_form_and_dimensions_are_understood(fields, as_base64, dimensions):
    """Floats unless base64 is asked for."""
    assert embedded("a", **fields).wanted == Vectors(1, as_base64, dimensions)


@pytest.mark.parametrize(
    ("surface", "fields", "param"),
    [
        (Surface.EMBEDDINGS, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        (Surface.EMBEDDINGS, {"input": "a", "encoding_format": 1}, "encoding_format"),
        (Surface.EMBEDDINGS, {"input": "a", "dimensions": 0}, "dimensions"),
        (Surface.EMBEDDINGS, {"input": "a", "dimensions": 65_537}, "dimensions"),
        (Surface.EMBEDDINGS, {"input": "a", "dimensions": "8"}, "dimensions"),
        (Surface.EMBEDDINGS, {}, "input"),
        (Surface.RERANK, {"documents": ["a"]}, "query"),
        (Surface.RERANK, {"query": "", "documents": ["a"]}, "query"),
        (Surface.RERANK, {"query": ["a"], "documents": ["a"]}, "query"),
        (Surface.RERANK, {"query": "a"}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": []}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": "b"}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": ["b", ""]}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": [{"text": ""}]}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": [{"image": "data:x"}]}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": [{"text": "b", "image": "http://10.0.0.1"}]}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": [{"content": [{"type": "text"}]}]}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": ["b"] * (MAX_INPUTS + 1)}, "documents"),
        (Surface.RERANK, {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        (Surface.RERANK, {"query": "a", "documents": ["b"], "top_n": "1"}, "top_n"),
        (Surface.RERANK, {"query": "a", "documents": ["b"], "return_documents": 1}, "return_documents"),
        (Surface.SCORE, {"text_2": "a"}, "text_1"),
        (Surface.SCORE, {"text_1": "a"}, "text_2"),
        (Surface.SCORE, {"text_1": "a", "text_2": []}, "text_2"),
        (Surface.SCORE, {"text_1": "a", "text_2": ["b", ""]}, "text_2"),
        (Surface.SCORE, {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        (Surface.SCORE, {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        (Surface.SCORE, {"text_1": {"content": []}, "text_2": "a"}, "text_1"),
        (Surface.SCORE, {"text_1": "a", "text_2": ["b"] * (MAX_INPUTS + 1)}, "text_2"),
        (Surface.TOKENIZE, {}, "prompt"),
        (Surface.TOKENIZE, {"prompt": "a", "messages": []}, "prompt"),
        (Surface.TOKENIZE, {"prompt": ["a"]}, "prompt"),
        (Surface.TOKENIZE, {"messages": []}, "messages"),
        (Surface.TOKENIZE, {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        (Surface.TOKENIZE, {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        (Surface.DETOKENIZE, {}, "tokens"),
        (Surface.DETOKENIZE, {"tokens": "a"}, "tokens"),
        (Surface.DETOKENIZE, {"tokens": [[1]]}, "tokens"),
        (Surface.DETOKENIZE, {"tokens": [-1]}, "tokens"),
        (Surface.DETOKENIZE, {"tokens": [1] * 2_000_000}, "tokens"),
    ],
)  # fmt: skip
def test_every_other_fault_names_its_field(surface, fields, param):
    """So that a caller can mend it without asking an engine."""
    assert refused(surface, **fields)[0] == param


@pytest.mark.parametrize("surface", INPUT_SURFACES)
def test_what_holds_for_every_surface_holds_here(surface):
    """A model, no stream, and the lane that `service_tier` asks for."""
    body = {Surface.EMBEDDINGS: {"input": "a"}, Surface.RERANK: {"query": "a", "documents": ["b"]},
            Surface.SCORE: {"text_1": "a", "text_2": "b"}, Surface.TOKENIZE: {"prompt": "a"},
            Surface.DETOKENIZE: {"tokens": [1]}, Surface.INPUT_TOKENS: {"input": "a"},
            Surface.COUNT_TOKENS: {"messages": [{"role": "user", "content": "a"}]}}[surface]  # fmt: skip
    assert refused(surface, **body, stream=True)[0] == "stream"
    assert refused(surface, **body, service_tier="gold")[0] == "service_tier"
    with pytest.raises(ClientError) as caught:
        read(surface, json.dumps(body).encode())
    assert caught.value.problem.param == "model"
    found = read(surface, json.dumps({"model": "m", "stream": False, "service_tier": "flex", **body}).encode())
    assert (found.tier_lane, found.is_streaming, found.segments) == (Lane.BULK, False, ())


@pytest.mark.parametrize(
    ("fields", "num", "shows"),
    [({}, 2, True), ({"top_n": 1}, 1, True), ({"top_n": 9}, 2, True), ({"return_documents": False}, 2, False)],
)
def test_a_ranking_has_as_many_as_are_wanted(fields, num, shows):
    """Documents are shown unless that is declined."""
    assert ranked(**fields).wanted == Ranking(("de", "f"), num, shows)


def test_the_query_is_read_with_every_document():
    """So it counts with each of them, for a limit as for the engine."""
    assert ranked().num_bytes == 2 * 3 + 3
    assert scored("abc", ["de", "f"]).num_bytes == 2 * 3 + 3
    assert scored(["abc", "x"], ["de", "f"]).num_bytes == 4 + 3
    assert scored("abc", "de").wanted == Scores(1)


def test_documents_as_objects_become_texts():
    """The only form that every engine takes."""
    body = {"model": "m", "query": "q", "documents": [{"text": "a"}, "b", {"text": "ü"}]}
    request = read(Surface.RERANK, json.dumps(body).encode())
    assert json.loads(bytes(request.fields["documents"])) == ["a", "b", "ü"]
    assert request.inputs.wanted.documents == ("a", "b", "ü")


def test_the_tokenizer_is_free():
    """No model is run, so no tokens are charged; messages are looked through as in a chat."""
    found = asked(Surface.TOKENIZE, prompt="")
    assert (found.surface, found.wanted, found.is_free) == (surfaces.TOKENIZE, TokenList(), True)
    found = asked(Surface.TOKENIZE, messages=[{"role": "user", "content": "a"}])
    assert (found.surface, found.is_free) == (surfaces.TOKENIZE_CHAT, True)
    assert asked(Surface.DETOKENIZE, tokens=[]).wanted == Text()
    picture = [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}]
    assert refused(Surface.TOKENIZE, messages=[{"role": "user", "content": picture}])[0] == "messages"


NAMES = st.sampled_from(
    ["model", "input", "encoding_format", "dimensions", "query", "documents", "top_n", "return_documents", "text_1",
     "text_2", "prompt", "messages", "tokens", "add_special_tokens", "stream", "service_tier"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.just("text"), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.sampled_from(INPUT_SURFACES))
def test_whatever_comes_is_read_or_refused(fields, surface):
    """No body is a bug of ours."""
    with contextlib.suppress(ClientError):
        assert read(surface, json.dumps({"model": "m"} | fields).encode()).inputs.num_bytes >= 0
