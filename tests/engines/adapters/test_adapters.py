"""Every adapter: what reaches an engine of a client's request, and what never does."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.adapters import ADAPTERS, adapter_for
from engines.adapters.steering import GATEWAY_FIELDS, HOSTED_FIELDS, STEERING_FIELDS
from engines.adapters.vllm import VllmAdapter
from engines.contract import EngineAdapter, Steering
from policies.lane import Lane

Fields = dict[str, msgspec.Raw]

KINDS = sorted(ADAPTERS)
# Names the gateway may add by itself, by kind; none of their values is the client's.
OWN = {"warmlane": {"cache_salt", "priority"}, "vllm": {"cache_salt"}, "llama-server": set(), "openai": set()}


def steering(*, is_streaming=False, lane=Lane.STANDARD, traceparent=None) -> Steering:
    return Steering(
        model="real-model",
        lane=lane,
        cache_salt="5a17" * 8,
        attempt_id="attempt-1",
        is_streaming=is_streaming,
        traceparent=traceparent,
    )


def read(body: str | bytes) -> Fields:
    return msgspec.json.decode(body, type=Fields)


def sent(adapter: EngineAdapter, client: object, **options) -> dict:
    return json.loads(adapter.body(read(json.dumps(client)), steering(**options)))


@pytest.fixture(params=KINDS)
def adapter(request) -> EngineAdapter:
    return adapter_for(request.param)


def test_every_kind_is_found_by_its_own_name():
    """A configuration's `engine` picks exactly the adapter that calls itself so."""
    assert {kind: found.kind for kind, found in ADAPTERS.items()} == {kind: kind for kind in KINDS}


def test_an_unknown_kind_is_refused_with_the_known_ones():
    """A typo in the configuration is answered with what may stand there."""
    with pytest.raises(ValueError, match="'vlm' is not one of llama-server, openai, vllm, warmlane"):
        adapter_for("vlm")


def test_the_model_is_the_engines_name_not_the_alias(adapter):
    """Clients ask for aliases; an engine knows only its own name."""
    assert sent(adapter, {"model": "alias", "messages": []})["model"] == "real-model"


def test_a_stream_always_asks_for_usage_and_keeps_other_options(adapter):
    """Usage is metered even if the client did not ask, and even if it asked not to."""
    body = sent(
        adapter,
        {"stream": True, "stream_options": {"include_usage": False, "include_obfuscation": False}},
        is_streaming=True,
    )
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}


@pytest.mark.parametrize("options", [None, [], 7, "x", {}])
def test_stream_options_of_any_shape_become_a_request_for_usage(adapter, options):
    """What is no object carries no option worth keeping, and must not lose the usage."""
    body = sent(adapter, {"stream": True, "stream_options": options}, is_streaming=True)
    assert body["stream_options"] == {"include_usage": True}


def test_a_unary_request_gets_no_stream_options(adapter):
    """Engines refuse stream options without a stream."""
    assert "stream_options" not in sent(adapter, {"messages": []})


def test_stream_is_what_the_gateway_decided(adapter):
    """The relay expects the framing that it asked for, whatever the client's spelling of no."""
    assert sent(adapter, {"stream": None})["stream"] is False
    assert "stream" not in sent(adapter, {})
    assert sent(adapter, {}, is_streaming=True)["stream"] is True


@pytest.mark.parametrize("name", sorted(STEERING_FIELDS))
def test_no_steering_field_of_a_client_reaches_an_engine(adapter, name):
    """Placement, priority, cache and identity are the gateway's to set (P10, P11)."""
    body = sent(adapter, {name: "from-the-client", name.upper(): "from-the-client", "temperature": 0.5})
    assert "from-the-client" not in body.values()
    assert body["temperature"] == 0.5


@pytest.mark.parametrize("name", ["x-tenant-id", "X-Worker-Instance-Id", "x-override-rid"])
def test_fields_in_a_headers_style_are_dropped(adapter, name):
    """Extension names that some proxies read as headers steer like headers."""
    assert name not in sent(adapter, {name: "1"})


@pytest.mark.parametrize("name", ["Model", "STREAM", "Stream_Options"])
def test_other_spellings_of_what_the_gateway_sets_are_dropped(adapter, name):
    """An engine that ignores case would otherwise take the client's value."""
    assert name not in sent(adapter, {name: "1"})


@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server"])
def test_unknown_harmless_fields_survive_on_engines_of_our_own(kind):
    """An engine's own sampling fields need no change here to work."""
    client = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "a_future_field": {"b": [1, None]},
    }
    assert client.items() <= sent(adapter_for(kind), client).items()


@pytest.mark.parametrize("kind", ["warmlane", "vllm", "llama-server"])
def test_template_variables_pass_without_the_template(kind):
    """A template in the variables would be the same attack by another door."""
    client = {"chat_template_kwargs": {"enable_thinking": False, "chat_template": "{{ evil }}", "Tokenize": True}}
    assert sent(adapter_for(kind), client)["chat_template_kwargs"] == {"enable_thinking": False}


def test_our_worker_gets_salt_and_lane():
    """The tenant's cache is separated and the lane carried, by values the client cannot set."""
    adapter = adapter_for("warmlane")
    body = sent(adapter, {"cache_salt": "guess", "priority": -1}, lane=Lane.BULK)
    assert (body["cache_salt"], body["priority"]) == ("5a17" * 8, 2)
    assert adapter.capabilities.cache_salt
    assert adapter.capabilities.priority


