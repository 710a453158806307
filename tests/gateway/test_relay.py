"""From an engine's answer to the client's: the commit rule, usage, slow clients, waits, and one ending only."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import Fault, ReplicaError
from gateway import relay as module
from gateway import streaming
from gateway.answer import ClientAnswer
from gateway.relay import WholeRelay
from gateway.settings import TimeoutSection
from gateway.streaming import StreamRelay
from tests.gateway.scripted_sink import ScriptedExchange, ScriptedSink
from tests.scripted_engine import within_patience

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


def sse(**fields):
    """One event of an engine."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chunk(content=None, finish=None, index=0, role=None, **fields):
    """One chunk of a chat stream."""
    delta = {key: value for key, value in (("role", role), ("content", content)) if value is not None}
    return sse(choices=[{"index": index, "delta": delta, "finish_reason": finish}], **fields)


ROLE = chunk(role="assistant", content="")
STOP = chunk(finish="stop")


class Relaying:
    """One relay at work between a scripted engine's exchange and a scripted client."""

    def __init__(self, *, streaming=True, first_token_s=50.0, wants_usage=False, num_choices=1, **timeouts):
        self.sink, self.exchange = ScriptedSink(), ScriptedExchange()
        self.answer = ClientAnswer(self.sink, [], 100.0)
        self.firsts = 0
        section = TimeoutSection(**{"idle_s": 50.0, "total_s": 100.0, **timeouts})
        if streaming:
            self.relay = StreamRelay(
                self.answer,
                self.sink,
                section,
                first_token_s,
                on_first=self._on_first,
                wants_usage=wants_usage,
                num_choices=num_choices,
            )
        else:
            self.relay = WholeRelay(self.answer, self.sink, section, first_token_s)
        self.task = asyncio.ensure_future(self.relay.run(self.exchange))

    def _on_first(self):
        self.firsts += 1

    async def begin(self, status=200, headers=()):
        """Let the relay run and give it the head of the answer."""
        await asyncio.sleep(0)
        self.relay.on_head(status, list(headers))
        return self

    def read(self, *pieces):
        """One read of the engine's socket, in pieces."""
        for piece in pieces:
            self.relay.on_data(piece)
        self.relay.on_flush()

    async def over(self):
        """The relay's result."""
        try:
            return await within_patience(self.task)
        finally:
            self.answer._stop()

    async def fault(self):
        """The fault it ended with."""
        with pytest.raises(ReplicaError) as caught:
            await self.over()
        return caught.value.fault


# A stream.


async def test_a_read_becomes_one_write_at_once():
    """No task, no queue: what the engine sent together the client gets together."""
    one = await Relaying().begin()
    one.read(chunk("a"))
    one.read(chunk("b"), chunk("c"))
    assert one.sink.writes == [chunk("a"), chunk("b") + chunk("c")]
    one.read(STOP, DONE)
    one.relay.on_end()
    relayed = await one.over()
    assert one.sink.body == chunk("a") + chunk("b") + chunk("c") + STOP + DONE
    assert one.sink.endings == ["end"]
    assert (relayed.num_chunks, one.firsts) == (3, 1)
    assert one.exchange.calls == ["abort"], "told that it is over, which is harmless"
    assert one.sink.watcher is None


async def test_a_role_chunk_is_held_back_until_there_is_content():
    """P27: another replica would send it again."""
    one = await Relaying().begin()
    one.read(ROLE)
    assert one.sink.status is None
    assert not one.answer.has_content
    one.relay.on_fail(ReplicaError(Fault.RESET, "gone"))
    assert await one.fault() is Fault.RESET
    assert one.sink.status is None, "a retry may still begin afresh"


async def test_what_was_held_comes_first_and_in_order():
    """Also when several choices speak in one read."""
    one = await Relaying(num_choices=2).begin()
    events = [
        chunk(role="assistant", index=0),
        chunk("a", index=0),
        chunk(role="assistant", index=1),
        chunk("b", index=1),
    ]
    one.read(*events)
    assert one.sink.writes == [b"".join(events)]


