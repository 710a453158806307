"""Streams as a client sees them: framing, silence, early ends (cases P04 to P06)."""

import asyncio
import json

import pytest

from tests.gateway.client import COMPLETIONS
from tests.gateway.kit import chat, completion
from tests.gateway.stream_replies import DONE, FINISH, ROLE, streamed, token
from tests.scripted_engine import Cut, Framing, Reply, answer, sse

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)


@both_ways
async def test_a_stream_arrives_whole_with_one_end_marker(launch):
    """Role, tokens, finish and one [DONE]; no usage for a client that did not ask."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.text, got.roles, got.is_done, got.is_complete) == (200, "Hello", 1, True, True)
    assert got.usage is None
    assert got.header("cache-control") == "no-cache"
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.completion_tokens, record.attempts, record.status) == ("finished", 2, 1, 200)
    assert record.ttft_s is not None
    assert record.num_chunks == 2


@both_ways
async def test_a_completion_stream_arrives_whole(launch):
    """The other surface streams the same way."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo"))
    got = await gateway.post(completion(stream=True), path=COMPLETIONS)
    assert (got.text, got.is_done) == ("Hello", True)


@both_ways
async def test_tokens_reach_the_client_one_by_one(launch):
    """A token is sent on when it comes, while the engine still works on the next one."""
    gateway = await launch()
    gates = {index: asyncio.Event() for index in (2, 3)}
    gateway.script(answer("one", "two", "three", gates=gates))
    client = await gateway.start(chat(stream=True))
    await client.until("one")
    gates[2].set()
    await client.until("two")
    gates[3].set()
    assert (await client.answer()).text == "onetwothree"


def _variants():
    events = [json.dumps(event) for event in (ROLE, token("Hel"), token("lo 🫖"), FINISH)] + ["[DONE]"]
    broken = '{"choices": [{"index": 0, "delta": {"content": "Hel"},\ndata:  "finish_reason": null}]}'

    def with_end(end, prefix=b"data: "):
        return b"".join(sse(event, line_end=end, prefix=prefix) for event in events)

    return {
        "lf": with_end(b"\n"),
        "cr lf": with_end(b"\r\n"),
        "cr": with_end(b"\r"),
        "no space": with_end(b"\n", b"data:"),
        "other fields": with_end(b"\n", b"event: message\nid: 7\nretry: 10\ndata: "),
        "comments": b": hi\n\n" + with_end(b"\n", b": before\ndata: ") + b":\n\n",
        "byte-order mark": b"\xef\xbb\xbf" + with_end(b"\n"),
        "two data lines": b"".join(sse(broken if index == 1 else event) for index, event in enumerate(events)),
        "end marker without its blank line": with_end(b"\n")[:-1],
        "end marker without any line end": with_end(b"\n")[:-2],
    }


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
@pytest.mark.parametrize("variant", _variants())
async def test_every_legal_spelling_of_an_event_stream_gives_the_same_chunks(launch, variant, piece_bytes):
    """P04: line ends, comments, fields, a byte-order mark and any division into reads change nothing for the client."""
    gateway = await launch()
    raw = _variants()[variant]
    gateway.script(streamed(*[raw[start : start + piece_bytes] for start in range(0, len(raw), piece_bytes)]))
    got = await gateway.post(chat(stream=True))
    assert got.chunks == [ROLE, token("Hel"), token("lo 🫖"), FINISH]
    assert got.is_done


async def test_an_event_left_open_at_the_end_is_a_cut_stream(launch):
    """P04: the finish chunk without its blank line was never an event, so the answer is not complete."""
    gateway = await launch()
    gateway.script(streamed(ROLE, token("Hel"), sse(json.dumps(FINISH))[:-1]))
    got = await gateway.post(chat(stream=True))
    assert got.error["code"] == "502"
    assert not got.is_done


