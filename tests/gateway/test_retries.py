"""Another replica may be tried until content was sent, never after; busy is not broken (P19, P27, P28, P29, P38)."""

import asyncio
import json
import time
from email.utils import formatdate

import pytest

from gateway import answer as client_answer
from routing import breaker
from tests.gateway.client import COMPLETIONS
from tests.gateway.kit import chat, completion
from tests.scripted_engine import Cut, Framing, Reply, answer, dropped, garbage, sse, status

both_ways = pytest.mark.parametrize("way", ["hot", "asgi"], indirect=True)
SSE = [("content-type", "text/event-stream")]
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}


def chunk(delta, finish=None):
    """One chunk as an event."""
    return sse(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))


def broken_off(*events, cut=Cut.RESET):
    """A stream that breaks after these events."""
    return Reply([*events, cut], headers=SSE)


ROLE = chunk({"role": "assistant", "content": ""})
BEFORE_CONTENT = {
    "before headers": lambda: Reply([Cut.RESET], framing=Framing.RAW),
    "before headers, closed": dropped,
    "after headers": broken_off,
    "after a comment": lambda: broken_off(b": working\n\n"),
    "after the role chunk": lambda: broken_off(ROLE),
    "after a usage chunk": lambda: broken_off(ROLE, sse(json.dumps({"choices": [], "usage": {"prompt_tokens": 3}}))),
    "garbage": garbage,
    "500": lambda: status(500),
    "404 of the engine": lambda: status(404),
    "401 of the engine": lambda: status(401),
    "429": lambda: status(429),
    "503": lambda: status(503),
    "error event 503": lambda: Reply([ROLE, sse(json.dumps({"error": {"message": "full", "code": 503}}))], headers=SSE),
}


@pytest.fixture
def deaf_breakers(monkeypatch):
    """Breakers that never open, so that only the budget bounds the retries."""
    monkeypatch.setattr(breaker, "MAX_FAULTS", 10**9)


@both_ways
@pytest.mark.parametrize("failure", BEFORE_CONTENT)
async def test_before_any_content_another_replica_answers(launch, failure):
    """P27: the client sees one answer of one replica, one role, and one record with two attempts."""
    gateway = await launch(engines=2)
    await gateway.limit(gateway.project, '{"rpm": 100}')
    gateway.script(BEFORE_CONTENT[failure](), answer("Hel", "lo", prompt_tokens=7))
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.text, got.roles, got.is_done) == (200, "Hello", 1, True)
    assert got.header("x-ratelimit-remaining-requests") == "99"
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts, record.prompt_tokens, record.completion_tokens) == ("finished", 2, 7, 2)
    (first, _), (second, _) = gateway.engines.requests
    assert first != second


@pytest.mark.parametrize("failure", ["before headers", "after headers", "500", "429", "garbage"])
async def test_an_unstreamed_answer_is_retried_the_same_way(launch, failure):
    """P27: nothing is sent before the answer is whole, so every failure may be tried again."""
    gateway = await launch(engines=2)
    gateway.script(BEFORE_CONTENT[failure](), answer("Hello"))
    got = await gateway.post(completion(), path=COMPLETIONS)
    assert (got.status, got.text) == (200, "Hello")
    assert gateway.records[0].attempts == 2


EMPTY = {"id": "x", "object": "chat.completion", "model": "m", "choices": []}


async def test_an_unstreamed_answer_without_a_choice_is_the_engines_fault(launch):
    """An answer that answers nothing is no success: another replica may know better, and a last one is a 502."""
    gateway = await launch(engines=2)
    gateway.script(status(200, EMPTY), answer("Hello"), status(200, EMPTY), status(200, EMPTY))
    assert (await gateway.post(chat())).text == "Hello"
    got = await gateway.post(chat("again"))
    assert (got.status, got.code) == (502, "replica_protocol")
    first, second = await gateway.until_recorded(2)
    assert (first.outcome, first.attempts) == ("finished", 2)
    assert second.outcome == "replica_error"


async def test_half_an_unstreamed_answer_is_retried(launch):
    """P27: a body that is shorter than it said never reaches the client."""
    gateway = await launch(engines=2)
    gateway.script(answer("wrong", cut_before=0), answer("right"))
    assert (await gateway.post(chat())).text == "right"


@both_ways
@pytest.mark.parametrize(
    ("events", "seen"),
    [
        ([ROLE, chunk({"content": "Hel"})], '"Hel"'),
        ([ROLE, chunk({"reasoning_content": "hm"})], '"hm"'),
        ([ROLE, chunk({"tool_calls": [CALL]})], "arguments"),
        ([chunk({"content": "x"})] * 20, '"x"'),
    ],
    ids=["text", "reasoning", "half a tool call", "twenty tokens"],
)
async def test_after_content_the_failure_is_told_in_the_stream(launch, events, seen):
    """P27: no second replica, no second role, no repeated text, no end marker."""
    gateway = await launch(engines=2)
    gate = asyncio.Event()
    gateway.script(Reply([*events, gate, Cut.RESET], headers=SSE))
    client = await gateway.start(chat(stream=True))
    await client.until(seen)
    gate.set()
    got = await client.answer()
    assert (got.error["code"], got.code, got.is_done, got.is_complete) == ("502", "replica_reset", False, True)
    assert got.roles == sum(event == ROLE for event in events)
    assert len(gateway.engines.requests) == 1
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.attempts) == ("replica_error", 1)
    assert record.num_chunks == len(events) - got.roles


