"""Whoever leaves pays for the work that was done, on every endpoint (case P37): the prompt, and what came of an answer."""

import asyncio

import pytest

from gateway.request import GENERATING, Surface
from tests.gateway.kit import chat, completion, message, respond
from tests.gateway.test_token_limits import used
from tests.scripted_engine import Cut, answer

BODIES = {
    Surface.CHAT: chat,
    Surface.COMPLETIONS: completion,
    Surface.MESSAGES: message,
    Surface.RESPONSES: respond,
}
endpoints = pytest.mark.parametrize("surface", GENERATING, ids=[one.name.lower() for one in GENERATING])
WORDS = ["word "] * 400  # a token each, of which an engine that counts nothing tells nothing


def never():
    """Something that does not happen."""
    return asyncio.Event()


async def limited(launch, limits='{"tokens_per_day": 100000}', **options):
    """A gateway whose project has a budget."""
    gateway = await launch(**options)
    await gateway.limit(gateway.project, limits)
    return gateway


def test_every_endpoint_is_tried():
    """A new one must be added here, or to test_input_surfaces.py if it generates no text."""
    assert set(BODIES) == set(GENERATING)


@endpoints
async def test_300_of_400_tokens_are_charged_when_the_client_leaves(launch, surface):
    """P37: the prompt and what was produced until then, once; the rest of what was reserved is given back."""
    gateway = await limited(launch)
    gateway.script(answer(*WORDS[:300], "last", *WORDS[301:], gates={302: never()}))
    client = await gateway.start(BODIES[surface](stream=True, max_tokens=400), path=surface.value)
    await client.until('"last"')
    client.close()
    [record] = await gateway.until_recorded(1)
    assert (record.outcome, record.status, record.surface) == ("client_gone", 499, surface.value)
    assert 290 <= record.completion_tokens <= 330
    assert record.charged_tokens == record.prompt_tokens + record.completion_tokens
    assert used(gateway, "tokens_per_day") == record.charged_tokens
    assert record.is_estimated


@endpoints
@pytest.mark.parametrize("cause", ["engine dies", "the total is over"])
async def test_300_of_400_tokens_are_charged_when_the_stream_is_cut(launch, surface, cause):
    """P37: by policy also for an engine's fault and for this gateway's own limit of time; the row says why."""
    gateway = await limited(launch, timeouts={"total_s": 1.0} if cause == "the total is over" else {})
    options = {"gates": {301: never()}} if cause == "the total is over" else {"cut_before": 301, "cut": Cut.CLOSE}
    gateway.script(answer(*WORDS, **options))
    got = await gateway.post(BODIES[surface](stream=True, max_tokens=400), path=surface.value)
    assert got.error is not None or b"event: response.failed\n" in got.body
    [record] = await gateway.until_recorded(1)
    assert record.outcome == ("replica_error" if cause == "engine dies" else "timed_out")
    assert 290 <= record.completion_tokens <= 330
    assert used(gateway, "tokens_per_day") == record.prompt_tokens + record.completion_tokens


@endpoints
@pytest.mark.parametrize("stream", [True, False])
async def test_hanging_up_while_the_engine_works_is_not_free(launch, surface, stream):
    """P37: thirty clients of one tenant that leave in prefill, or before a whole answer, use up its day."""
    gateway = await limited(launch, '{"tokens_per_day": 3000}')
    outcomes = []
    for number in range(30):
        gateway.script(answer(*WORDS, hold_head=never()))
        sent = len(gateway.engines.requests)
        client = await gateway.start(BODIES[surface]("word " * 200, stream=stream, max_tokens=50), path=surface.value)
        await gateway.until(
            lambda before=sent, one=client: len(gateway.engines.requests) > before or one.reader._buffer
        )
        client.close()
        await gateway.until_quiet()
        await gateway.until(lambda before=number: len(gateway.parts.recorder) > before)
        outcomes.append(gateway.records[-1].outcome)
    served = outcomes.count("client_gone")
    assert outcomes == ["client_gone"] * served + ["refused"] * (30 - served)
    assert 8 <= served <= 15  # 200 to 250 tokens each, as far as known
    assert gateway.records[-1].limit == "project.tokens_per_day"
    assert used(gateway, "tokens_per_day") == sum(one.charged_tokens or 0 for one in gateway.records)
    assert len({one.request_id for one in gateway.records}) == 30


@endpoints
async def test_a_whole_answer_that_was_left_is_charged_by_the_time_the_engine_worked(launch, surface):
    """No more than was expected of it, and no less than its prompt."""
    gateway = await limited(launch)
    gateway.script(answer(*WORDS, gates={0: never()}))
    client = await gateway.start(BODIES[surface]("word " * 100, max_tokens=50), path=surface.value)
    await gateway.received()
    client.close()
    [record] = await gateway.until_recorded(1)
    decision = gateway.parts.recorder.find(record.request_id)[1]
    assert record.prompt_tokens == decision.prompt_tokens
    assert 0 <= record.completion_tokens <= 50
    assert used(gateway, "tokens_per_day") == record.charged_tokens == record.prompt_tokens + record.completion_tokens
