"""HTTP/1.1 to the byte: framing, limits, pipelining, keep-alive (P03, P43)."""

import asyncio
import json
import socket

import pytest

from tests.gateway.client import CHAT
from tests.gateway.kit import UPSTREAM_MODEL, chat
from tests.scripted_engine import Cut, Framing, Reply, answer, within_patience

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


def raw_request(key, body, *headers, path=CHAT, length=True):
    """The bytes of one request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: g", f"authorization: Bearer {key}", *headers]
    lines += [f"content-length: {len(raw)}"] if length else []
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def chunked(body, size):
    """The body in chunks."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@both_ways
async def test_the_body_sent_on_is_as_long_as_it_says(launch):
    """P03 a: alias replaced, usage option and salt added, and the engine's request is whole all the same."""
    gateway = await launch(models=[{"name": "small-a", "aliases": ["fast"]}])
    got = await gateway.post(chat("x" * 1000, stream=True) | {"model": "fast"})
    assert got.is_done
    sent = await gateway.received()
    assert int(sent.header("content-length")) == len(sent.body)
    assert (sent.json["model"], sent.json["stream_options"]) == (UPSTREAM_MODEL, {"include_usage": True})
    assert sent.header("accept-encoding") == "identity"


@both_ways
async def test_a_packing_engine_is_not_asked_to_pack(launch):
    """P03 b: offered nothing, it sends plain bytes, and the client's headers match its body."""
    gateway = await launch()
    gateway.script(answer("Hello", gzip="offered"))
    client = await gateway.start(chat(), headers=[("accept-encoding", "gzip")])
    got = await client.answer()
    assert (got.text, got.header("content-encoding")) == ("Hello", None)
    assert int(got.header("content-length")) == len(got.body)


async def test_an_engine_that_packs_unasked_is_at_fault(launch):
    """P03 b: what we cannot read we do not pass on."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(answer("Hello", gzip="always"))
    assert (await gateway.post(chat(stream=True))).code == "replica_protocol"


@both_ways
async def test_hop_headers_of_the_engine_stay_behind(launch):
    """P03 c: nothing that the engine names in Connection, nor anything else of its headers, reaches the client."""
    gateway = await launch()
    gateway.script(answer("Hello", headers=(("connection", "x-secret-hop"), ("x-secret-hop", "1"), ("server", "vllm"))))
    got = await gateway.post(chat())
    assert not {"x-secret-hop", "server", "connection"} & {name for name, _ in got.headers}


@both_ways
@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
    ids=["both lengths", "two lengths", "negative", "endless", "bad chunk", "tls", "version"],
)
async def test_broken_framing_is_400_and_the_end_of_the_connection(launch, raw):
    """P03 d: nothing is guessed, nothing is sent on, nothing that follows on the connection is read."""
    gateway = await launch()
    client = await gateway.connect()
    client.write(raw + raw_request(gateway.key, chat()))
    assert (await client.until_closed()).count(b"HTTP/1.1 400 ") == 1
    assert gateway.engines.requests == []


async def test_a_body_that_breaks_on_the_slow_way_is_400_too(launch):
    """A request that the app takes, because of its query, ends like any other when its chunks are none."""
    gateway = await launch()
    client = await gateway.connect()
    head = raw_request(gateway.key, b"", "transfer-encoding: chunked", path=f"{CHAT}?a=b", length=False)
    client.write(head + b"3\r\nabc\r\n")
    await gateway.until(lambda: gateway.server.server_state.tasks)
    client.write(b"zz\r\n")
    assert (await client.answer()).status == 400
    await gateway.until(lambda: not gateway.server.server_state.tasks)
    assert gateway.records == []


async def test_garbage_in_the_same_read_as_a_body_that_is_too_large_gets_one_answer(launch):
    """The 413 is the last word on the connection."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    client = await gateway.connect()
    head = raw_request(gateway.key, b"", "transfer-encoding: chunked", length=False)
    client.write(head + b"4e20\r\n" + b"x" * 20_000 + b"\r\nzz\r\n" + raw_request(gateway.key, chat()))
    assert (await client.until_closed()).count(b"HTTP/1.1 ") == 1
    assert gateway.engines.requests == []


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?a=b"], ids=["hot", "slow way"])
async def test_garbage_behind_an_unstreamed_request_cuts_it(launch, path):
    """No second answer, and the engine is told to stop."""
    gateway = await launch()
    gateway.script(answer("x", gates={0: asyncio.Event()}))
    client = await gateway.start(chat(), path=path)
    await gateway.received()
    client.write(b"\x00garbage\r\n\r\n")
    assert await client.until_closed() == b""
    await (await gateway.received()).until_aborted()


