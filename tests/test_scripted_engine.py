"""The fake engine itself: what the gateway's tests rely on."""

import asyncio
import gzip
import json

import httpx
import pytest

from tests.scripted_engine import (
    Cut,
    Framing,
    Reply,
    ScriptedEngine,
    answer,
    dropped,
    garbage,
    sse,
    status,
    within_patience,
)

CHAT = "/v1/chat/completions"
ASKING = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
async def engine():
    async with ScriptedEngine() as running:
        yield running


@pytest.fixture
async def client(engine):
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as running:
        yield running


def chunks(text: str) -> list[dict]:
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


async def test_a_streamed_answer_has_vllms_order(engine, client):
    """Role chunk, tokens, finish, usage without choices, end marker."""
    engine.script(answer("a", "b", cached=7))
    got = chunks((await client.post(CHAT, json=ASKING)).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in got[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]
    assert got[-2]["choices"][0]["finish_reason"] == "stop"
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == 2
    assert got[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


@pytest.mark.parametrize(
    ("shape", "where"),
    [("separate", [3]), ("finish", [2]), ("always", [0, 1, 2, 3]), ("none", [])],
)
async def test_usage_comes_where_the_script_says(engine, client, shape, where):
    """Engines differ, and the meter must read all of them (P36)."""
    engine.script(answer("a", usage=shape))
    got = chunks((await client.post(CHAT, json=ASKING)).text)
    assert [index for index, chunk in enumerate(got) if chunk.get("usage")] == where


async def test_usage_comes_only_if_asked_or_volunteered(engine, client):
    """As a real engine does, so that a gateway that forgets to ask is found."""
    engine.script(answer("a"), answer("a", volunteers_usage=True))
    silent, generous = [(await client.post(CHAT, json={"model": "m", "stream": True})).text for _ in range(2)]
    assert "usage" not in silent
    assert "usage" in generous


async def test_a_unary_answer_is_one_object(engine, client):
    """Chat and plain completions have their own shapes."""
    got = (await client.post(CHAT, json={"model": "m"})).json()
    assert got["choices"][0]["message"]["content"] == "Hello world"
    assert got["usage"]["total_tokens"] == 12
    got = (await client.post("/v1/completions", json={"model": "m"})).json()
    assert got["choices"][0]["text"] == "Hello world"


async def test_a_gate_holds_a_token_until_it_is_set(engine, client):
    """Delays are the test's, so no test sleeps."""
    gate = asyncio.Event()
    engine.script(answer("a", "b", gates={2: gate}))
    async with client.stream("POST", CHAT, json=ASKING) as response:
        pieces = response.aiter_text()
        seen = ""
        while '"a"' not in seen:
            seen += await anext(pieces)
        assert engine.num_running == 1
        gate.set()
        async for piece in pieces:
            seen += piece
    assert '"b"' in seen
    await engine.requests[0].until_finished()
    assert engine.num_running == 0


async def test_a_client_that_leaves_is_recorded_as_an_abort(engine, client):
    """The test of every test about disconnects."""
    engine.script(answer("a", "b", gates={2: asyncio.Event()}))
    async with client.stream("POST", CHAT, json=ASKING) as response:
        await anext(response.aiter_text())
    request = await engine.received(1)
    await request.until_aborted()
    assert not request.finished.is_set()
    await engine.until_idle()


@pytest.mark.parametrize(
    "script",
    [
        answer("a", cut_before=1),
        answer("a", cut_before=1, cut=Cut.RESET),
        dropped(),
        dropped(Cut.RESET),
        garbage(),
    ],
)
async def test_a_broken_answer_is_an_error_to_any_client(engine, client, script):
    """Not only to ours."""
    engine.script(script)
    with pytest.raises(httpx.TransportError):
        await client.post(CHAT, json=ASKING)


async def test_statuses_carry_bodies_and_headers(engine, client):
    """vLLM's error shape unless the test has its own."""
    engine.script(status(429, headers={"retry-after": "3"}), status(500, b"<html>"))
    first, second = [await client.post(CHAT, json={}) for _ in range(2)]
    assert (first.status_code, first.headers["retry-after"], first.json()["error"]["code"]) == (429, "3", 429)
    assert (second.status_code, second.content) == (500, b"<html>")


async def test_packed_answers(engine, client):
    """Packed when offered, or in any case."""
    engine.script(answer("a", gzip="offered"), answer("a", gzip="always"), answer("a", gzip="offered"))
    for accepts, is_packed in (("identity", False), ("identity", True), ("gzip", True)):
        async with client.stream("POST", CHAT, json=ASKING, headers={"accept-encoding": accepts}) as response:
            raw = b"".join([piece async for piece in response.aiter_raw()])
        assert (response.headers.get("content-encoding") == "gzip") is is_packed
        assert b'"a"' in (gzip.decompress(raw) if is_packed else raw)


async def test_line_ends_and_pieces(engine, client):
    """The legal forms of an event, and the illegal divisions of the network (P04)."""
    engine.script(answer("a", line_end=b"\r\n", prefix=b"data:", piece_bytes=3))
    got = (await client.post(CHAT, json=ASKING)).text
    assert got.endswith("data:[DONE]\r\n\r\n")
    assert sse("x") == b"data: x\n\n"


async def test_a_lying_length_and_raw_bytes(engine, client):
    """What no server library would let a test send."""
    engine.script(Reply([b"short", Cut.CLOSE], framing=Framing.LENGTH, declared_length=10))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(CHAT, json={})
    engine.script(Reply([b"HTTP/1.1 204 No\r\n\r\n"], framing=Framing.RAW))
    assert (await client.post(CHAT, json={})).status_code == 204


async def test_headers_are_kept_with_duplicates(engine, client):
    """A header that must come once is asserted by asking for it."""
    await client.post(CHAT, json={}, headers=[("X-A", "1"), ("x-a", "2")])
    request = engine.requests[0]
    assert [value for name, value in request.headers if name == "x-a"] == ["1", "2"]
    assert request.header("x-b") is None
    with pytest.raises(AssertionError, match="came 2 times"):
        request.header("x-a")


async def test_probes_are_answered_and_not_recorded(engine, client):
    """A health loop must not disturb the count of requests."""
    assert (await client.get("/health")).status_code == 200
    engine.health = status(503)
    assert (await client.get("/health")).status_code == 503
    assert b"vllm:num_requests_running" in (await client.get("/metrics")).content
    assert (await client.get("/v1/models")).json()["data"][0]["id"] == engine.model
    assert (await client.get("/nothing")).status_code == 404
    assert engine.probes == {"/health": 2, "/metrics": 1, "/v1/models": 1, "/nothing": 1}
    assert engine.requests == []


async def test_a_probe_can_hang(engine, client):
    """Too busy to answer is not dead (P30)."""
    engine.health_gate = asyncio.Event()
    task = asyncio.create_task(client.get("/health"))
    await within_patience(_until_probed(engine))
    engine.health_gate.set()
    assert (await task).status_code == 200


async def _until_probed(engine):
    while not engine.probes["/health"]:  # noqa: ASYNC110  (probes tell nobody)
        await asyncio.sleep(0)


async def test_a_crash_and_a_restart_on_the_same_port(engine, client):
    """What a worker killed in mid-stream looks like from outside."""
    engine.script(answer("a", "b", gates={2: asyncio.Event()}))
    with pytest.raises(httpx.TransportError):
        async with client.stream("POST", CHAT, json=ASKING) as response:
            async for _ in response.aiter_text():
                await engine.kill()
    with pytest.raises(httpx.ConnectError):
        await client.post(CHAT, json={})
    port = engine.port
    await engine.restart()
    assert engine.port == port
    assert (await client.post(CHAT, json={})).status_code == 200
