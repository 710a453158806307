"""What clients may send: bad bodies, numbers at the edge, ids, keys, models (cases P01, P02, P41, P43)."""

import json
import re

import pytest

from tests.gateway.client import CHAT, COMPLETIONS
from tests.gateway.kit import MODEL, UPSTREAM_MODEL, chat, completion
from tests.scripted_engine import answer, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
LONE = "tea \ud83d"
EXCEPTION = re.compile(rb"Traceback|[A-Z][A-Za-z]+Error\b")


def escaped(body):
    """JSON bytes with the lone half as an escape."""
    return json.dumps(body, ensure_ascii=True).encode()


def _lone_bodies():
    return {
        "messages": [
            chat(LONE),
            {"model": MODEL, "messages": [{"role": "system", "content": LONE}, {"role": "user", "content": "x"}]},
            {"model": MODEL, "messages": [{"role": "tool", "tool_call_id": "c", "content": LONE}]},
            {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": LONE}]}]},
        ],
        "stop": [chat(stop=LONE), chat(stop=["a", LONE])],
        "model": [chat() | {"model": LONE}],
        "metadata": [chat(metadata={"note": LONE}), chat(metadata={LONE: "note"})],
        "tools": [chat(tools=[{"type": "function", "function": {"name": LONE}}])],
        "logit_bias": [chat(logit_bias={LONE: 1})],
    }


@both_ways
@pytest.mark.parametrize("stream", [True, False])
async def test_half_of_an_emoji_never_reaches_an_engine(launch, stream, capsys):
    """P01: every unpaired form is 400 naming its field; the paired control is served."""
    gateway = await launch()
    for param, bodies in _lone_bodies().items():
        for body in bodies:
            got = await gateway.post(escaped(body | {"stream": stream}))
            assert (got.status, got.error["type"]) == (400, "invalid_request_error"), body
            assert got.error["param"] == param
            assert got.header("content-type") == "application/json"
            assert not EXCEPTION.search(got.body)
    assert (await gateway.post(escaped(completion(LONE, stream=stream)), path=COMPLETIONS)).error["param"] == "prompt"
    assert gateway.engines.requests == []
    got = await gateway.post(escaped(chat("tea 🫖", stream=stream)))
    assert got.status == 200
    assert (await gateway.received()).json["messages"][0]["content"] == "tea 🫖"
    gateway.parts.recorder.flush()
    assert not EXCEPTION.search(capsys.readouterr().err.encode())


async def test_raw_surrogates_and_other_bad_utf8_are_refused(launch):
    """P01: bytes that are not UTF-8 are stopped, escaped or not."""
    gateway = await launch()
    for bad in (b"\xed\xa0\xbd", b"\xff", b"\xc3("):
        got = await gateway.post(json.dumps(chat("HERE")).encode().replace(b"HERE", bad))
        assert (got.status, got.error["type"]) == (400, "invalid_request_error")
    assert gateway.engines.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", 2**64),
        ("seed", -(2**70)),
        ("max_tokens", 2147483647),
        ("max_tokens", 10**18),
        ("max_tokens", 1e18),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_completion_tokens", 10**30),
        ("n", 100_000),
        ("n", 0),
        ("top_k", -5),
        ("top_p", 1.5),
        ("temperature", 1e308),
        ("presence_penalty", -1e9),
        ("stop_token_ids", [2**40]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "5"),
        ("stop_token_ids", list(range(10_000))),
        ("stop", ["x"] * 10_000),
        ("stop", 7),
        ("stream", "yes"),
        ("stream_options", {"include_usage": 3}),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"content": "no role"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]}]),
        ("model", ""),
        ("model", 5),
    ],
)
async def test_a_value_out_of_range_is_400_naming_the_field(launch, field, value):
    """P02: nothing of it reaches the engine, and the next plain request is served."""
    gateway = await launch()
    got = await gateway.post(chat(**({"stream": True} if field == "stream_options" else {}) | {field: value}))
    assert (got.status, got.error["param"], got.error["type"]) == (400, field, "invalid_request_error")
    assert gateway.engines.requests == []
    assert (await gateway.post(chat())).status == 200


