"""The client's side: when headers are committed, what is said in silence, and that it ends once."""

import json

import pytest

from gateway import answer as module
from gateway.answer import ClientAnswer
from gateway.errors import Problem
from gateway.outcome import Outcome
from gateway.sse import comment, event
from tests.gateway.scripted_sink import ScriptedSink

PROBLEM = Problem(503, "no seat", "service_unavailable_error", "queue_timeout", None, 4, Outcome.SHED)
HEADERS = [(b"x-request-id", b"req_1")]


@pytest.fixture
def sink():
    """A client."""
    return ScriptedSink()


@pytest.fixture
async def make(sink):
    """Makes the answer to that client and stops its timer in the end."""
    made = []

    def start(keepalive_s=100.0):
        made.append(ClientAnswer(sink, HEADERS, keepalive_s))
        return made[-1]

    yield start
    for one in made:
        one._stop()


async def test_the_first_content_commits_the_headers(sink, make):
    """Nothing is sent before."""
    one = make()
    one.admit()
    assert sink.status is None
    one.write(event(b"1"))
    assert (sink.status, sink.length) == (200, None)
    assert sink.headers[b"content-type"].startswith(b"text/event-stream")
    assert sink.headers[b"x-request-id"] == b"req_1"
    one.write(event(b"2"))
    one.end_stream()
    assert sink.body == b"data: 1\n\ndata: 2\n\n"
    assert sink.endings == ["end"]


@pytest.mark.parametrize("way", ["stream", "whole", "fail"])
async def test_late_headers_are_made_when_they_are_committed(sink, make, way):
    """P20: they tell how things stand then, and are asked for once."""
    one, stands = make(), iter(["then", "too late"])
    one.late_headers = lambda: [(b"x-ratelimit-remaining-tokens", next(stands).encode())]
    if way == "stream":
        one.write(event(b"1"))
        one.end_stream()
    elif way == "whole":
        one.whole(200, b"{}", [])
    else:
        one.fail(PROBLEM)
    assert sink.headers[b"x-ratelimit-remaining-tokens"] == b"then"


async def test_a_silent_stream_commits_soon_after_admission(sink, make, monkeypatch):
    """P05: with what the stage it is in has to say."""
    monkeypatch.setattr(module, "COMMIT_AFTER_S", 0.001)
    one = make()
    one.silence = lambda: comment("queued position=1 eta_ms=5")
    one.admit()
    await sink.until(lambda: sink.writes)
    assert sink.status == 200
    assert sink.body == b": queued position=1 eta_ms=5\n\n"
    assert one.has_started
    assert not one.has_content


async def test_silence_is_filled_at_the_interval(sink, make, monkeypatch):
    """For as long as it lasts, whatever stage it is in by then."""
    monkeypatch.setattr(module, "COMMIT_AFTER_S", 0.001)
    one = make(keepalive_s=0.002)
    one.admit()
    await sink.until(lambda: len(sink.writes) >= 3)
    one.silence = lambda: comment("other")
    await sink.until(lambda: sink.writes[-1] == b": other\n\n")
    assert sink.writes[0] == b": keep-alive\n\n"
    one.end_stream()
    assert sink.endings == ["end"]


async def test_a_stream_that_speaks_is_not_interrupted(sink, make, monkeypatch):
    """A comment comes only when nothing was written for the whole interval."""
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    one = make(keepalive_s=50.0)
    one.write(event(b"1"))
    clock[0] += 49.0
    one._tick()
    assert len(sink.writes) == 1
    clock[0] += 1.0
    one._tick()
    assert sink.writes[1:] == [b": keep-alive\n\n"]


async def test_a_whole_answer_has_its_length(sink, make):
    """Headers of this answer alone come after those of every answer."""
    make().whole(200, b'{"a":1}', [(b"x-more", b"1")])
    assert (sink.status, sink.length, sink.body, sink.endings) == (200, 7, b'{"a":1}', ["end"])
    assert sink.headers == {b"content-type": b"application/json", b"x-request-id": b"req_1", b"x-more": b"1"}


async def test_a_failure_before_the_commit_is_a_status(sink, make):
    """With the wait as a header."""
    one = make()
    one.admit()
    one.fail(PROBLEM)
    assert (sink.status, sink.length) == (503, len(PROBLEM.body()))
    assert sink.headers[b"retry-after"] == b"4"
    assert (sink.body, sink.endings) == (PROBLEM.body(), ["end"])


async def test_a_failure_after_the_commit_is_the_last_event_without_an_end_marker(sink, make):
    """P06: the client must not take it for success."""
    one = make()
    one.write(event(b"1"))
    one.fail(PROBLEM)
    assert sink.status == 200
    assert json.loads(sink.writes[-1][6:])["error"]["code"] == "503"
    assert b"[DONE]" not in sink.body
    assert sink.endings == ["end"]


@pytest.mark.parametrize("end", ["end_stream", "fail", "whole"])
async def test_nothing_is_said_after_the_end(sink, make, monkeypatch, end):
    """No timer survives it."""
    monkeypatch.setattr(module, "COMMIT_AFTER_S", 0.0)
    one = make(keepalive_s=0.001)
    one.admit()
    if end == "whole":
        one.whole(200, b"{}", [])
    elif end == "fail":
        one.write(event(b"1"))
        one.fail(PROBLEM)
    else:
        one.write(event(b"1"))
        one.end_stream()
    assert one._timer is None
    assert sink.endings == ["end"]


async def test_starting_a_stream_twice_sends_one_head(sink, make):
    """The timer and the first content may meet."""
    one = make()
    one.start_stream()
    one.start_stream()
    assert sink.status == 200