async def test_garbage_behind_a_streaming_answer_does_not_write_into_it(launch):
    """The stream is cut, which a client can see, rather than mixed with another answer."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.start(chat(stream=True))
    await client.until('"a"')
    client.write(b"\x00garbage\r\n\r\n")
    assert b"400" not in await client.until_closed()
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"


@both_ways
async def test_an_announced_body_over_the_limit_is_413_before_it_is_read(launch):
    """The connection closes after the answer; a waiting client never sends the rest."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    client = await gateway.connect()
    client.write(raw_request(gateway.key, b"", "content-length: 1000000", length=False) + b"x" * 20_000)
    got = await client.answer()
    assert (got.status, got.code) == (413, "body_too_large")
    assert got.header("connection") == "close"
    assert await client.until_closed() == b""


@both_ways
async def test_a_chunked_body_over_the_limit_is_413_too(launch):
    """No length was announced; the bytes are counted."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    client = await gateway.connect()
    client.write(
        raw_request(gateway.key, b"", "transfer-encoding: chunked", length=False) + chunked(b"x" * 50_000, 999)
    )
    got = await client.answer()
    assert (got.status, got.code) == (413, "body_too_large")


async def test_who_sends_a_huge_body_without_looking_still_reads_the_413(launch):
    """The rest of the body is read and thrown away for a while, so that no reset overtakes the answer."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    client = await gateway.connect()
    client.write(raw_request(gateway.key, b"", "content-length: 8000000", length=False))
    for _ in range(8):
        client.write(b"x" * 1_000_000)
        await within_patience(client.writer.drain())
    assert (await client.answer()).status == 413