async def test_harmless_unknown_fields_reach_the_engine_and_steering_ones_do_not(launch):
    """What the gateway does not know may be the engine's; what steers is the gateway's."""
    gateway = await launch()
    steering = {"priority": -5, "cache_salt": "mine", "kv_transfer_params": {}, "CACHE_SALT": "mine", "request_id": "x"}
    body = chat(guided_choice=["a"], user="u", metadata={"k": "v"}, **steering)
    assert (await gateway.post(body)).status == 200
    sent = (await gateway.received()).json
    assert (sent["guided_choice"], sent["metadata"]) == (["a"], {"k": "v"})
    assert not {"kv_transfer_params", "CACHE_SALT", "request_id"} & sent.keys()
    assert (sent["priority"], sent["model"]) == (0, UPSTREAM_MODEL)
    assert sent["cache_salt"] != "mine"


@both_ways
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"{'model': 1}",
        b"\x00\x01",
        b'{"a": NaN}',
        b'{"model": "m",}',
        b"[" * 100_000,
    ],
    ids=["empty", "open", "list", "null", "string", "quotes", "binary", "nan", "comma", "deep"],
)
async def test_what_is_no_json_object_is_400(launch, body):
    """Broken JSON never becomes a bug of ours."""
    gateway = await launch()
    got = await gateway.post(body)
    assert (got.status, got.error["type"]) == (400, "invalid_request_error")
    assert gateway.records[0].outcome == "client_error"


@pytest.mark.parametrize("field", ["messages", "metadata", "tools", "stop", "logit_bias"])
async def test_deep_nesting_is_400_in_any_field(launch, field):
    """A body that would exhaust a parser's stack is the client's error."""
    gateway = await launch()
    raw = json.dumps(chat(**{field: "DEEP"})).encode().replace(b'"DEEP"', b"[" * 50_000 + b"]" * 50_000)
    got = await gateway.post(raw)
    assert got.status in (200, 400)
    assert all(record.outcome != "bug" for record in gateway.records)


@both_ways
async def test_an_unknown_model_is_404_and_an_unknown_route_too(launch):
    """Both in OpenAI's shape, with a code."""
    gateway = await launch()
    got = await gateway.post(chat() | {"model": "nobody"})
    assert (got.status, got.code, got.error["param"]) == (404, "model_not_found", "model")
    got = await gateway.post(chat(), path="/v1/nothing")
    assert (got.status, got.code) == (404, "route_not_found")
    got = await gateway.get(CHAT)
    assert (got.status, got.code) == (405, "method_not_allowed")


def _bad_keys(key):
    bearer = f"Bearer {key}"
    return {
        "none": [],
        "wrong": [("authorization", f"Bearer {key[:-4]}AAAA")],
        "wrong prefix": [("authorization", f"Bearer sk-{key[3:]}")],
        "not bearer": [("authorization", f"Basic {key}")],
        "two headers": [("authorization", bearer), ("authorization", bearer)],
        "two keys": [("authorization", bearer), ("x-api-key", key[:-4] + "AAAA")],
        "very long": [("authorization", f"Bearer {key}{'A' * 10_000}")],
        "control": [("authorization", f"Bearer {key}\tx")],
        "empty": [("authorization", "Bearer ")],
    }


@both_ways
@pytest.mark.parametrize("kind", _bad_keys("wl-x"))
async def test_a_bad_key_is_401_without_a_part_of_it(launch, kind, capsys):
    """P41: fixed texts; neither body nor log repeats the secret."""
    gateway = await launch()
    got = await gateway.post(chat(), key=None, headers=_bad_keys(gateway.key)[kind])
    assert (got.status, got.error["type"]) == (401, "authentication_error")
    _assert_no_secret(gateway, got.body + capsys.readouterr().err.encode())
    assert gateway.engines.requests == []


def _assert_no_secret(gateway, seen):
    secret = gateway.key.rpartition("-")[2] if gateway.key.count("-") == 2 else gateway.key[12:]
    gateway.parts.recorder.flush()
    assert not any(secret[start : start + 6].encode() in seen for start in range(len(secret) - 5))


@both_ways
async def test_unknown_and_revoked_look_alike_and_expired_says_so(launch):
    """P41: nobody learns that a key once existed."""
    gateway = await launch()
    [key] = (await gateway.store.keys()).items
    expired = await gateway.new_key(expires_at=1)
    await gateway.store.revoke_key(key.id)
    await gateway.parts.directory.refresh()
    revoked = await gateway.post(chat())
    unknown = await gateway.post(chat(), key="wl-00000000-" + "A" * 43)
    assert revoked.status == unknown.status == 401
    assert revoked.body == unknown.body
    got = await gateway.post(chat(), key=expired)
    assert (got.status, got.code) == (401, "invalid_api_key")
    assert expired[12:20].encode() not in got.body


