"""Which requests are the same: every word that an engine reads counts, and no project's is another's."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fields import LARGE_BYTES
from gateway.request import Surface, read
from gateway.response_cache.key import cache_key, is_repeatable, wish_of
from policies.tenant import Limits, ResponseCaching, Tenant

TENANT = Tenant("p", "o", "salt", Limits(response_cache=ResponseCaching.ALL))
REPEATABLE = replace(TENANT, limits=Limits(response_cache=ResponseCaching.REPEATABLE))
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), lambda x: st.lists(x, max_size=2))


def asked(surface=Surface.CHAT, indent=None, **fields):
    """A request with these fields."""
    body = {"model": "m"} | fields
    if surface is Surface.CHAT:
        body = {"messages": [{"role": "user", "content": "Hi"}]} | body
    return read(surface, json.dumps(body, indent=indent).encode())


def key(tenant=TENANT, model="m", **fields):
    """Its key."""
    return cache_key(asked(**fields), model, tenant)


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(st.sampled_from(["a", "b", "stop_x"]), JSON), st.dictionaries(st.sampled_from("abc"), JSON))
def test_keys_are_equal_where_the_fields_are(one, other):
    """However they are ordered or spaced, and never otherwise."""
    assert (key(**one) == key(**other)) is (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    turned = dict(reversed(one.items()))
    assert key(**one) == cache_key(asked(indent=3, **turned), "m", TENANT)


@pytest.mark.parametrize(
    "field", ["user", "metadata", "stream", "service_tier", "store", "prompt_cache_key", "session_id"]
)
def test_what_says_nothing_of_the_answer_does_not_count(field):
    """Who asks, and how it is sent."""
    value = {"metadata": {"a": "b"}, "stream": True, "store": True, "service_tier": "flex"}.get(field, "x")
    assert key(**{field: value}) == key()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "Ho"}]},
        {"temperature": 0},
        {"temperature": 0.5},
        {"max_tokens": 5},
        {"n": 2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"an_engines_own": 1},
        {"messages": [{"role": "user", "content": "Hi", "extra": 1}]},
    ],
)
def test_what_an_engine_may_read_counts(fields):
    """Also what nobody here knows."""
    assert key(**fields) != key()


def test_a_key_is_of_one_project_one_salt_one_model_one_surface():
    """No field of a body makes one project's key another's."""
    others = [replace(TENANT, project_id="q"), replace(TENANT, cache_salt="other")]
    prompt = cache_key(asked(Surface.COMPLETIONS, prompt="Hi"), "m", TENANT)
    keys = {key(), key(model="n"), prompt, *(key(tenant=one) for one in others)}
    assert len(keys) == 5
    shifted = [replace(TENANT, project_id="pm", cache_salt="salt"), replace(TENANT, project_id="p", cache_salt="msalt")]
    assert len({key(tenant=one) for one in shifted}) == 2


@pytest.mark.parametrize(
    ("fields", "repeats"),
    [
        ({}, False), ({"temperature": 0}, True), ({"temperature": 0.0}, True), ({"temperature": 0.1}, False),
        ({"temperature": None}, False), ({"seed": 7}, True), ({"seed": 0, "temperature": 1}, True),
        ({"seed": None}, False), ({"top_k": 1}, True), ({"top_k": 2}, False), ({"top_p": 0}, False),
    ],
)  # fmt: skip
def test_what_is_asked_to_be_the_same_every_time_is_repeatable(fields, repeats):
    """Greedy, or with the client's own seed."""
    assert is_repeatable(asked(**fields).fields) is repeats
    assert (key(tenant=REPEATABLE, **fields) is not None) is repeats
    assert key(tenant=replace(TENANT, limits=Limits()), **fields) is None
    assert key(**fields) is not None


def test_what_is_too_large_to_be_compared_and_what_generates_nothing_has_no_key():
    """Bounded work on the loop; vectors are not kept."""
    assert key(messages=[{"role": "user", "content": "x" * LARGE_BYTES}]) is None
    assert cache_key(asked(Surface.EMBEDDINGS, input="a"), "m", TENANT) is None


def test_another_language_of_the_same_chat_has_the_same_key():
    """A message of Anthropic's is a chat here."""
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    message = read(Surface.MESSAGES, json.dumps(body).encode())
    assert cache_key(message, "m", TENANT) == cache_key(message, "m", TENANT) is not None


@pytest.mark.parametrize(
    ("said", "keeps", "max_age_s"),
    [
        (None, True, float("inf")),
        (b"", True, float("inf")),
        (b"no-store", False, 0),
        (b"No-Cache", True, 0),
        (b"max-age=30", True, 30),
        (b'max-age="5", max-age=9', True, 5),
        (b"private, max-age=0, no-store", False, 0),
        (b"max-age=-1, max-age=x, max-age=, max-age=99999999999999999", True, float("inf")),
    ],
)
def test_a_clients_wish(said, keeps, max_age_s):
    """As HTTP has it; what is no wish is none."""
    assert (wish_of(said).keeps, wish_of(said).max_age_s) == (keeps, max_age_s)
