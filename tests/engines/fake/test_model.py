"""The fake vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.core.plan import TextModel
from engines.fake.model import BOS, IM_END, IM_START, SPECIALS, VOCAB_SIZE, FakeModel

MODEL = FakeModel()


def decoded(tokens):
    return b"".join(MODEL.piece(token) for token in tokens)


def test_is_a_text_model():
    """The worker takes it like any other."""
    model: TextModel = FakeModel("other", 64)
    assert (model.name, model.context_tokens, model.eos_text) == ("other", 64, "<|im_end|>")
    assert model.eos_ids == {BOS, IM_END}


@given(
    st.lists(
        st.one_of(st.text(max_size=12), st.sampled_from([*SPECIALS, " the", "time", "[[say ", "]]", "user\n"]))
    ).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_any_text_round_trips(text):
    """Plain encoding loses nothing, special-token text included, and never makes a control token."""
    tokens = MODEL.encode(text, special=False)
    assert decoded(tokens).decode() == text
    assert all(len(SPECIALS) <= token < VOCAB_SIZE for token in tokens)


def test_special_texts_become_control_tokens_only_when_asked():
    """A user who types a control token gets its letters."""
    assert MODEL.encode("<|im_start|>user\n", special=True)[0] == IM_START
    assert IM_START not in MODEL.encode("<|im_start|>user\n", special=False)
    assert MODEL.encode("a<|im_end|>", special=True)[-1] == IM_END


def test_control_tokens_have_no_bytes_and_strangers_raise():
    """Their text must not leak into answers; an id out of range is a bug."""
    assert [MODEL.piece(token) for token in range(len(SPECIALS))] == [b"", b"", b""]
    for token in (-1, VOCAB_SIZE):
        with pytest.raises(IndexError, match="not in the vocabulary"):
            MODEL.piece(token)


def test_common_words_are_one_token():
    """Token counts should look like a real model's, not like bytes."""
    assert len(MODEL.encode(" the people of the world", special=False)) == 5


def test_unpaired_surrogates_do_not_raise():
    """JSON can carry them; the worker may let them through."""
    assert decoded(MODEL.encode("a\ud800b", special=False)) == b"a?b"
