"""The surfaces that generate no text: which engine has which, where, and what of a body it is sent."""

import json

import msgspec
import pytest

from engines.adapters import ADAPTERS, adapter_for, surfaces
from engines.contract import Steering
from policies.lane import Lane

SALT = "0f" * 16
ALL = (*surfaces.OWN_FIELDS,)
PASSED = {  # what an engine may read of each surface, whichever it is
    surfaces.EMBEDDINGS: {"input": ["a"], "encoding_format": "base64", "dimensions": 8},
    surfaces.RERANK: {"query": "a", "documents": ["b"], "top_n": 1, "return_documents": False},
    surfaces.SCORE: {"text_1": "a", "text_2": ["b"]},
    surfaces.TOKENIZE: {"prompt": "a", "add_special_tokens": False, "return_token_strs": True},
    surfaces.TOKENIZE_CHAT: {"messages": [], "add_generation_prompt": True, "chat_template_kwargs": {"thinking": True}},
    surfaces.DETOKENIZE: {"tokens": [1]},
}
DANGEROUS = {  # each makes some engine fetch what a client names, choose a place, or answer in another shape
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}],
    "data_1": {"content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]},
    "queries": "x", "items": ["x"], "task": "token_embed", "embed_dtype": "float16", "endianness": "big",
    "chat_template": "x", "mm_processor_kwargs": {}, "cache_salt": "theirs", "priority": 9, "request_id": "x",
    "stream": False, "stream_options": None, "extra_body": {}, "Model": "other",
}  # fmt: skip


def sent(kind, surface, fields):
    """The upstream body as an object."""
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    steering = Steering("real", Lane.STANDARD, SALT, "a-1", is_streaming=False, surface=surface)
    return json.loads(adapter_for(kind).body(raw, steering))


@pytest.mark.parametrize(
    ("kind", "surface"),
    [(kind, surface) for kind in sorted(ADAPTERS) for surface in ADAPTERS[kind].paths if surface in PASSED],
)
def test_what_belongs_to_the_surface_is_passed_on_and_nothing_else(kind, surface):
    """An allow-list for every engine; the model is the one that the engine serves."""
    fields = {"model": "asked"} | DANGEROUS | PASSED[surface]
    found = sent(kind, surface, fields)
    assert found.pop("model") == "real"
    if kind == "llama-server" and surface == surfaces.TOKENIZE:
        assert found == {"content": "a", "add_special": False, "with_pieces": True}
        return
    own = {} if surface in surfaces.TEXT_SURFACES else json.loads(sent_own(kind))
    assert found == PASSED[surface] | own


def sent_own(kind):
    """What the gateway itself adds for this engine."""
    steering = Steering("real", Lane.STANDARD, SALT, "a-1", is_streaming=False)
    return msgspec.json.encode(adapter_for(kind).own_fields(steering))


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ("warmlane", set(ALL)),
        ("vllm", set(ALL) | surfaces.FORM_SURFACES),
        ("llama-server", set(ALL) - {surfaces.SCORE, surfaces.TOKENIZE_CHAT} | {surfaces.TRANSCRIPTIONS}),
        ("openai", {surfaces.EMBEDDINGS, surfaces.RERANK} | surfaces.FORM_SURFACES),
    ],
)
def test_each_engine_has_its_endpoints(kind, has):
    """llama-server scores no pairs and its /tokenize knows no chat; providers have no tokenizer; our workers are deaf."""
    paths = adapter_for(kind).paths
    assert paths.keys() == has
    assert all(path.startswith("/") and " " not in path for path in paths.values())
    assert all(paths[one] in {"/tokenize", "/detokenize"} for one in surfaces.TEXT_SURFACES & paths.keys())


@pytest.mark.parametrize("given", [{}, {"add_special_tokens": None}, {"add_special_tokens": True}])
def test_llama_server_adds_special_tokens_unless_told_not_to(given):
    """As vLLM and our worker do by themselves; its own default is the other one."""
    assert sent("llama-server", surfaces.TOKENIZE, {"prompt": "a"} | given)["add_special"] is True


@pytest.mark.parametrize("kind", ["vllm", "warmlane"])
def test_vllms_ways_of_reading_a_text_are_passed_on_to_who_may_know_them(kind):
    """They change no answer's shape. A provider outside the house gets the standard alone."""
    extras = {"truncate_prompt_tokens": 8, "add_special_tokens": False, "user": "anna"}
    body = {"input": "a"} | extras
    assert extras.items() <= sent(kind, surfaces.EMBEDDINGS, body).items()
    assert sent("openai", surfaces.EMBEDDINGS, body) == {"model": "real", "input": "a"}


def test_a_template_cannot_be_replaced_by_its_variables():
    """As in a chat."""
    body = {"messages": [], "chat_template_kwargs": {"chat_template": "x", "thinking": True}}
    assert sent("vllm", surfaces.TOKENIZE_CHAT, body)["chat_template_kwargs"] == {"thinking": True}