@both_ways
async def test_a_key_is_taken_in_either_header_and_any_case_of_the_scheme_but_never_from_the_url(launch):
    """P41: lower case is fine, a query string is not read."""
    gateway = await launch()
    for headers in ([("authorization", f"bearer {gateway.key}")], [("x-api-key", gateway.key)]):
        assert (await gateway.post(chat(), key=None, headers=headers)).status == 200
    for query in ("key", "api_key", "api-key"):
        got = await gateway.post(chat(), key=None, path=f"{CHAT}?{query}={gateway.key}")
        assert got.status == 401
        _assert_no_secret(gateway, got.body)


@both_ways
@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("my-own-id_1", "my-own-id_1"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
        ("x" * 30_000, None),
        ("a%0d%0ax-evil: 1", None),
        ("a\x1b[31mred", None),
        ("idé", None),
        ("", None),
        ("two words", None),
    ],
)
async def test_a_request_id_is_kept_only_if_it_is_harmless(launch, sent, kept, capsys):
    """P43: ours is answered in any case; the log has one line that parses."""
    gateway = await launch()
    got = await gateway.post(chat(), headers=[("x-request-id", sent)])
    assert got.status in (200, 400)
    gateway.parts.recorder.flush()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    if got.status == 400:  # the HTTP parser refused the bytes themselves
        assert lines == []
        return
    assert re.fullmatch(r"req_[0-9a-f]{24}", got.header("x-request-id"))
    [line] = lines
    assert line["request_id"] == got.header("x-request-id")
    assert line.get("client_request_id") == kept


@both_ways
async def test_two_request_ids_or_a_huge_one_split_nothing(launch):
    """P43: one id of ours comes back; a megabyte is refused and the connection closed."""
    gateway = await launch()
    got = await gateway.post(chat(), headers=[("x-request-id", "one"), ("x-request-id", "two")])
    assert got.header("x-request-id").startswith("req_")
    assert len(got.body) < 1000


async def test_an_attempt_has_an_id_of_ours_upstream(launch):
    """P43: the caller's id never reaches an engine, where a retry would collide with what it retries."""
    gateway = await launch()
    got = await gateway.post(chat(), headers=[("x-request-id", "mine")])
    assert (await gateway.received()).header("x-request-id") == got.header("x-request-id") + "-1"


@both_ways
async def test_models_are_listed_to_who_may_use_them(launch):
    """GET /v1/models: with a key, without a route to anything else."""
    gateway = await launch(models=[{"name": MODEL, "aliases": ["fast"], "context_tokens": 4096}])
    got = await gateway.get("/v1/models")
    assert [(model["id"], model["max_model_len"]) for model in got.json["data"]] == [(MODEL, 4096)]
    assert (await gateway.get("/v1/models/fast")).json["id"] == MODEL
    assert (await gateway.get("/v1/models/other")).status == 404
    assert (await gateway.get("/v1/models", key=None)).status == 401
    narrow = await gateway.new_key(await gateway.new_project('{"models": ["other"]}'))
    assert (await gateway.get("/v1/models", key=narrow)).json["data"] == []


async def test_the_engines_refusal_of_a_request_is_told_in_its_own_words(launch):
    """An engine's 400 names the field better than we could; it is never retried and never held against the replica."""
    gateway = await launch(engines=2)
    shapes = [
        {"error": {"message": "max_tokens too large", "type": "BadRequestError", "param": "max_tokens", "code": 400}},
        {"object": "error", "message": "max_tokens too large", "param": "max_tokens"},
        {"error": "max_tokens too large"},
    ]
    for shape in shapes:
        gateway.script(status(400, shape))
        got = await gateway.post(chat(stream=True))
        assert (got.status, got.error["message"]) == (400, "max_tokens too large")
    assert len(gateway.engines.requests) == 3
    assert all(replica.breaker._num_faults == 0 for replica in gateway.parts.router.pool)
    gateway.script(answer("ok"))
    assert (await gateway.post(chat())).status == 200
