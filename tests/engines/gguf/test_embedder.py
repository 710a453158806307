"""Embeddings and rerank scores: the demo model's means, and tiny models of each pooling."""

import contextlib

import numpy as np
import pytest

from engines.gguf.embedder import EmbedderSettings, GgufEmbedder
from engines.gguf.header import ModelFileError
from engines.gguf.library import open_library
from engines.gguf.model import GgufModel
from engines.gguf.tiny_model import write_tiny_model
from tests.engines.gguf.tiny_bert import write_tiny_bert


@pytest.fixture
def tiny(tmp_path):
    """Opens an embedder on a tiny model of the pooling asked for."""
    with contextlib.ExitStack() as stack:

        def opened(pooling=None, **sizes):
            path = tmp_path / f"tiny{pooling}.gguf"
            write_tiny_model(path, pooling=pooling)
            model = GgufModel(path, open_library(), embeds=True)
            return stack.enter_context(contextlib.closing(GgufEmbedder(model, EmbedderSettings(**sizes))))

        yield opened


@pytest.fixture
def bert(tmp_path):
    """Opens an embedder on a tiny BERT; with a head it ranks."""
    with contextlib.ExitStack() as stack:

        def opened(*, ranks=False, **sizes):
            path = tmp_path / f"bert{ranks}.gguf"
            write_tiny_bert(path, ranks=ranks)
            model = GgufModel(path, open_library(), embeds=True)
            return stack.enter_context(contextlib.closing(GgufEmbedder(model, EmbedderSettings(**sizes))))

        yield opened


@pytest.mark.model
def test_the_demo_models_means_know_what_is_alike(model):
    """A model that generates serves embeddings too; two sentences on one thing are nearer than a third."""
    with contextlib.closing(GgufEmbedder(model, EmbedderSettings(max_input_tokens=128))) as embedder:
        texts = ["A cat sits on the mat.", "A kitten lies on a rug.", "Stock prices fell today."]
        vectors = embedder.embed([embedder.text_tokens(text) for text in texts])
    assert vectors.shape == (3, 576)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > max(vectors[0] @ vectors[2], vectors[1] @ vectors[2])


@pytest.mark.parametrize("pooling", [None, 1, 2, 3])
def test_batched_inputs_are_embedded_as_alone(tiny, pooling):
    """What else is in the call changes nothing, whatever the pooling, across several calls of the library."""
    embedder = tiny(pooling, max_input_tokens=40, max_batch_inputs=4)
    inputs = [embedder.text_tokens("word" * (1 + n % 9)) for n in range(11)]
    together = embedder.embed(inputs)
    assert together.shape == (11, 32)
    assert together.dtype == np.float32
    for tokens, vector in zip(inputs, together, strict=True):
        np.testing.assert_allclose(embedder.embed([tokens])[0], vector, atol=1e-4)


def test_each_pooling_is_another_vector(tiny):
    """The file's own way is the one taken."""
    vectors = [tiny(pooling).embed([[72, 101, 108, 108]])[0] for pooling in (1, 2, 3)]
    assert max(vectors[0] @ vectors[1], vectors[0] @ vectors[2], vectors[1] @ vectors[2]) < 0.999


def test_a_bert_embeds_with_its_marks_around_a_text(bert):
    """An encoder without KV: every token sees all others, so the order of words matters to all of them."""
    embedder = bert()
    tokens = embedder.text_tokens("hello world")
    assert tokens == [2, 5, 6, 3]
    assert not embedder.can_rank
    one, other = embedder.embed([tokens, [2, 6, 5, 3]])
    assert one @ other < 0.9999
    np.testing.assert_allclose(embedder.embed([tokens])[0], one, atol=1e-5)
    with pytest.raises(ValueError, match="ranks no documents"):
        embedder.rank([tokens])


def test_a_rerank_model_scores_pairs(bert):
    """One number for each pair, the same alone and in a batch."""
    embedder = bert(ranks=True, max_batch_inputs=3)
    assert embedder.can_rank
    pairs = [embedder.pair_tokens("hello", document) for document in ("world", "hello", "hello world", "cat")]
    assert pairs[0] == [2, 5, 3, 6, 3]
    scores = embedder.rank(pairs)
    assert scores.shape == (4,)
    assert len(set(scores.tolist())) == 4
    for pair, score in zip(pairs, scores, strict=True):
        np.testing.assert_allclose(embedder.rank([pair])[0], score, atol=1e-4)
    with pytest.raises(ValueError, match="gives no embeddings"):
        embedder.embed(pairs)


@pytest.mark.parametrize("tokens", [[], [1] * 41, [259], [-1]])
def test_an_input_that_cannot_be_is_refused(tiny, tokens):
    """The library would end the process."""
    embedder = tiny(max_input_tokens=40)
    with pytest.raises(ValueError, match="an input has"):
        embedder.embed([[1, 2], tokens])
    assert embedder.embed([[1, 2]]).shape == (1, 32)


def test_no_inputs_give_no_rows(tiny):
    """An empty list is an answer."""
    assert tiny().embed([]).shape == (0, 32)


def test_the_longest_input_is_the_models_context_at_most(tiny):
    """A setting above it promises nothing."""
    embedder = tiny(max_input_tokens=100_000)
    assert embedder.max_input_tokens == 256
    assert embedder.embed([[5] * 256]).shape == (1, 32)


def test_a_bert_generates_no_text(tmp_path):
    """A model without a next token is refused as a generator, with its kind."""
    write_tiny_bert(tmp_path / "bert.gguf", ranks=False)
    with pytest.raises(ModelFileError, match=r"\(bert\) embeds or ranks texts"):
        GgufModel(tmp_path / "bert.gguf", open_library())


def test_a_closed_embedder_is_closed_twice_and_never_used_again(tiny):
    """Every end is harmless."""
    embedder = tiny()
    embedder.close()
    embedder.close()
    assert "closed" in repr(embedder)
    with pytest.raises(AssertionError, match="closed"):
        embedder.embed([[1]])


@pytest.mark.parametrize("sizes", [{"max_input_tokens": 0}, {"max_batch_inputs": 65}, {"threads": 0}])
def test_sizes_that_cannot_be_are_refused(sizes):
    """Each bound has its sentence."""
    with pytest.raises(ValueError, match=r"\d+"):
        EmbedderSettings(**sizes)