@both_ways
async def test_a_body_at_the_limit_is_served_whole_or_in_chunks(launch):
    """The limit itself is allowed; pieces of any size make the same body."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    limit = gateway.gateway._bodies.max_bytes
    body = json.dumps(chat()).encode()
    body += b" " * (limit - len(body))
    assert (await gateway.post(body)).status == 200
    assert (await gateway.post(body + b" ")).status == 413
    for size in (1, 7, limit):
        client = await gateway.connect()
        client.write(raw_request(gateway.key, b"", "transfer-encoding: chunked", length=False) + chunked(body, size))
        assert (await client.answer()).status == 200
        client.close()


@both_ways
async def test_expect_100_continue_is_answered_only_if_the_body_is_wanted(launch):
    """curl waits for it with larger bodies."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    body = json.dumps(chat()).encode()
    client = await gateway.connect()
    client.write(raw_request(gateway.key, b"", "expect: 100-continue", f"content-length: {len(body)}", length=False))
    assert await within_patience(client.reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.write(body)
    assert (await client.answer()).status == 200


async def test_expect_100_continue_is_not_answered_to_a_huge_body(launch):
    """It is told at once that the body is too large."""
    gateway = await launch(gateway={"max_body_mb": 0.01})
    client = await gateway.connect()
    client.write(raw_request(gateway.key, b"", "expect: 100-continue", "content-length: 1000000", length=False))
    assert (await client.answer()).status == 413


@both_ways
@pytest.mark.parametrize("split", [1, 3, 50])
async def test_a_request_in_small_pieces_is_the_same_request(launch, split):
    """However TCP divides it."""
    gateway = await launch()
    raw = raw_request(gateway.key, chat("🫖"))
    client = await gateway.connect()
    for start in range(0, len(raw), split):
        client.write(raw[start : start + split])
        await asyncio.sleep(0)
    assert (await client.answer()).status == 200


@both_ways
async def test_one_connection_carries_many_requests(launch):
    """Kept alive after streams, whole answers and errors."""
    gateway = await launch()
    client = await gateway.connect()
    for stream in (True, False, True):
        client.send(chat(stream=stream), key=gateway.key)
        assert (await client.answer()).text == "Hello world"
        client.send(b"{", key=gateway.key)
        assert (await client.answer()).status == 400
        client.send(None, path="/health/live", method="GET")
        assert (await client.answer()).status == 200
    assert len(gateway.server.server_state.connections) == 1


@both_ways
async def test_connection_close_is_obeyed(launch):
    """A client that asks for it gets its answer and the end of the connection."""
    gateway = await launch()
    client = await gateway.start(chat(stream=True), close=True)
    got = await client.answer()
    assert (got.is_done, got.header("connection")) == (True, "close")
    assert await client.until_closed() == b""


@both_ways
async def test_pipelined_requests_are_answered_in_order(launch):
    """The second waits for the first, whatever way each of them takes."""
    gateway = await launch()
    gateway.script(answer("one"), answer("two"), answer("three"))
    client = await gateway.connect()
    bodies = [
        raw_request(gateway.key, chat(stream=True)),
        raw_request(gateway.key, chat()),
        raw_request(gateway.key, chat(stream=True)),
    ]
    health = b"GET /health/live HTTP/1.1\r\nhost: g\r\n\r\n"
    client.write(bodies[0] + bodies[1] + health + bodies[2])
    texts = [(await client.answer()).text, (await client.answer()).text]
    assert (await client.answer()).json == {"status": "live"}
    assert [*texts, (await client.answer()).text] == ["one", "two", "three"]


async def test_leaving_with_pipelined_requests_runs_none_of_them(launch):
    """The one under way is aborted, those behind it never begin."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.connect()
    client.write(raw_request(gateway.key, chat(stream=True)) + raw_request(gateway.key, chat()) * 3)
    await client.until('"a"')
    client.reset()
    await (await gateway.received()).until_aborted()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "client_gone"


@both_ways
async def test_an_old_http_version_is_answered_and_closed(launch):
    """HTTP/1.0 has no keep-alive here."""
    gateway = await launch()
    body = json.dumps(chat()).encode()
    client = await gateway.connect()
    client.write(
        b"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (gateway.key.encode(), len(body), body)
    )
    assert (await client.answer()).text == "Hello world"
    assert await client.until_closed() == b""


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x-a: " + b"a" * 70_000 + b"\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x-a: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 3000,
        b"POST /v1/chat/completions HTTP/1.1\r\nx-a: " + b"a" * 1_500_000,
        b"GET /" + b"a" * 1_500_000,
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"e" * 1_500_000,
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nt: " + b"e" * 1_500_000,
    ],
    ids=["one header", "many headers", "endless header", "endless path", "endless extension", "endless trailer"],
)
async def test_heads_have_a_bound(launch, raw):
    """P43: a head that is never complete is refused long before it fills the memory."""
    gateway = await launch()
    client = await gateway.connect()
    client.write(raw)
    assert b"HTTP/1.1 4" in await client.until_closed()
    assert gateway.engines.requests == []


async def test_more_connections_than_allowed_are_told_so(launch):
    """503 and Retry-After on the connection itself; a place is free again once one closes."""
    gateway = await launch(gateway={"max_connections": 2})
    held = [await gateway.connect() for _ in range(2)]
    await gateway.until(lambda: len(gateway.server.server_state.connections) == 2)
    refused = await gateway.connect()
    got = await refused.answer()
    assert (got.status, got.header("retry-after")) == (503, "1")
    held[0].close()
    await gateway.until(lambda: len(gateway.server.server_state.connections) == 1)
    assert (await gateway.post(chat())).status == 200


@both_ways
async def test_accepted_connections_send_small_writes_at_once(launch):
    """TCP_NODELAY: a token must not wait for the last one's acknowledgement."""
    gateway = await launch()
    client = await gateway.start(chat())
    await client.answer()
    [connection] = gateway.server.server_state.connections
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@both_ways
async def test_reset_of_an_unstreamed_answer_half_sent_by_the_engine_is_502(launch):
    """Nothing of half an answer reaches the client."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(
        answer("Hello", cut_before=0, cut=Cut.RESET), Reply([b"{}"], framing=Framing.LENGTH, declared_length=9)
    )
    got = await gateway.post(chat())
    assert (got.status, got.code) == (502, "replica_reset")


OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?a=b"], ids=["hot", "asgi"])
@pytest.mark.parametrize("split", [30, 100_000])
async def test_an_offer_of_http2_is_ignored_and_the_body_read(launch, path, split):
    """Java's HttpClient and curl --http2 offer it; the connection goes on, also with a request in the same read."""
    gateway = await launch()
    raw = raw_request(gateway.key, chat(), *OFFER, path=path) * 2
    client = await gateway.connect()
    for start in range(0, len(raw), split):
        client.write(raw[start : start + split])
        await asyncio.sleep(0)
    assert [(await client.answer()).status, (await client.answer()).status] == [200, 200]


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?a=b"], ids=["hot", "asgi"])
@pytest.mark.parametrize("stage", ["head", "body"])
async def test_a_request_that_does_not_come_whole_is_408(launch, path, stage):
    """The time is bounded on both ways, and the connection closed."""
    gateway = await launch(timeouts={"head_s": 0.1, "body_s": 0.1})
    client = await gateway.connect()
    raw = raw_request(gateway.key, b"{", "content-length: 50", path=path, length=False)
    client.write(raw[:40] if stage == "head" else raw)
    got = await client.answer()
    assert (got.status, got.code, got.header("connection")) == (408, "request_timeout", "close")
    assert await client.until_closed() == b""


async def test_a_silent_connection_is_closed(launch):
    """Nobody asked anything, so nothing is answered; stray line ends between requests are no way round it."""
    gateway = await launch(timeouts={"head_s": 0.1})
    silent = await gateway.connect()
    assert await silent.until_closed() == b""
    stray = await gateway.start(chat())
    assert (await stray.answer()).status == 200
    stray.write(b"\r\n")
    assert b" 408 " in await stray.until_closed()


async def test_a_long_answer_is_not_cut_by_the_deadlines_of_reading(launch):
    """They bound what the client sends, not what it waits for."""
    gateway = await launch(timeouts={"head_s": 0.05, "body_s": 0.05})
    gate = asyncio.Event()
    gateway.script(answer("Hello", gates={0: gate}))
    client = await gateway.start(chat())
    asyncio.get_running_loop().call_later(0.2, gate.set)
    assert (await client.answer()).text == "Hello"


@both_ways
async def test_the_body_of_an_unknown_caller_is_not_waited_for(launch):
    """401 as soon as the head is there, on the record, and nothing is kept of what follows."""
    gateway = await launch()
    client = await gateway.connect()
    client.write(raw_request("wl-nobody", b"{", "content-length: 5000000", length=False))
    got = await client.answer()
    assert (got.status, got.header("www-authenticate")) == (401, "Bearer")
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "unauthenticated"
    assert gateway.gateway._bodies.held_bytes == 0


@both_ways
async def test_all_bodies_together_have_a_bound(launch):
    """503 beyond it; who leaves in mid-body gives back what it held."""
    gateway = await launch()
    bodies = gateway.gateway._bodies
    bodies.max_total_bytes = 1500
    holder = await gateway.connect()
    holder.write(raw_request(gateway.key, b"x" * 1000, "content-length: 1100", length=False))
    await gateway.until(lambda: bodies.held_bytes == 1000)
    got = await gateway.post(chat("x" * 1000))
    assert (got.status, got.code, got.header("retry-after")) == (503, "bodies_full", "1")
    holder.close()
    await gateway.until(lambda: bodies.held_bytes == 0)
    assert (await gateway.post(chat("x" * 1000))).status == 200


async def test_trailers_are_no_headers(launch):
    """A key behind the body opens no door."""
    gateway = await launch()
    client = await gateway.connect()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    body = chunked(json.dumps(chat()).encode(), 1000)
    client.write(head + body[:-2] + f"authorization: Bearer {gateway.key}\r\n\r\n".encode())
    assert (await client.answer()).code == "missing_api_key"


@both_ways
async def test_what_cannot_be_served_says_why_in_http(launch):
    """405 with Allow, 401 with its scheme, 415 for packed bodies, and no redirects."""
    gateway = await launch()
    assert (await gateway.get(CHAT)).header("allow") == "POST"
    assert (await gateway.post(chat(), key=None)).header("www-authenticate") == "Bearer"
    packed = await gateway.post(b"\x1f\x8b", headers=[("content-encoding", "gzip")])
    assert (packed.status, packed.code) == (415, "unsupported_content_encoding")
    assert (await gateway.post(chat(), path=CHAT + "/")).status == 404


async def test_other_transfer_codings_are_501(launch):
    """Nothing but chunked is undone here."""
    gateway = await launch()
    client = await gateway.connect()
    client.write(raw_request(gateway.key, b"", "transfer-encoding: gzip, chunked", length=False) + b"0\r\n\r\n")
    got = await client.answer()
    assert (got.status, got.code) == (501, "transfer_coding")


async def test_one_connection_too_many_reads_its_503_although_it_sent_a_request(launch):
    """It is said in OpenAI's shape, and no reset overtakes it."""
    gateway = await launch(gateway={"max_connections": 1})
    await gateway.connect()
    await gateway.until(lambda: len(gateway.server.server_state.connections) == 1)
    refused = await gateway.start(chat("x" * 100_000))
    got = await refused.answer()
    assert (got.status, got.code) == (503, "too_many_connections")


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?a=b"], ids=["hot", "asgi"])
async def test_a_pipelining_client_that_resets_leaves_no_noise(launch, path, caplog):
    """A client that leaves is no error of ours, whichever of its requests is being answered."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.connect()
    client.write(raw_request(gateway.key, chat(stream=True), path=path) + raw_request(gateway.key, chat()) * 3)
    await client.until('"a"')
    client.reset()
    await gateway.until(lambda: not gateway.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("leave", ["close", "half_close", "reset"])
async def test_an_old_client_that_leaves_leaves_no_noise(launch, caplog, leave):
    """HTTP/1.0 takes the slow way, and its clients leave like others."""
    gateway = await launch()
    gateway.script(answer("a", "b", gates={2: asyncio.Event()}))
    client = await gateway.connect()
    client.write(raw_request(gateway.key, chat(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
    await client.head()
    getattr(client, leave)()
    await gateway.until(lambda: not gateway.server.server_state.tasks)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
