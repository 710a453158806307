"""A model's tokenizer.json gives the tokens that engines make of it, and its template their prompts."""

import builtins
import json

import msgspec
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from cache_affinity.vocabulary import UnknownVocabulary
from engines.json_vocabulary import CONFIG, TEMPLATE, TOKENIZER, JsonText, is_json_vocabulary
from gateway.prompt_tokens import _read
from gateway.request import Surface, read
from tests.cache_affinity.corpus import TEXTS

SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
CHAT = "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}</s>{% endfor %}<|assistant|>"
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level():
    """Of the kind of Llama 3, with a token of the beginning."""
    made = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text for text in TEXTS if len(text) < 2000 and "\ud800" not in text], trainer)
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    return made


def sentence_piece():
    """Of the kind of Llama 2 and Gemma: no byte-level spelling, a normaliser, no token of the beginning."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=SPECIAL, unk_token="</s>", show_progress=False)
    made.train_from_iterator([text for text in TEXTS if len(text) < 2000 and "\ud800" not in text], trainer)
    return made


@pytest.fixture(scope="module", params=[byte_level, sentence_piece])
def model(request, tmp_path_factory):
    """(the library's tokenizer, its folder)."""
    folder = tmp_path_factory.mktemp("model")
    made = request.param()
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    made.save(str(folder / TOKENIZER))
    bos = {"content": "<s>", "special": True}
    config = {"bos_token": bos, "eos_token": "</s>", "chat_template": [{"name": "default", "template": CHAT}]}
    (folder / CONFIG).write_text(json.dumps(config))
    return made, folder


def test_tokens_are_the_librarys_on_the_corpus(model):
    """Texts of control tokens become them wherever they stand, as in vLLM."""
    made, folder = model
    text = JsonText(folder)
    for one in TEXTS:
        plain = one.encode(errors="replace").decode()
        expected = made.encode(plain, add_special_tokens=False).ids
        assert text.encode(one, special=True) == text.encode(one, special=False) == expected, one[:60]
    assert text.vocab_size == made.get_vocab_size()
    assert (text.bos_text, text.eos_text, text.chat_template) == ("<s>", "</s>", CHAT)


def test_prompts_are_the_engines(model):
    """A plain prompt with what the file puts before it, a conversation by the template alone."""
    made, folder = model
    local = _read(str(folder / TOKENIZER))
    assert local.text("Hello there") == tuple(made.encode("Hello there").ids)
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi <|user|> you"}]}
    rendered = "<s><|user|>Hi <|user|> you</s><|assistant|>"
    expected = tuple(made.encode(rendered, add_special_tokens=False).ids)
    assert local.chat(read(Surface.CHAT, msgspec.json.encode(body)).fields) == expected


def test_a_template_in_a_file_of_its_own_counts(model, tmp_path):
    """As newer models have it."""
    _, folder = model
    (tmp_path / TOKENIZER).write_bytes((folder / TOKENIZER).read_bytes())
    assert JsonText(tmp_path).chat_template is None
    (tmp_path / TEMPLATE).write_text("{{ messages[0].content }}")
    assert JsonText(tmp_path / TOKENIZER).chat_template == "{{ messages[0].content }}"
    assert is_json_vocabulary(tmp_path)
    assert not is_json_vocabulary(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("name", "content"),
    [(TOKENIZER, "{"), (TOKENIZER, "{}"), (TOKENIZER, "\ufffe"), (CONFIG, "{"), (CONFIG, "[" * 100_000)],
)
def test_broken_files_are_refused_with_their_name(model, tmp_path, name, content):
    """Then routing goes by what was sent, and the log says why."""
    _, folder = model
    (tmp_path / TOKENIZER).write_bytes((folder / TOKENIZER).read_bytes())
    (tmp_path / name).write_text(content)
    with pytest.raises(UnknownVocabulary, match=name):
        JsonText(tmp_path)


def test_a_missing_file_and_a_missing_library_are_told(model, tmp_path, monkeypatch):
    """What to install, and what was looked for."""
    with pytest.raises(UnknownVocabulary, match=r"tokenizer\.json"):
        JsonText(tmp_path / TOKENIZER)
    original = builtins.__import__

    def without(name, *rest):
        if name == "tokenizers":
            raise ImportError
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UnknownVocabulary, match=r"pip install warmlane\[tokenizers\]"):
        JsonText(model[1])
