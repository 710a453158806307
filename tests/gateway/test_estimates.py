"""Engines that report no usage: the charge is estimated from what came, says so, and teaches what to expect."""

import pytest

from gateway.relay import SIZED_EVERY
from tests.gateway.kit import chat, completion
from tests.gateway.stream_replies import DONE, FINISH, ROLE, streamed, token
from tests.gateway.test_token_limits import used
from tests.scripted_engine import answer, status

TEXT = "a word of it, " * 40  # 560 bytes: 140 tokens at four bytes each


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_whole_answer_is_charged_by_its_text(launch, path):
    """Not by the first guess of 128, whatever its length: 4 tokens and 140."""
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 10000}')
    body = chat() if "chat" in path else completion()
    gateway.script(answer("short answer, so"), answer(TEXT, usage="none"), answer("short answer, so", usage="none"))
    for _ in range(3):
        assert (await gateway.post(body, path=path)).status == 200
    reported, long, short = await gateway.until_recorded(3)
    assert (reported.is_estimated, long.is_estimated, short.is_estimated) == (False, True, True)
    assert (long.completion_tokens, short.completion_tokens) == (140, 4)
    assert used(gateway) == sum(one.charged_tokens for one in (reported, long, short))
    assert short.charged_tokens == short.prompt_tokens + 4
    row = (await gateway.get(f"/v1/requests/{long.request_id}")).json
    assert (row["is_estimated"], row["completion_tokens"]) == (True, 140)
    assert (await gateway.get(f"/v1/requests/{reported.request_id}")).json["is_estimated"] is False


@pytest.mark.parametrize("kind", ["content", "reasoning_content", "tool_calls"])
async def test_a_stream_whose_chunks_hold_many_tokens_is_charged_by_its_text(launch, kind):
    """Ten chunks of 140 tokens, as thoughts, text or arguments of a tool; not ten tokens."""
    said = [{"index": 0, "function": {"arguments": TEXT}}] if kind == "tool_calls" else TEXT
    chunk = {"choices": [{"index": 0, "delta": {kind: said}, "finish_reason": None}]}
    gateway = await launch()
    await gateway.limit(gateway.project, '{"tpm": 10000}')
    gateway.script(streamed(ROLE, *[chunk] * 10, FINISH, DONE))
    assert (await gateway.post(chat(stream=True))).status == 200
    [record] = await gateway.until_recorded(1)
    assert (record.num_chunks, record.completion_tokens, record.is_estimated) == (10, 1400, True)
    assert used(gateway) == record.prompt_tokens + 1400


async def test_a_stream_of_a_token_a_chunk_is_charged_by_its_chunks(launch):
    """Also when the tokens are short, and however many chunks were not looked into."""
    gateway = await launch()
    num = 5 * SIZED_EVERY + 3
    gateway.script(streamed(ROLE, *[token("a")] * num, FINISH, DONE))
    await gateway.post(chat(stream=True))
    [record] = await gateway.until_recorded(1)
    assert record.completion_tokens == num


async def test_what_was_estimated_is_expected_of_the_next(launch):
    """After many answers of 4 tokens that nobody counted no more than a few are reserved."""
    gateway = await launch()
    for _ in range(60):
        gateway.script(answer("short answer, so", usage="none"))
        await gateway.post(chat())
    first, *_, last = gateway.records
    assert last.reserved_tokens < first.reserved_tokens - 110


async def test_an_answer_of_no_known_shape_is_charged_by_all_of_it(launch):
    """And passed on as it is."""
    gateway = await launch()
    body = b'{"choices": [{"said": "' + b"x" * 400 + b'"}]}'
    gateway.script(status(200, body))
    assert (await gateway.post(chat())).status == 200
    [record] = await gateway.until_recorded(1)
    assert record.is_estimated
    assert 0 <= record.completion_tokens <= 110