async def test_an_engine_that_sends_nothing_but_roles_is_not_held_for_ever(monkeypatch):
    """Memory is bounded: after that many the stream is the client's."""
    monkeypatch.setattr(streaming, "MAX_HELD_EVENTS", 3)
    one = await Relaying().begin()
    for _ in range(3):
        one.read(ROLE)
    assert one.sink.status is None
    one.read(ROLE)
    assert one.sink.body == ROLE * 4
    assert one.answer.has_content


@pytest.mark.parametrize(
    "tail",
    [
        [chunk(finish="stop", usage=USAGE)],
        [STOP, sse(choices=[], usage=USAGE)],
        [STOP, sse(choices=None, usage=USAGE)],
        [chunk("", usage=None), STOP, sse(usage=USAGE)],
        [chunk("", usage={"prompt_tokens": 1}), STOP, chunk("", usage=USAGE)],
    ],
)
@pytest.mark.parametrize("wants_usage", [True, False])
async def test_usage_is_read_everywhere_and_told_in_the_standard_form_to_those_who_asked(tail, wants_usage):
    """P36: one separate last chunk with an empty list, or none."""
    one = await Relaying(wants_usage=wants_usage).begin()
    one.read(chunk("a"), *tail, DONE)
    one.relay.on_end()
    relayed = await one.over()
    assert (relayed.usage.prompt_tokens, relayed.usage.completion_tokens) == (10, 2)
    events = [json.loads(line[6:]) for line in one.sink.body.split(b"\n\n") if line and b"[DONE]" not in line]
    told = [event for event in events if event.get("usage")]
    assert [(event["choices"], event["usage"]) for event in told] == ([([], USAGE)] if wants_usage else [])
    assert one.sink.body.endswith(DONE)


async def test_an_unreadable_usage_does_not_reach_a_client_that_did_not_ask():
    """Nor does it hide what was read before."""
    one = await Relaying().begin()
    one.read(chunk("a", usage=USAGE), STOP, sse(choices=[], usage={"prompt_tokens": -1}), DONE)
    one.relay.on_end()
    assert (await one.over()).usage.prompt_tokens == 10
    assert b"usage" not in one.sink.body


@pytest.mark.parametrize(
    ("events", "is_whole"),
    [
        ([], False),
        ([ROLE], False),
        ([chunk("a")], False),
        ([chunk("a"), STOP], True),
        ([chunk("a"), DONE], True),
        ([chunk("a"), b"data: [DONE]"], True),
        ([chunk("a"), STOP[:-2]], False),
        ([chunk("a"), b"data: [DON"], False),
    ],
)
async def test_a_stream_that_ends_early_is_no_success(events, is_whole):
    """P06: complete with a finish reason or an end marker, else a fault without an end marker."""
    one = await Relaying().begin()
    one.read(*events)
    one.relay.on_end()
    if is_whole:
        await one.over()
        assert one.sink.body.count(DONE) == 1
    else:
        assert await one.fault() is Fault.RESET
        assert b"[DONE]" not in one.sink.body
        assert one.sink.endings == []


async def test_every_choice_must_finish():
    """n = 2 with one finish reason is half an answer."""
    one = await Relaying(num_choices=2).begin()
    one.read(chunk("a", index=0), chunk(finish="stop", index=1))
    one.relay.on_end()
    assert await one.fault() is Fault.RESET


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        (b"data: <html>\n\n", Fault.PROTOCOL),
        (b"data: " + b"[" * 100_000 + b"\n\n", Fault.PROTOCOL),
        (sse(error={"code": 429}), Fault.BACKPRESSURE),
        (sse(error={"code": 400}), Fault.CLIENT),
        (sse(error="oom"), Fault.STATUS),
    ],
)
@pytest.mark.parametrize("before", [[], [chunk("a")]])
async def test_a_bad_event_ends_the_relay_with_its_fault(event, fault, before):
    """Before content and after; what was sent stays sent, and nothing follows."""
    one = await Relaying().begin()
    if before:
        one.read(*before)
    one.read(event)
    one.read(chunk("late"), DONE)
    one.relay.on_end()
    assert await one.fault() is fault
    assert one.sink.body == b"".join(before)


