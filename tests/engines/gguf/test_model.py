"""The vocabulary and template of a real model."""

import threading

import pytest

pytestmark = pytest.mark.model

_TEXTS = [
    "Hello, world!",
    "Zażółć gęślą jaźń; Ελληνικά; Русский; العربية; हिन्दी; 日本語と漢字; 한국어; ไทย",
    "🫖👩‍👩‍👧‍👦🇳🇿 e\u0301 \u200b\u202e",
    "def f(x):\n\treturn {**x, 'a': [1, 2.5e-3]}  # ok\r\n\n\n",
    "  leading, trailing and   inner   spaces  ",
    "<|im_start", "|im_end|>", "< |im_end| >", "<|IM_END|>", "\x00\x01\x7f", "<s></s>[INST]",
]  # fmt: skip


def _text(model, tokens):
    return b"".join(model.piece(token) for token in tokens).decode()


@pytest.mark.parametrize("text", _TEXTS)
def test_text_round_trips(model, text):
    """What a client sends is what the model sees, in every language."""
    assert _text(model, model.encode(text, special=False)) == text
    assert _text(model, model.encode(text, special=True)) == text


def test_users_text_never_becomes_a_control_token(model):
    """A message that spells a control token must not end its turn (case P48)."""
    control = {token for text in model.special_texts for token in model.encode(text, special=True)}
    assert control
    for mark in sorted(model.special_texts):
        for text in (mark, f"a{mark}b", f"{mark}{mark}", f"\n{mark} ", mark[:-1] + mark, mark * 1000):
            tokens = model.encode(text, special=False)
            assert control.isdisjoint(tokens)
            assert _text(model, tokens) == text


def test_templates_text_becomes_control_tokens(model):
    """With `special` each mark is one token, whose bytes are empty."""
    for mark in model.special_texts:
        (token,) = model.encode(mark, special=True)
        assert model.piece(token) == b""
    assert len(model.encode("<|im_start|>user", special=True)) == 2


def test_what_the_file_says_of_itself(model):
    """The worker's admission, template and stopping stand on these."""
    assert model.name == "smollm2-135m-instruct"
    assert model.context_tokens == 8192
    assert model.vocab_size == 49152
    assert model.adds_bos is False
    assert (model.bos_text, model.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert {2, 0} <= model.eos_ids
    assert model.chat_template is not None
    assert "add_generation_prompt" in model.chat_template
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= model.special_texts


def test_nothing_encodes_to_nothing(model):
    """No BOS of ours is added."""
    assert model.encode("", special=True) == []
    assert model.encode("", special=False) == []


def test_half_a_surrogate_pair_is_a_question_mark(model):
    """Such text has no UTF-8 form; it must not become an error deep inside a request."""
    assert _text(model, model.encode("a\ud83db", special=False)) == "a?b"


@pytest.mark.parametrize("token", [-1, 49152, 1 << 40])
def test_a_token_outside_the_vocabulary_is_refused(model, token):
    """The library would end the process."""
    with pytest.raises(ValueError, match="not in a vocabulary"):
        model.piece(token)


def test_long_text_is_cut_without_changing_its_tokens(model):
    """Texts with word borders give the very tokens they give in one go."""
    text = "The quick brown fox jumps over 13 lazy dogs; (twice!)\n\tdef f(): pass\n" * 300
    assert model.encode(text, special=False) == model._encode_piece(text, special=False)


@pytest.mark.parametrize("letter", ["a", "1", " ", "\n", "漢", "🫖"])
def test_a_long_run_of_one_letter_is_encoded(model, letter):
    """The pre-tokenizers of some models recurse once a letter and would overflow the stack."""
    text = letter * 100_000
    assert _text(model, model.encode(text, special=False)) == text


def test_threads_encode_at_the_same_time(model):
    """API threads share one model."""
    expected = [model.encode(text, special=False) for text in _TEXTS]
    wrong = []

    def work():
        for _ in range(50):
            if [model.encode(text, special=False) for text in _TEXTS] != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