@pytest.mark.parametrize("lane", list(Lane))
def test_vllm_gets_a_priority_only_where_it_schedules_by_it(lane):
    """vLLM refuses a request with a priority under first come, first served."""
    assert "priority" not in sent(adapter_for("vllm"), {"priority": 1}, lane=lane)
    assert sent(VllmAdapter(has_priority_scheduling=True), {"priority": 9}, lane=lane)["priority"] == lane.rank


def test_llama_server_gets_neither_salt_nor_its_own_steering():
    """It has no salt, and its slots and LoRA scales are not the client's to choose."""
    body = sent(
        adapter_for("llama-server"), {"lora": [{"id": 0, "scale": 1.0}], "slot_id": 1, "id_slot": 2, "grammar": "g"}
    )
    assert body == {"model": "real-model", "grammar": "g"}


def test_a_hosted_provider_gets_the_allowed_fields_only():
    """Nothing that names a tenant or a person, shares a cache, or spends at another rate leaves the house."""
    client = {
        "messages": [],
        "top_p": 1,
        "user": "alder",
        "prompt_cache_key": "k",
        "service_tier": "priority",
        "top_k": 3,
    }
    body = sent(adapter_for("openai"), client, is_streaming=True)
    assert body.keys() == {"messages", "top_p", "model", "stream", "stream_options"}
    assert "Temperature" not in sent(adapter_for("openai"), {"Temperature": 1})


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("warmlane", [b"authorization", b"x-request-id", b"traceparent"]),
        ("vllm", [b"authorization", b"x-request-id", b"traceparent"]),
        ("llama-server", [b"authorization"]),
        ("openai", [b"authorization"]),
    ],
)
def test_headers_are_exactly_the_ones_the_engine_should_see(kind, names):
    """A fresh id per attempt and the trace go to engines of ours; others get their key and nothing else."""
    headers = adapter_for(kind).headers(steering(traceparent="00-aa-bb-01"), "sk-engine")
    assert [name for name, _ in headers] == names
    assert dict(headers)[b"authorization"] == b"Bearer sk-engine"
    if len(names) > 1:
        assert dict(headers)[b"x-request-id"] == b"attempt-1"
        assert dict(headers)[b"traceparent"] == b"00-aa-bb-01"


def test_without_a_key_or_trace_neither_header_is_sent(adapter):
    """An empty bearer is refused by some engines."""
    names = {name for name, _ in adapter.headers(steering(), None)}
    assert names <= {b"x-request-id"}


def test_probe_paths_are_absolute(adapter):
    """The pool refuses anything else."""
    assert adapter.health_path.startswith("/")
    assert adapter.load_path is None or adapter.load_path.startswith("/")


def test_the_clients_fields_are_not_changed(adapter):
    """A retry builds its body from the same fields."""
    fields = read(
        '{"model":"alias","priority":1,"stream_options":{"a":1},"chat_template_kwargs":{"chat_template":"x"}}'
    )
    before = {name: bytes(raw) for name, raw in fields.items()}
    adapter.body(fields, steering(is_streaming=True))
    assert {name: bytes(raw) for name, raw in fields.items()} == before


SPELLING = st.sampled_from([str.lower, str.upper, str.title, str.swapcase, lambda name: name[0].upper() + name[1:]])
JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAME = st.one_of(
    st.builds(lambda name, spell: spell(name), st.sampled_from(sorted(STEERING_FIELDS)), SPELLING),
    st.sampled_from(["messages", "temperature", "tools", "top_k", "model", "stream", "user"]),
    st.text(max_size=8),
)


@st.composite
def spaced_json(draw, value) -> str:
    """The same value in one of several JSON spellings, so that byte identity means something."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\n")]))
    return json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans()))


@st.composite
def client_body(draw) -> str:
    """A JSON object, with names in any case, some twice."""
    members = draw(st.lists(st.tuples(NAME, JSON_VALUE), max_size=8))
    texts = [f"{json.dumps(name)}: {draw(spaced_json(value))}" for name, value in members]
    return "{" + ",".join(texts) + "}"


@settings(max_examples=150, deadline=None)
@given(text=client_body(), kind=st.sampled_from(KINDS), is_streaming=st.booleans())
def test_steering_never_survives_and_nested_bytes_are_identical(text, kind, is_streaming):
    """Whatever the spelling or the repetition: only harmless fields pass, and they pass byte for byte."""
    fields = read(text)
    out = read(adapter_for(kind).body(fields, steering(is_streaming=is_streaming)))
    ours = GATEWAY_FIELDS | OWN[kind]
    for name, raw in out.items():
        if name in ours:
            continue
        assert name.casefold() not in STEERING_FIELDS
        assert bytes(raw) == bytes(fields[name])
    assert {name for name in out if name.casefold() in STEERING_FIELDS} == OWN[kind]
    expected_lost = {name for name in fields if name not in out}
    if kind == "openai":
        assert all(name not in HOSTED_FIELDS for name in expected_lost)
    else:
        lost = {name.casefold() for name in expected_lost} - STEERING_FIELDS - GATEWAY_FIELDS - {"lora", "slot_id"}
        assert all(name.startswith("x-") for name in lost)