async def test_what_follows_the_end_marker_is_dropped():
    """One marker, and it is last."""
    one = await Relaying().begin()
    one.read(chunk("a"), STOP, DONE, chunk("b"), DONE)
    one.relay.on_end()
    await one.over()
    assert one.sink.body == chunk("a") + STOP + DONE


async def test_gaps_and_chunks_are_measured(monkeypatch):
    """For TTFT and ITL."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    one = await Relaying().begin()
    for gap in (1.0, 0.5, 2.0, 0.25):
        clock[0] += gap
        one.read(chunk("a"))
    clock[0] += 9.0
    one.read(STOP, DONE)
    one.relay.on_end()
    relayed = await one.over()
    assert (relayed.first_content_at, relayed.last_content_at) == (101.0, 103.75)
    assert (relayed.max_gap_s, relayed.num_chunks) == (2.0, 4)


# A refusal.


@pytest.mark.parametrize("is_streaming", [True, False])
async def test_a_status_is_collected_and_becomes_an_error(is_streaming):
    """With its body and its advice."""
    one = await Relaying(streaming=is_streaming).begin(429, [(b"retry-after", b"7")])
    one.read(b'{"error":', b'"busy"}')
    one.relay.on_end()
    with pytest.raises(ReplicaError) as caught:
        await one.over()
    error = caught.value
    assert (error.fault, error.status, error.retry_after_s, error.body) == (
        Fault.BACKPRESSURE,
        429,
        7,
        b'{"error":"busy"}',
    )
    assert one.sink.status is None


async def test_a_refusal_without_end_is_not_collected():
    """64 KiB of reasons are enough."""
    one = await Relaying().begin(500)
    for _ in range(100):
        one.read(b"x" * 4096)
    one.relay.on_end()
    with pytest.raises(ReplicaError) as caught:
        await one.over()
    assert len(caught.value.body) <= 65536 + 4096


@pytest.mark.parametrize("value", [b"gzip", b"br"])
async def test_a_packed_answer_is_the_engines_fault(value):
    """P03: nobody asked for it."""
    one = await Relaying().begin(200, [(b"content-encoding", value)])
    assert await one.fault() is Fault.PROTOCOL


# A whole answer.


async def test_a_whole_answer_is_sent_at_once():
    """With its usage read."""
    one = await Relaying(streaming=False).begin()
    body = json.dumps({"choices": [], "usage": USAGE}).encode()
    one.read(body[:10])
    assert one.sink.status is None
    one.read(body[10:])
    one.relay.on_end()
    relayed = await one.over()
    assert relayed.usage.prompt_tokens == 10
    assert (one.sink.status, one.sink.length, one.sink.body, one.sink.endings) == (200, len(body), body, ["end"])


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a":', b'{"error":{"message":"x"}}', b"[" * 100_000])
async def test_what_is_no_answer_is_the_engines_fault(body):
    """Also with status 200; another replica may be tried."""
    one = await Relaying(streaming=False).begin()
    one.read(body)
    one.relay.on_end()
    assert await one.fault() is Fault.PROTOCOL
    assert one.sink.status is None


async def test_an_answer_without_end_is_the_engines_fault(monkeypatch):
    """The bound, reached."""
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 100)
    one = await Relaying(streaming=False).begin()
    one.read(b"x" * 100)
    assert not one.task.done()
    one.read(b"x")
    assert await one.fault() is Fault.PROTOCOL


# Endings.


async def test_cancelling_aborts_the_engine():
    """The client left."""
    one = await Relaying().begin()
    one.read(chunk("a"))
    one.task.cancel()
    await asyncio.wait([one.task])
    assert one.task.cancelled()
    assert one.exchange.calls == ["abort"]
    assert one.sink.watcher is None
    one.read(chunk("b"))
    one.relay.on_end()
    one.relay.on_fail(ReplicaError(Fault.RESET, "late"))
    assert one.sink.body == chunk("a")
    one.answer._stop()


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(["role", "content", "stop", "done", "usage", "junk", "error", "end", "fail", "cancel", "slow", "drained"]), max_size=12),
    st.booleans(),
)  # fmt: skip
def test_any_history_ends_once_and_never_speaks_after_it(history, is_streaming):
    """Engines and clients may do anything in any order."""
    pieces = {"role": ROLE, "content": chunk("a"), "stop": STOP, "done": DONE, "usage": sse(choices=[], usage=USAGE)}
    pieces |= {"junk": b"data: x\n\n", "error": sse(error="x")}

    async def scenario():
        one = await Relaying(streaming=is_streaming).begin()
        for step in history:
            if step in pieces:
                one.read(pieces[step])
            elif step == "cancel":
                one.task.cancel()
            elif step == "fail":
                one.relay.on_fail(ReplicaError(Fault.RESET, "x"))
            else:
                {"end": one.relay.on_end, "slow": one.relay.on_slow, "drained": one.relay.on_drained}[step]()
        one.relay.on_fail(ReplicaError(Fault.RESET, "in the end"))
        await asyncio.wait([one.task])
        one.answer._stop()
        is_whole = not one.task.cancelled() and one.task.exception() is None
        assert len(one.sink.endings) <= 1
        assert not (is_whole and one.sink.endings != ["end"])
        assert one.exchange.calls[-1] == "abort"
        if is_streaming:
            assert one.sink.body.count(DONE) == len(one.sink.endings)

    asyncio.run(scenario())


# Waits.


async def test_a_slow_client_stops_the_engine_until_it_catches_up():
    """Nothing piles up here."""
    one = await Relaying().begin()
    assert one.sink.watcher is one.relay
    one.relay.on_slow()
    assert one.exchange.calls == ["pause"]
    one.relay.on_drained()
    assert one.exchange.calls == ["pause", "resume"]
    one.task.cancel()
    await asyncio.wait([one.task])


async def test_a_client_that_reads_nothing_is_dropped():
    """It must not hold a seat for ever; the engine is not to blame."""
    one = await Relaying(idle_s=0.005).begin()
    one.read(chunk("a"))
    one.relay.on_slow()
    await one.sink.until(lambda: one.sink.endings)
    assert one.sink.endings == ["abort"]
    assert not one.task.done()
    one.task.cancel()  # as the server does when the connection is lost
    await asyncio.wait([one.task])
    one.answer._stop()


@pytest.mark.parametrize(
    ("options", "reads", "message"),
    [
        ({"first_token_s": 0.005}, [], "the first token"),
        ({"first_token_s": 0.005}, [ROLE], "the first token"),
        ({"idle_s": 0.005}, [chunk("a")], "the next token"),
        ({"total_s": 0.005}, [chunk("a")], "the answer"),
        ({"total_s": 0.005}, [], "the answer"),
        ({"streaming": False, "first_token_s": 0.005}, [], "the first token"),
    ],
)
async def test_each_wait_has_its_own_end(options, reads, message):
    """P07: connect, first token, idle and total are different waits."""
    one = await Relaying(**options).begin()
    for piece in reads:
        one.read(piece)
    with pytest.raises(ReplicaError, match=message) as caught:
        await one.over()
    assert caught.value.fault is Fault.TIMEOUT


async def test_a_long_first_token_is_not_an_idle_stream():
    """P07: a prompt may take much longer than a gap."""
    one = await Relaying(idle_s=0.002).begin()
    for _ in range(3):
        one.relay._check()
        one.relay._watch.cancel()
    assert not one.task.done()
    one.read(chunk("a"))
    assert await one.fault() is Fault.TIMEOUT


async def test_waiting_for_a_slow_client_is_not_held_against_the_engine(monkeypatch):
    """The idle wait starts anew once the client has caught up."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    one = await Relaying(idle_s=10.0).begin()
    one.read(chunk("a"))
    clock[0] += 5
    one.relay.on_slow()
    clock[0] += 9
    one.relay.on_drained()
    clock[0] += 9
    one.relay._check()
    one.relay._watch.cancel()
    assert not one.task.done()
    clock[0] += 1.5
    one.relay._check()
    assert await one.fault() is Fault.TIMEOUT