async def test_heartbeats_do_not_forbid_a_retry(launch, monkeypatch):
    """P27: a committed stream with nothing but comments in it may still go to another replica."""
    monkeypatch.setattr(client_answer, "COMMIT_AFTER_S", 0.02)
    gateway = await launch(engines=2, timeouts={"keepalive_s": 0.02})
    gate = asyncio.Event()
    gateway.script(Reply([ROLE, gate, Cut.RESET], headers=SSE), answer("Hello"))
    client = await gateway.start(chat(stream=True))
    await client.until(": keep-alive")
    gate.set()
    got = await client.answer()
    assert (got.text, got.roles, got.is_done) == ("Hello", 1, True)


async def test_attempts_have_a_bound(launch):
    """P29: however many replicas there are, a request makes no more than the allowed attempts."""
    gateway = await launch(engines=3, retries={"max_attempts": 2})
    gateway.script(status(500), status(500), answer("never asked"))
    got = await gateway.post(chat())
    assert (got.status, got.code) == (502, "replica_error")
    assert gateway.records[0].attempts == 2


async def test_three_attempts_are_one_record_and_one_request(launch):
    """P38, thin: r1 and r2 fail, r3 answers: one record, one count, three attempts, the last one's usage."""
    gateway = await launch(engines=3)
    usage = sse(json.dumps({"choices": [], "usage": {"prompt_tokens": 99, "completion_tokens": 1}}))
    gateway.script(broken_off(ROLE, usage), status(500), answer("Hel", "lo", prompt_tokens=7))
    assert (await gateway.post(chat(stream=True))).text == "Hello"
    [record] = await gateway.until_recorded(1)
    assert (record.attempts, record.prompt_tokens, record.outcome) == (3, 7, "finished")
    assert len({index for index, _ in gateway.engines.requests}) == 3
    gateway.parts.recorder.flush()
    text = gateway.gateway.metrics.text().decode()
    assert 'warmlane_requests_total{lane="interactive",model="small-a",outcome="finished"} 1.0' in text
    assert 'warmlane_prompt_tokens_total{model="small-a"} 7.0' in text
    assert 'warmlane_attempts_total{model="small-a"} 3.0' in text
    assert 'warmlane_attempts_lost_total{model="small-a"} 2.0' in text
    assert record.lost_tokens > 100  # what the first reported, and the prompt of the second
    assert f'warmlane_attempts_lost_tokens_total{{model="small-a"}} {float(record.lost_tokens)}' in text


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_busy_replica_is_set_aside_and_not_broken(launch, code, stream):
    """P28: its breaker counts nothing, it gets nothing until its wait is over, then it is tried again."""
    gateway = await launch(engines=2)
    replicas = gateway.parts.router.pool
    text = gateway.prompt_for("r1")
    gateway.script(status(code, headers={"retry-after": "30"}), answer("from r2"))
    assert (await gateway.post(chat(text, stream=stream))).text == "from r2"
    busy = replicas.get("r1").breaker
    assert (busy._num_faults, busy.is_open) == (0, False)
    for _ in range(5):
        await gateway.post(chat(text))
    assert [index for index, _ in gateway.engines.requests] == [0, 1, 1, 1, 1, 1, 1]
    busy.aside_until = 0.0  # the wait is over
    replicas.get("r1").shadow.forget()
    replicas.get("r2").shadow.forget()
    await gateway.post(chat(gateway.prompt_for("r1")))
    assert gateway.engines.requests[-1][0] == 0


@pytest.mark.parametrize("code", [429, 503])
async def test_a_single_busy_replica_is_told_with_its_own_wait(launch, code):
    """P19 a, P28: the engine's Retry-After reaches the client, now and for whoever comes meanwhile."""
    gateway = await launch()
    gateway.script(status(code, headers={"retry-after": "30"}))
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (code, "replica_busy", "30")
    later = await gateway.post(chat(stream=True))
    assert (later.status, later.header("retry-after")) == (503, "30")
    assert len(gateway.engines.requests) == 1
    gateway.parts.router.pool.get("r1").breaker.aside_until = 0.0
    assert (await gateway.post(chat())).status == 200


