"""Requests sent at their times through a real gateway, and every way in which one can fail."""

import asyncio

import pytest

from gateway.replay.player import Pace, play
from gateway.replay.target import Target
from gateway.replay.trace_text import TextRequest, texts_of
from tests.gateway.kit import MODEL
from tests.scripted_engine import Cut, Framing, Reply, ScriptedEngine, answer, garbage, status, within_patience

FAST = Pace(speed=100.0)


def target_of(gateway, **changes):
    """The gateway."""
    given = {"url": f"http://127.0.0.1:{gateway.port}", "key": gateway.key, "model": MODEL} | changes
    return Target(**given)


def requests(num, gap_s=0.0):
    """Short ones."""
    return [TextRequest(number, number * gap_s, f"hello {number}", 2, 3) for number in range(num)]


def ignore(*_):
    """Nobody watches."""


async def test_a_trace_is_answered_and_what_came_is_noted(gateway, recording):
    """Times in order, tokens as reported; the body asks for the recorded length."""
    gateway.script(*[answer("a", "b", "c", prompt_tokens=500, cached=number) for number in range(12)])
    seen = []
    heard = await play(texts_of(recording), target_of(gateway), FAST, lambda *counts: seen.append(counts))
    assert seen[-1] == (12, 0)
    assert [one.fault for one in heard] == [""] * 12
    assert sorted(one.cached_tokens for one in heard) == list(range(12))
    for one in heard:
        assert one.due_at <= one.sent_at <= one.at[0] <= one.over_at
        assert (one.prompt_tokens, one.output_tokens, len(one.gaps)) == (500, 3, len(one.at) - 1)
    sent = [request.json for _, request in gateway.engines.requests]
    assert sorted(body["max_tokens"] for body in sent) == sorted(
        request.output_tokens for request in recording.requests
    )
    assert all(body["ignore_eos"] is True and body["temperature"] == 0 for body in sent)


async def test_an_engine_alone_is_asked_without_a_key(recording):
    """And for completions; a strict provider is not sent what only engines know."""
    async with ScriptedEngine() as engine:
        pace = Pace(speed=100.0, ignores_end=False)
        heard = await play(texts_of(recording.first(2)), Target(engine.url, "", "m", "completions"), pace, ignore)
    assert [one.fault for one in heard] == ["", ""]
    assert {request.path for request in engine.requests} == {"/v1/completions"}
    assert all("ignore_eos" not in one.json and one.header("authorization") is None for one in engine.requests)


async def test_no_more_than_so_many_are_open_and_the_wait_counts(gateway):
    """An open loop with a bound: a request that waits for another's end is as late as it is."""
    gates = [asyncio.Event(), asyncio.Event()]
    gateway.script(*[answer("a", gates={1: gate}) for gate in gates])
    run = asyncio.create_task(play(requests(3), target_of(gateway), Pace(max_open=2), ignore))
    await gateway.received(2)
    assert len(gateway.engines.requests) == 2
    for gate in gates:
        gate.set()
    heard = await within_patience(run)
    assert len(gateway.engines.requests) == 3
    assert heard[2].sent_at >= min(heard[0].over_at, heard[1].over_at)
    assert heard[2].ttft_s >= heard[2].at[0] - heard[2].sent_at


async def test_times_are_the_traces_over_the_speed():
    """By the clock that is given."""
    async with ScriptedEngine() as engine:
        heard = await play(requests(3, gap_s=2.0), Target(engine.url, "", "m"), Pace(speed=200.0), ignore)
    due = [one.due_at - heard[0].due_at for one in heard]
    assert due == pytest.approx([0.0, 0.01, 0.02])


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (status(400, {"error": {"message": "x", "code": "too_long", "type": "t"}}), "400 too_long"),
        (status(503, "busy"), "503"),
        (answer("a", "b", cut_before=2), "cut"),
        (answer("a", "b", cut_before=2, cut=Cut.RESET), "cut"),
        (answer("a", has_done=False), "cut"),
        (answer(), "empty"),
        (garbage(), "cut"),
        (Reply([b"no gzip"], headers=[("content-encoding", "gzip")], framing=Framing.LENGTH), "cut"),
        (Reply([b'data: {"error": ' + b'{"a":' * 5000 + b"\n\n"], framing=Framing.LENGTH), "cut"),
    ],
)
async def test_every_failure_has_its_word(reply, fault):
    """None of them stops the others."""
    async with ScriptedEngine() as engine:
        engine.script(reply)
        heard = await play(requests(2, gap_s=5.0), Target(engine.url, "", "m"), FAST, ignore)
    assert [one.fault for one in heard] == [fault, ""]


async def test_nobody_there_and_nobody_answering():
    """A port that nobody listens on, and an engine that says nothing."""
    async with ScriptedEngine() as engine:
        engine.script(answer("a", hold_head=asyncio.Event()))
        [silent] = await play(requests(1), Target(engine.url, "", "m"), Pace(timeout_s=0.05), ignore)
        url = engine.url
    [absent] = await play(requests(1), Target(url, "", "m"), Pace(), ignore)
    assert (silent.fault, absent.fault) == ("timeout", "no connection")


async def test_an_error_in_mid_stream_is_told_by_its_reason(gateway):
    """As our gateway says it."""
    gateway.script(answer("a", "b", cut_before=2, cut=Cut.RESET))
    [one] = await play(requests(1), target_of(gateway), Pace(), ignore)
    assert one.fault.startswith("error event ")


async def test_a_run_that_is_cancelled_leaves_nothing_open(gateway):
    """Ctrl-C: the engine sees its requests aborted, the gateway holds nothing."""
    gateway.script(answer("a", gates={1: asyncio.Event()}), answer("a", gates={1: asyncio.Event()}))
    run = asyncio.create_task(play(requests(2), target_of(gateway), Pace(), ignore))
    first, second = await gateway.received(1), await gateway.received(2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await first.until_aborted()
    await second.until_aborted()
    await gateway.until_quiet()
