"""Every kind of vocabulary that is known here is cut as llama.cpp cuts it."""

from dataclasses import replace

import gguf
import pytest

from cache_affinity.tokens import Tokenizer
from cache_affinity.vocabulary import UnknownVocabulary, spelled
from cache_affinity.word_patterns import WORD_PATTERNS
from engines.gguf.library import open_library
from engines.gguf_vocabulary import GgufText
from tests.cache_affinity.pair_vocabulary import CONTROL, mixtures, pair_vocabulary

FAMILIES = sorted({pattern: kind for kind, pattern in WORD_PATTERNS.items()}.values())


class Vocabulary:
    """A file's vocabulary in llama.cpp, without weights."""

    def __init__(self, path, library):
        self._c, self._ffi = library.c, library.ffi
        params = self._c.llama_model_default_params()
        params.vocab_only = True
        self._model = self._c.llama_model_load_from_file(str(path).encode(), params)
        assert self._model != self._ffi.NULL
        self._vocab = self._c.llama_model_get_vocab(self._model)

    def encode(self, text, *, special):
        """Its tokens."""
        content = text.encode(errors="replace")
        room = len(content) + 8
        tokens = self._ffi.new("llama_token[]", room)
        num = self._c.llama_tokenize(self._vocab, content, len(content), tokens, room, False, special)
        return list(tokens[0:num])

    @property
    def adds_bos(self):
        """Whether a plain prompt begins with a token of its own."""
        return self._c.llama_vocab_get_add_bos(self._vocab)

    def close(self):
        """Free it."""
        self._c.llama_model_free(self._model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabularies")


def write(path, kind, more=()):
    """A GGUF file of no tensors, with the pair vocabulary as one of this kind and `more` tokens that no merge makes."""
    vocabulary = pair_vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    texts = [*vocabulary.texts, *more]
    writer.add_token_list(texts)
    writer.add_token_types([3 if token in vocabulary.special else 1 for token in range(len(texts))])
    writer.add_token_merges([" ".join(merge) for merge in vocabulary.merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", sorted(WORD_PATTERNS))
def test_tokens_equal_llama_cpps_for_every_kind(kind, folder):
    """Over languages, code, numbers, white space and mixtures of what tokenizers cut differently."""
    path = folder / f"{kind}.gguf"
    write(path, kind)
    local, engine = GgufText(path), Vocabulary(path, open_library())
    try:
        assert local.adds_bos == engine.adds_bos
        for number, text in enumerate(mixtures()):
            special = number % 2 == 0
            assert local.encode(text, special=special) == engine.encode(text, special=special), text[:60]
    finally:
        engine.close()


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_texts_tell_kinds_apart(kind):
    """A test of equality that any pattern passes would say nothing."""
    own = Tokenizer(replace(pair_vocabulary(), pre=kind))
    texts = [text for text in mixtures() if CONTROL not in text][:400]
    for other in FAMILIES:
        if other != kind:
            theirs = Tokenizer(replace(pair_vocabulary(), pre=other))
            assert sum(own.encode(one, special=False) != theirs.encode(one, special=False) for one in texts) >= 5, other


@pytest.mark.parametrize("kind", sorted(WORD_PATTERNS))
def test_a_word_that_no_merge_makes_is_cut_as_by_llama_cpp_or_refused(kind, folder):
    """Some kinds take a word for the token it is, others go by merges alone."""
    path = folder / f"{kind}-more.gguf"
    write(path, kind, more=(spelled(b" theof"), spelled(b"theof")))
    engine = Vocabulary(path, open_library())
    takes_words = len(engine.encode("theof", special=False)) == 1
    try:
        local = GgufText(path)
    except UnknownVocabulary:
        assert takes_words
    else:
        assert not takes_words
        assert local.encode("a theof 12", special=False) == engine.encode("a theof 12", special=False)
    finally:
        engine.close()