@both_ways
async def test_a_silent_engine_does_not_make_a_silent_stream(launch, quick_commit):
    """P05: headers come without a token, then comments at the interval, then the text."""
    gateway = await launch(timeouts={"keepalive_s": 0.03})
    gate = asyncio.Event()
    gateway.script(answer("late", gates={1: gate}))
    client = await gateway.start(chat(stream=True))
    status, _ = await client.head()
    assert status == 200
    while (await client.until(": keep-alive")).count(b": keep-alive") < 4:
        await client.piece()
    gate.set()
    got = await client.answer()
    assert (got.text, got.is_done) == ("late", True)
    assert set(got.comments) == {"keep-alive"}


@both_ways
async def test_a_waiting_stream_is_told_its_place(launch, quick_commit):
    """P05: in the queue the comments say the position; the text follows when a seat is free."""
    gateway = await launch(seats=1, timeouts={"keepalive_s": 0.03})
    gate = asyncio.Event()
    gateway.script(answer("first", gates={2: gate}), answer("second"), answer("third"))
    first = await gateway.start(chat(stream=True))
    await first.until("first")
    second, third = await gateway.start(chat(stream=True)), await gateway.start(chat(stream=True))
    await second.until(": queued position=1 eta_ms=")
    await third.until(": queued position=2 eta_ms=")
    gate.set()
    assert (await first.answer()).is_done
    assert {(await second.answer()).text, (await third.answer()).text} == {"second", "third"}


@both_ways
async def test_a_failure_after_the_headers_is_an_event_with_the_status_in_it(launch, quick_commit):
    """P05: once committed, what would have been a 502 is the last event, and there is no end marker."""
    gateway = await launch(retries={"max_attempts": 1})
    gate = asyncio.Event()
    gateway.script(Reply([gate, Cut.CLOSE], headers=[("content-type", "text/event-stream")]))
    client = await gateway.start(chat(stream=True))
    await client.head()
    gate.set()
    got = await client.answer()
    assert (got.status, got.error["code"], got.code) == (200, "502", "replica_reset")
    assert not got.is_done
    assert got.is_complete
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status) == ("replica_error", 502)


@both_ways
async def test_a_failure_before_the_headers_keeps_its_status(launch):
    """P05: a stream that fails before anything was sent is a plain HTTP error."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(Reply([Cut.CLOSE]))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.code) == (502, "replica_reset")
    assert got.header("content-type") == "application/json"


@both_ways
async def test_an_unstreamed_answer_has_no_comments_and_a_length(launch, quick_commit):
    """P05: heartbeats are for streams alone."""
    gateway = await launch(timeouts={"keepalive_s": 0.01})
    gate = asyncio.Event()
    gateway.script(answer("Hello", gates={0: gate}))
    client = await gateway.start(chat())
    await gateway.received()
    streaming = await gateway.start(chat(stream=True))
    await streaming.answer()
    gate.set()
    got = await client.answer()
    assert got.text == "Hello"
    assert int(got.header("content-length")) == len(got.body)


HALF_CALL = {
    "choices": [
        {
            "index": 0,
            "delta": {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}]},
            "finish_reason": None,
        }
    ]
}  # fmt: skip


@pytest.mark.parametrize("events", [(), (ROLE,), (ROLE, token("x"), FINISH)[:1]], ids=["nothing", "role", "role again"])
async def test_a_clean_end_before_any_content_is_retried(launch, events):
    """P06 a: nothing was sent to the client, so another replica answers; the first one is not told as a success."""
    gateway = await launch(engines=2)
    gateway.script(streamed(*events), answer("Hel", "lo"))
    got = await gateway.post(chat(stream=True))
    assert (got.text, got.roles, got.is_done) == ("Hello", 1, True)
    [record] = await gateway.until_recorded(1)
    assert record.attempts == 2


@both_ways
@pytest.mark.parametrize("last", [token("Hel"), HALF_CALL], ids=["text", "tool call"])
async def test_a_clean_end_without_a_finish_reason_is_an_error_in_the_stream(launch, last):
    """P06 b, d: the client learns that the answer is not whole, and the replica's breaker does too."""
    gateway = await launch(engines=2)
    gate = asyncio.Event()
    gateway.script(streamed(ROLE, last, gate, Cut.CLOSE))
    client = await gateway.start(chat(stream=True))
    await client.until("Hel" if last == token("Hel") else "arguments")
    gate.set()
    got = await client.answer()
    assert (got.error["code"], got.is_done, got.is_complete) == ("502", False, True)
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts) == ("replica_error", 1)
    assert gateway.parts.router.pool.get(record.replica).breaker._num_faults == 1


