"""Pairs of vLLM servers: one reads the prompt, another writes the answer; whatever happens, nothing stays held."""

import asyncio

import pytest
from pydantic import ValidationError

from gateway.settings import Settings
from routing.replica import prefill_name
from tests.gateway.kit import MODEL, chat, completion, message, respond
from tests.scripted_engine import Cut, Reply, answer, dropped, status

TRANSFER = {"do_remote_prefill": True, "remote_block_ids": [1, 2, 3], "remote_host": "10.0.0.7", "remote_port": 5600}
WORDS = "a prompt that is long enough to have blocks of its own " * 100
PREFILL, DECODE = {"role": "prefill"}, {"role": "decode"}


def read_for(cached=0, transfer=TRANSFER, **fields):
    """What who reads a prompt answers."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}}
    choice = {"index": 0, "message": {"role": "assistant", "content": "H"}, "text": "H", "finish_reason": "length"}
    body = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage, "kv_transfer_params": transfer}
    return status(200, body | fields)


@pytest.fixture
async def pairs(launch):
    """r1 and r2 read, r3 and r4 answer."""
    return await launch(engines=4, kind="vllm", replica=[PREFILL, PREFILL, DECODE, DECODE])


def engine_of(gateway, number):
    """Which engine, from 1, got the how-manieth request."""
    return gateway.engines.requests[number][0] + 1


@pytest.mark.parametrize("body", [chat(WORDS), chat(WORDS, stream=True, max_tokens=7), completion(WORDS, n=1)])
async def test_one_reads_and_another_answers(pairs, body):
    """Whoever reads is asked for one token and where its KV lies; whoever answers is told that, word for word."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    pairs.script(read_for(cached=900), answer("Hello", " world", prompt_tokens=1000, cached=1000))
    got = await pairs.post(body, path=path)
    assert got.status == 200
    assert engine_of(pairs, 0) in {1, 2}
    assert engine_of(pairs, 1) in {3, 4}
    reading, answering = (request.json for _, request in pairs.engines.requests)
    assert reading["max_tokens"] == 1
    assert not {"stream", "stream_options", "n"} & reading.keys()
    assert reading["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert answering["kv_transfer_params"] == TRANSFER
    assert answering.get("max_tokens") == body.get("max_tokens")
    assert reading["cache_salt"] == answering["cache_salt"]
    (record,) = await pairs.until_recorded(1)
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (1000, 900, 2)
    assert record.attempts == 1


async def test_the_receipt_tells_of_both(pairs):
    """Who read, who answered, and why each."""
    pairs.script(read_for(), answer("Hello"))
    await pairs.post(chat(WORDS))
    (record,) = await pairs.until_recorded(1)
    _, decision = pairs.parts.recorder.find(record.request_id)
    receipt = decision.receipt(record.request_id)
    assert receipt.chosen in {"r3", "r4"}
    assert receipt.prefill.chosen in {"r1", "r2"}
    assert {one.replica for one in receipt.prefill.candidates} == {"r1", "r2"}
    assert "prompt tokens" in receipt.prefill.reason


async def test_turns_meet_where_their_prefix_was_read(pairs):
    """Affinity is of those that read."""
    messages, readers = [], set()
    for turn in range(4):
        messages.append({"role": "user", "content": f"{turn} {WORDS}"})
        pairs.script(read_for(cached=900 if turn else 0), answer("Hello"))
        assert (await pairs.post({"model": MODEL, "messages": messages})).status == 200
        readers.add(engine_of(pairs, 2 * turn))
        messages.append({"role": "assistant", "content": "Hello"})
    assert len(readers) == 1
    _, decision = pairs.parts.recorder._remembered.popitem()[1]
    assert decision.prefill.hit_tokens > 500


async def test_a_reader_that_fails_is_left_for_another(pairs):
    """Its fault is its own: the one that would have answered may be tried again, and both seats come back."""
    pairs.script(status(500), read_for(), answer("Hello"))
    assert (await pairs.post(chat(WORDS))).status == 200
    (record,) = await pairs.until_recorded(1)
    assert (record.attempts, record.lost_attempts) == (2, 1)
    failed = f"r{engine_of(pairs, 0)}"
    assert engine_of(pairs, 1) != engine_of(pairs, 0)
    assert [one.name for one in pairs.parts.router.pool if one.breaker._num_faults] == [failed]


async def test_when_all_that_read_have_failed_the_answering_one_reads(launch):
    """One attempt more, and nobody is asked twice."""
    gateway = await launch(engines=2, kind="vllm", replica=[PREFILL, DECODE])
    gateway.script(dropped(), answer("Hello"))
    assert (await gateway.post(chat(WORDS))).status == 200
    assert [number for number, _ in gateway.engines.requests] == [0, 1]
    assert "kv_transfer_params" not in gateway.engines.requests[1][1].json


@pytest.mark.parametrize(
    "reply",
    [
        dropped,
        lambda: read_for(transfer=None),
        lambda: read_for(transfer="elsewhere"),
        lambda: read_for(pad="x" * (1 << 20)),
        lambda: status(200, b"{"),
        lambda: Reply([b"{", Cut.CLOSE]),
    ],
)
async def test_an_answer_that_hands_nothing_over_is_a_fault(pairs, reply):
    """Cut, without KV, or no JSON."""
    pairs.script(reply(), read_for(), answer("Hello"))
    assert (await pairs.post(chat(WORDS))).status == 200
    assert len(pairs.engines.requests) == 3


async def test_a_refusal_of_the_prompt_is_the_clients(pairs):
    """What one cannot read no other can; nobody answers it."""
    pairs.script(status(400))
    assert (await pairs.post(chat(WORDS))).status == 400
    assert len(pairs.engines.requests) == 1


async def test_an_answer_that_breaks_before_its_first_content_is_tried_again_as_a_pair(pairs):
    """The prompt is read again: its KV was for the one that failed."""
    pairs.script(read_for(), dropped(), read_for(), answer("Hello"))
    got = await pairs.post(chat(WORDS, stream=True))
    assert got.text == "Hello"
    assert [engine_of(pairs, number) <= 2 for number in range(4)] == [True, False, True, False]


async def test_an_answer_that_breaks_later_ends_with_an_error_event(pairs):
    """Text was delivered, so nobody else goes on."""
    pairs.script(read_for(), answer("Hello", " world", cut_before=2))
    got = await pairs.post(chat(WORDS, stream=True))
    assert b'"error"' in got.body
    assert len(pairs.engines.requests) == 2


async def test_a_reader_that_hangs_is_left(launch):
    """As long as is waited for a first token."""
    gateway = await launch(
        engines=2, kind="vllm", replica=[PREFILL, DECODE], timeouts={"first_token_s": 0.1}, retries={"max_attempts": 1}
    )
    gateway.script(Reply([], hold_head=asyncio.Event()))
    assert (await gateway.post(chat(WORDS, stream=True))).status in {200, 504}
    (record,) = await gateway.until_recorded(1)
    assert record.outcome == "timed_out"


@pytest.mark.parametrize("at", ["reading", "answering"])
async def test_a_client_that_leaves_stops_whoever_works_for_it(pairs, at):
    """In either half; both replicas are free again."""
    held = asyncio.Event()
    replies = [Reply([], hold_head=held)] if at == "reading" else [read_for(), Reply([], hold_head=held)]
    pairs.script(*replies)
    client = await pairs.start(chat(WORDS, stream=True))
    request = await pairs.received(len(replies))
    client.close()
    await request.until_aborted()
    await pairs.until_quiet()
    assert not any(replica.num_in_flight or replica.outstanding_tokens for replica in pairs.parts.router.pool)


async def test_without_anybody_to_read_the_answering_one_reads(launch):
    """A server that goes on with others' KV is a whole server."""
    gateway = await launch(engines=2, kind="vllm", replica=[PREFILL, DECODE])
    gateway.parts.fleet.drain("r1")
    gateway.script(answer("Hello", cached=3))
    assert (await gateway.post(chat(WORDS))).status == 200
    ((_, request),) = gateway.engines.requests
    assert "kv_transfer_params" not in request.json
    (record,) = await gateway.until_recorded(1)
    assert record.cached_tokens == 3
    assert (await gateway.get("/health/ready", key=None)).status == 200


async def test_a_clients_own_haste_is_no_readers_fault(pairs):
    """A deadline that passes while a prompt is read: else one tenant could close all readers to everybody."""
    pairs.script(Reply([], hold_head=asyncio.Event()))
    got = await pairs.post(chat(WORDS), headers=[("x-warmlane-deadline-ms", "40")])
    assert (got.status, got.code) == (504, "deadline")
    assert not any(replica.breaker._num_faults for replica in pairs.parts.router.pool)
    await pairs.until_quiet()


@pytest.mark.parametrize(
    "body",
    [
        chat(WORDS, n=2),
        completion([WORDS, "another"]),
        completion(WORDS, best_of=2),
        completion(WORDS, echo=True, logprobs=1),
        chat(WORDS, prompt_logprobs=1),
    ],
)
async def test_what_cannot_be_handed_over_is_read_where_it_is_answered(pairs, body):
    """Several answers would fetch blocks that are freed after the first; of a prompt's tokens only its reader knows."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    pairs.script(answer("Hello"))
    await pairs.post(body, path=path)
    ((index, request),) = pairs.engines.requests
    assert index >= 2
    assert "kv_transfer_params" not in request.json


@pytest.mark.parametrize("field", [{"n": 1}, {"echo": False}, {"best_of": 1}, {"prompt_logprobs": None}])
async def test_what_asks_for_nothing_of_the_kind_is_handed_over(pairs, field):
    """Spelled out or not."""
    pairs.script(read_for(), answer("Hello"))
    assert (await pairs.post(completion(WORDS, **field), path="/v1/completions")).status == 200
    assert len(pairs.engines.requests) == 2


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", message(WORDS)), ("/v1/responses", respond(WORDS))])
@pytest.mark.parametrize("stream", [True, False])
async def test_other_languages_are_served_by_pairs_too(pairs, path, body, stream):
    """A chat underneath; charged once, with what the reader found in its cache."""
    pairs.script(read_for(cached=900), answer("Hello", prompt_tokens=1000, cached=1000))
    assert (await pairs.post(body | {"stream": stream}, path=path)).status == 200
    assert len(pairs.engines.requests) == 2
    (record,) = await pairs.until_recorded(1)
    assert (record.surface, record.prompt_tokens, record.cached_tokens, record.attempts) == (path, 1000, 900, 1)


async def test_a_client_cannot_say_where_kv_lies(pairs):
    """It would read another tenant's."""
    pairs.script(read_for(), answer("Hello"))
    await pairs.post(chat(WORDS, kv_transfer_params={"do_remote_prefill": True, "remote_host": "10.6.6.6"}))
    assert b"10.6.6.6" not in b"".join(request.body for _, request in pairs.engines.requests)


async def test_the_pool_of_readers_is_no_model(pairs):
    """Nobody can ask it, and no list shows it."""
    listed = (await pairs.get("/v1/models")).json["data"]
    assert [model["id"] for model in listed] == [MODEL]
    assert (await pairs.post(chat(WORDS) | {"model": prefill_name(MODEL)})).status == 404


@pytest.mark.parametrize(
    ("roles", "kind", "sentence"),
    [
        (["prefill"], "vllm", "none with 'decode'"),
        (["decode", "decode"], "vllm", "none with 'prefill'"),
        (["prefill", "decode", "whole"], "vllm", "whole replicas beside"),
        (["prefill", "decode"], "llama-server", "cannot read prompts for others"),
    ],
)
def test_half_pairs_are_refused_at_the_start(roles, kind, sentence):
    """With what is missing."""
    replicas = [
        {"name": f"r{number}", "model": "m", "engine": kind, "url": f"http://127.0.0.1:{9000 + number}", "role": role}
        for number, role in enumerate(roles)
    ]
    with pytest.raises(ValidationError, match=sentence):
        Settings(replicas=replicas)