@pytest.mark.parametrize("waits", [("30", "5"), ("5", "30")])
@pytest.mark.parametrize("attempts", [2, 3])
async def test_of_two_waits_the_shorter_one_is_told(launch, waits, attempts):
    """P19 b: whichever replica came first."""
    gateway = await launch(engines=2, retries={"max_attempts": attempts})
    gateway.script(*(status(429, headers={"retry-after": wait}) for wait in waits))
    got = await gateway.post(chat())
    assert (got.status, got.header("retry-after")) == (429, "5")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (lambda: formatdate(time.time() + 20, usegmt=True), range(19, 22)),
        (lambda: formatdate(time.time() - 20, usegmt=True), [1]),
        (lambda: "9999999", [3600]),
        (lambda: "0", [1]),
        (lambda: "soon", [1]),
        (lambda: "-5", [1]),
        (lambda: "9" * 400, [1, 3600]),
        (lambda: "²", [1]),
    ],
    ids=["date", "past date", "very long", "zero", "words", "negative", "endless", "superscript"],
)
async def test_the_wait_told_is_a_whole_number_within_bounds(launch, sent, told):
    """P19 c: a date is converted, nonsense is 1, and nobody is sent away for a day."""
    gateway = await launch()
    wait = sent()
    gateway.script(
        Reply([b"{}"], status=429, headers=[("retry-after", wait.encode().decode("latin-1"))], framing=Framing.LENGTH)
    )
    got = await gateway.post(chat())
    assert (got.status, got.code) == (429, "replica_busy")
    assert int(got.header("retry-after")) in told


async def test_open_breakers_say_when_they_may_be_tried(launch):
    """P19 d: three faults open it; whoever comes then is told the time that is left, without an attempt."""
    gateway = await launch(retries={"max_attempts": 1})
    gateway.script(*[status(500)] * 3)
    for _ in range(3):
        assert (await gateway.post(chat())).status == 502
    its_breaker = gateway.parts.router.pool.get("r1").breaker
    its_breaker._open_until += 10
    got = await gateway.post(chat())
    assert (got.status, got.code, got.header("retry-after")) == (503, "no_replica_failing", "12")
    assert gateway.records[-1].outcome == "shed"
    assert len(gateway.engines.requests) == 3
    its_breaker._open_until = 0.0
    assert (await gateway.post(chat())).status == 200
    assert not its_breaker.is_open


async def test_a_full_queue_is_429_with_an_estimate(launch):
    """P19 e: at least a second, and those who wait are not disturbed."""
    gateway = await launch(seats=1, lanes={"interactive": {"queue": 1}})
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}), answer("b"))
    clients = [await gateway.start(chat())]
    await gateway.received()
    clients.append(await gateway.start(chat()))
    await gateway.until(lambda: gateway.in_flight["queued"] == 1)
    got = await gateway.post(chat(stream=True))
    assert (got.status, got.code) == (429, "queue_full")
    assert int(got.header("retry-after")) >= 1
    gate.set()
    assert {(await client.answer()).text for client in clients} == {"a", "b"}


async def test_steady_failure_is_not_multiplied(launch, deaf_breakers):
    """P29: with every replica failing, 300 requests make at most 1.1 times as many attempts, plus what was saved up."""
    gateway = await launch(engines=3)
    for engine in gateway.engines.all:
        engine.fallback = status(500)
    client = await gateway.connect()
    for _ in range(300):
        client.send(chat(), key=gateway.key)
        assert (await client.answer()).status == 502
    assert 300 < len(gateway.engines.requests) <= 300 * 1.1 + 10
    for engine in gateway.engines.all:
        engine.fallback = answer("healed")
    client.send(chat(), key=gateway.key)
    assert (await client.answer()).text == "healed"


async def test_a_replica_without_another_beside_it_does_not_spend_the_retry_budget(launch, deaf_breakers):
    """P29: the budget pays for retries that are made; a lone failing replica must not use up everybody's."""
    gateway = await launch()
    for _ in range(30):
        gateway.script(status(500))
        assert (await gateway.post(chat())).status == 502
    assert gateway.parts.retries._saved == 10.0


async def test_a_clients_own_deadline_is_not_the_replicas_fault(launch):
    """A tenant with tiny deadlines must not open anybody's breaker."""
    gateway = await launch()
    for _ in range(5):
        gateway.script(Reply([asyncio.Event()], headers=SSE))
        got = await gateway.post(chat(stream=True), headers=[("x-warmlane-deadline-ms", "20")])
        assert got.status == 504
    its_breaker = gateway.parts.router.pool.get("r1").breaker
    assert (its_breaker._num_faults, its_breaker.is_open) == (0, False)
    assert (await gateway.post(chat())).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_deadline_that_passes_in_the_queue_is_504(launch, stream):
    """A queue that is too slow for the request is told as the deadline it is."""
    gateway = await launch(seats=1)
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}))
    holder = await gateway.start(chat())
    await gateway.received()
    got = await gateway.post(chat(stream=stream), headers=[("x-warmlane-deadline-ms", "60")])
    assert (got.status, got.code) == (504, "deadline")
    assert gateway.records[0].outcome == "timed_out"
    gate.set()
    assert (await holder.answer()).text == "a"


async def test_a_wait_that_is_too_long_is_503_with_retry_after(launch):
    """Without a deadline the lane's own longest wait ends it."""
    gateway = await launch(seats=1, lanes={"interactive": {"max_wait_s": 0.05}})
    gate = asyncio.Event()
    gateway.script(answer("a", gates={0: gate}))
    holder = await gateway.start(chat())
    await gateway.received()
    got = await gateway.post(chat())
    assert (got.status, got.code) == (503, "queue_timeout")
    assert int(got.header("retry-after")) >= 1
    gate.set()
    await holder.answer()