@both_ways
async def test_a_finished_answer_without_the_end_marker_is_whole(launch):
    """P06 c: the finish reason said that it is complete."""
    gateway = await launch()
    gateway.script(answer("Hel", "lo", has_done=False))
    got = await gateway.post(chat(stream=True))
    assert (got.text, got.is_done, got.error if got.chunks[-1].get("error") else None) == ("Hello", True, None)
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "finished"


async def test_every_choice_must_finish(launch):
    """P06: with n = 2 one finish reason is half an answer."""
    gateway = await launch()
    second = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    gateway.script(streamed(ROLE, token("a"), FINISH), streamed(ROLE, token("a"), FINISH, second))
    cut = await gateway.post(chat(stream=True, n=2))
    assert (cut.text, cut.code, cut.is_done) == ("a", "replica_reset", False)
    assert (await gateway.post(chat(stream=True, n=2))).is_done


@pytest.mark.parametrize(
    "reply",
    [
        streamed(ROLE, token("a"), sse("{broken"), FINISH, DONE),
        streamed(ROLE, token("a"), sse("[1, 2]"), FINISH, DONE),
        Reply([b"<html>"], headers=[("content-type", "text/html")], framing=Framing.LENGTH),
    ],
    ids=["broken json", "not an object", "html"],
)
async def test_a_stream_that_is_none_is_the_replicas_fault(launch, reply):
    """What cannot be read never reaches the client as data."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(reply)
    got = await gateway.post(chat(stream=True))
    assert got.status == 502 or got.error["code"] == "502"
    assert "broken" not in got.body.decode()
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "replica_error"


async def test_an_error_event_of_the_engine_becomes_ours(launch):
    """vLLM reports failures inside a 200 stream: its status decides what they mean."""
    gateway = await launch(retries={"max_attempts": 1})
    failed = {"error": {"message": "boom at /opt/engine.py", "type": "InternalServerError", "code": 500}}
    gateway.script(streamed(ROLE, failed, DONE))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.code) == (502, "replica_error")
    assert b"/opt" not in got.body


@both_ways
@pytest.mark.parametrize("late", [asyncio.Event, lambda: Cut.RESET], ids=["silent", "reset"])
async def test_a_stream_is_complete_at_its_end_marker(launch, late):
    """What the engine does with its connection afterwards is neither waited for nor held against it."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(streamed(ROLE, token("a"), FINISH, DONE, late()))
    assert (await gateway.post(chat(stream=True))).is_done
    [record] = await gateway.until_recorded(1)
    assert record.outcome == "finished"
    await gateway.until_quiet()
    assert gateway.parts.router.pool.get("r1").breaker._num_faults == 0
    upstream = gateway.parts.fleet.connection("r1").upstream
    await gateway.until(lambda: all(one.exchange is None for one in upstream._connections))


async def test_a_body_that_ends_right_after_its_end_marker_leaves_the_connection_usable(launch):
    """Most engines end the body in a write of its own."""
    gateway = await launch()
    gate = asyncio.Event()
    gateway.script(streamed(ROLE, token("a"), FINISH, DONE, gate), answer("b"))
    assert (await gateway.post(chat(stream=True))).is_done
    gate.set()
    upstream = gateway.parts.fleet.connection("r1").upstream
    await gateway.until(lambda: all(one.exchange is None for one in upstream._connections))
    assert (await gateway.post(chat(stream=True))).text == "b"
    assert (await gateway.received(1)).connection == (await gateway.received(2)).connection
