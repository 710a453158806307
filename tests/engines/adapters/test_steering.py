"""No spelling and no wrapping of a steering field carries a caller's value to an engine (cases P10, P11)."""

import json
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import ADAPTERS, adapter_for
from engines.adapters.steering import CARRIERS, STEERING_FIELDS, folded
from engines.contract import Steering
from policies.keys import cache_salt, new_server_secret
from policies.lane import Lane

MARK = "the-callers-own"
VLLM_SALT = re.compile(r"[^@/\\\x00]{1,128}")  # vLLM's own validator (engines.md, trap 5)


def body_of(kind, client, salt="5a17" * 8):
    """What the engine is sent for these fields."""
    fields = msgspec.json.decode(json.dumps(client), type=dict[str, msgspec.Raw])
    steering = Steering("m", Lane.STANDARD, salt, "attempt-1", is_streaming=False)
    return adapter_for(kind).body(fields, steering)


@st.composite
def spellings(draw, name):
    """The name with any case of its letters, and hyphens for some of its underscores."""
    letters = []
    for letter in name:
        if letter == "_":
            letters.append(draw(st.sampled_from("_-")))
        else:
            letters.append(draw(st.sampled_from([letter, letter.upper()])))
    return "".join(letters)


steering_names = st.sampled_from(sorted(STEERING_FIELDS)).flatmap(spellings)


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
@settings(deadline=None, max_examples=60)
@given(name=steering_names, wrapping=st.sampled_from(["top", "extra_body", "metadata", "Extra-Body"]))
def test_no_spelling_or_wrapping_of_a_steering_field_arrives(kind, name, wrapping):
    """What the client library merges, and what some proxies lift out of an object, is looked through too."""
    client = {name: MARK} if wrapping == "top" else {wrapping: {name: MARK}}
    sent = body_of(kind, client | {"temperature": 0.5})
    assert MARK.encode() not in sent
    assert json.loads(sent)["temperature"] == 0.5


@pytest.mark.parametrize("kind", ["warmlane", "vllm"])
@pytest.mark.parametrize(
    "client",
    [
        '{"cache_salt":"guess"}',
        '{"cache_salt":"guess","cache_salt":"guess"}',
        '{"cache\\u005fsalt":"guess"}',
        '{"Cache_Salt":"guess","CACHE-SALT":"guess"}',
        '{"cache_\\u017falt":"guess"}',
        '{"extra_body":{"cache_salt":"guess"}}',
        '{"metadata":{"cache_salt":"guess","Cache-Salt":"guess"}}',
        '{"vllm_xargs":{"cache_salt":"guess"}}',
        '{"kv_transfer_params":{"cache_salt":"guess"}}',
        '{"nvext":{"cache_salt":"guess"}}',
    ],
)
def test_the_gateways_salt_stands_once_and_alone(kind, client):
    """P10: a guess of another tenant's salt must neither replace ours nor stand beside it."""
    fields = msgspec.json.decode(client, type=dict[str, msgspec.Raw])
    sent = adapter_for(kind).body(fields, Steering("m", Lane.BULK, "0f" * 16, "a", is_streaming=False))
    assert b"guess" not in sent
    assert sent.count(b"salt") == 1
    assert json.loads(sent)["cache_salt"] == "0f" * 16


@pytest.mark.parametrize("kind", ["llama-server", "openai"])
def test_an_engine_without_a_salt_is_sent_none(kind):
    """It would be refused, or leave the house with the tenant's secret."""
    assert b"salt" not in body_of(kind, {"cache_salt": "guess"})
    assert b"5a17" not in body_of(kind, {})


@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server"])
def test_a_clients_own_metadata_is_kept_byte_by_byte_where_nothing_in_it_steers(kind):
    """Only members that steer are taken out; numbers keep their spelling."""
    kept = b'{"run": 1.50, "tags": ["a"]}'
    fields = {"metadata": msgspec.Raw(kept)}
    sent = adapter_for(kind).body(fields, Steering("m", Lane.BULK, "0f" * 16, "a", is_streaming=False))
    assert kept in sent
    assert json.loads(body_of(kind, {"metadata": {"run": 1, "priority": 9}}))["metadata"] == {"run": 1}


@pytest.mark.parametrize("value", ["text", 7, None, [1], []])
def test_metadata_of_another_shape_is_the_engines_to_judge(value):
    """What is no object has no members to look through."""
    assert json.loads(body_of("vllm", {"metadata": value}))["metadata"] == value


def test_every_name_is_written_as_it_is_compared():
    """A name with a capital or a hyphen in the table would never match."""
    assert all(folded(name) == name for name in STEERING_FIELDS | CARRIERS)


@given(st.text(min_size=1, max_size=60))
def test_every_salt_is_one_that_every_engine_takes(domain):
    """Ids, groups and secrets of any text give 32 hex digits: vLLM's rule is the strictest."""
    salt = cache_salt(new_server_secret(), domain)
    assert re.fullmatch(r"[0-9a-f]{32}", salt)
    assert VLLM_SALT.fullmatch(salt)
