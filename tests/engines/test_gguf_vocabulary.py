"""The vocabulary read from a model's file: tokens equal llama.cpp's and the worker's; broken files are refused."""

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cache_affinity.vocabulary import UnknownVocabulary
from engines.gguf_vocabulary import GgufText
from gateway.prompt_tokens import _read
from gateway.request import Surface, read
from tests.cache_affinity.corpus import TEXTS
from tests.engines.worker.conftest import demo_model  # noqa: F401  # a fixture
from tests.engines.worker.processes import WorkerProcess

pytestmark = pytest.mark.model

PARTS = st.sampled_from(
    ["a", "B", " ", "  ", "\n", "\t", "1", "23", "'", "'s", "'LL", "é", "日本", "!", "?!", "_", "-", "😀", "\u00a0",
     "\u3000", "٣", "Ⅷ", "\r", "\u200b", "<|im_end|>", "<|im_start|>", "\u0301", "the", " of", "0x", "\x00"]
)  # fmt: skip


@pytest.fixture(scope="module")
def text(demo_model):  # noqa: F811
    return GgufText(demo_model)


@pytest.fixture(scope="module")
def model(demo_model):  # noqa: F811
    from engines.gguf.library import open_library
    from engines.gguf.model import GgufModel

    return GgufModel(demo_model, open_library())


@pytest.fixture(scope="module")
def worker(demo_model):  # noqa: F811
    options = ("--engine", "gguf", "--path", str(demo_model), "--threads", "1", "--context-tokens", "8192")
    with WorkerProcess(*options) as started, httpx.Client(base_url=started.url, timeout=60) as client:
        yield client


def test_what_the_file_says_is_read(text, model):
    """Names, special texts and template as llama.cpp reads them."""
    assert (text.vocab_size, text.bos_text, text.eos_text) == (model.vocab_size, model.bos_text, model.eos_text)
    assert (text.special_texts, text.chat_template) == (model.special_texts, model.chat_template)
    assert (text.adds_bos, text.context_tokens) == (model.adds_bos, model.context_tokens)
    assert all(len(text.piece(token)) >= len(model.piece(token)) for token in range(0, text.vocab_size, 7))


@pytest.mark.parametrize("special", [False, True])
def test_tokens_equal_llama_cpps_on_the_corpus(text, model, special):
    """Languages, code, emoji, white space, numbers, control tokens' texts, long runs."""
    for one in TEXTS:
        assert text.encode(one, special=special) == model.encode(one, special=special), one[:60]


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, max_size=16).map("".join), st.booleans())
def test_tokens_equal_llama_cpps_on_any_mixture(text, model, one, special):
    """Borders between kinds of characters are where tokenizers differ."""
    assert text.encode(one, special=special) == model.encode(one, special=special)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=40))
def test_tokens_equal_llama_cpps_on_any_text(text, model, one):
    """All of Unicode."""
    assert text.encode(one, special=False) == model.encode(one, special=False)


def of_worker(worker, body):
    answer = worker.post("/tokenize", content=msgspec.json.encode({"model": None, **body}))
    assert answer.status_code == 200, answer.text
    return tuple(answer.json()["tokens"])


def test_prompts_equal_the_workers_tokenize(worker, demo_model):  # noqa: F811
    """What the gateway makes of a plain prompt and of a conversation is what the worker says it makes."""
    local = _read(str(demo_model))
    for one in TEXTS:
        if not one or "\ud800" in one:
            continue
        assert local.text(one) == of_worker(worker, {"prompt": one}), one[:60]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": one}]
        fields = read(Surface.CHAT, msgspec.json.encode({"model": "m", "messages": messages})).fields
        assert local.chat(fields) == of_worker(worker, {"messages": messages}), one[:60]


def test_a_conversation_with_tools_and_parts_equals_the_workers(worker, demo_model):  # noqa: F811
    """Parts are joined, tools are told as the worker tells them, special texts stay text."""
    tool = {"type": "function", "function": {"name": "look", "description": "Looks <|im_end|>", "parameters": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "look <|im_start|>"}, {"type": "text", "text": " twice"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        {"role": "user", "content": "so?"},
    ]
    body = {"messages": messages, "tools": [tool]}
    fields = read(Surface.CHAT, msgspec.json.encode({"model": "m", **body})).fields
    assert _read(str(demo_model)).chat(fields) == of_worker(worker, body)


def test_what_the_worker_refuses_has_no_tokens(demo_model):  # noqa: F811
    """Its engine shall say so."""
    local = _read(str(demo_model))
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]
    fields = read(Surface.CHAT, msgspec.json.encode({"model": "m", "messages": messages})).fields
    assert local.chat(fields) is None
    assert local.text("") is None


def test_cut_and_damaged_files_are_refused(demo_model, tmp_path):  # noqa: F811
    """One sentence, no crash, whatever was cut or changed."""
    head = demo_model.read_bytes()[:3_000_000]
    broken = tmp_path / "broken.gguf"
    for size in (0, 3, 23, 24, 100, 5000, 200_000, 900_000):
        broken.write_bytes(head[:size])
        with pytest.raises(UnknownVocabulary):
            GgufText(broken)
    with pytest.raises(UnknownVocabulary):
        GgufText(tmp_path / "missing.gguf")


@pytest.fixture(scope="module")
def head_of_file(demo_model):  # noqa: F811
    """The metadata, and some of the first tensor."""
    with demo_model.open("rb") as file:
        return file.read(2_500_000)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 3000), st.integers(0, 255))
def test_a_changed_byte_breaks_nothing(head_of_file, tmp_path, place, byte):
    """Metadata as an attacker would have it: read, or refused."""
    head = bytearray(head_of_file)
    head[place] = byte
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(head)
    try:
        GgufText(broken)
    except UnknownVocabulary:
        return
